"""mlx-lm, unmodified, on our ranks: `lora --train` and a sharded model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from support.programs.launching import launch, of_each, printed, write_script

pytest.importorskip("mlx_lm")
mx = pytest.importorskip("mlx.core")
pytestmark = [pytest.mark.slow, pytest.mark.deep, pytest.mark.timeout(400)]

CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 400,
    "eos_token_id": 0,
    "tie_word_embeddings": True,
    "max_position_embeddings": 128,
}
N_TOKENS = 30  # the same in each row: then the mean over ranks is the mean over tokens
LOSS = re.compile(r"^\[0\] +(\d+) +(val)? *(\d+\.\d+)", re.MULTILINE)
COLOUR = re.compile(r"\x1b\[[\d;]*m")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make a model with random weights, a tokenizer, and rows of a packaged text."""
    from mlx.utils import tree_flatten
    from mlx_lm.models import llama
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder = tmp_path_factory.mktemp("mlx_lm")
    (folder / "model").mkdir()
    (folder / "data").mkdir()
    text = Path(json.__file__).read_text(encoding="utf-8") * 2
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"],
        special_tokens=["</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    (folder / "model" / "tokenizer_config.json").write_text(json.dumps(said))
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG))
    mx.random.seed(1)
    parameters = llama.Model(llama.ModelArgs.from_dict(CONFIG)).parameters()
    mx.save_safetensors(str(folder / "model" / "model.safetensors"), dict(tree_flatten(parameters)))
    ids = tokenizer.encode(text).ids
    parts = [tokenizer.decode(ids[i : i + N_TOKENS]) for i in range(0, len(ids), N_TOKENS)]
    rows = [part for part in parts if len(tokenizer.encode(part).ids) == N_TOKENS][:32]
    assert len(rows) == 32
    for name, of_it in (("train", rows[:24]), ("valid", rows[24:])):
        lines = "".join(json.dumps({"text": row}) + "\n" for row in of_it)
        (folder / "data" / f"{name}.jsonl").write_text(lines)
    return folder


def words(folder: Path, out: Path, **options: object) -> list[str]:
    """Return the words of `lora --train` that the tests share, with these options."""
    chosen = {
        "model": folder / "model",
        "data": folder / "data",
        "adapter-path": out,
        "num-layers": 2,
        "batch-size": 6,
        "steps-per-report": 1,
        "optimizer": "sgd",
        "learning-rate": 0.02,
    } | {name.replace("_", "-"): value for name, value in options.items()}
    pairs = [(f"--{name}", str(value)) for name, value in chosen.items()]
    return ["lora", "--train", *(word for pair in pairs for word in pair)]


def train(n: int, folder: Path, out: Path) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Train on so many ranks; return the losses that it prints, and the adapter."""
    options = words(folder, out, iters=6, steps_per_eval=3, val_batches=-1)
    ended = launch("-n", str(n), "-m", "mlx_lm", *options)
    assert ended.returncode == 0, ended.stderr.decode()
    said = COLOUR.sub("", ended.stdout.decode())
    losses = {f"{kind} {i}": float(loss) for i, kind, loss in LOSS.findall(said)}
    assert len(losses) == 9, said
    weights = mx.load(str(out / "adapters.safetensors"))
    return losses, {name: np.array(weight) for name, weight in weights.items()}


@pytest.fixture(scope="module")
def alone(folder):
    """Train on one rank."""
    return train(1, folder, folder / "alone")


@pytest.mark.parametrize("n", [2, 3])
def test_lora_on_several_ranks_learns_what_one_learns(n, folder, alone, tmp_path):
    losses, weights = train(n, folder, tmp_path)
    assert losses == pytest.approx(alone[0], abs=1.1e-3)  # printed with three digits
    assert losses["val 6"] < losses["val 1"]
    assert weights.keys() == alone[1].keys()
    for name, weight in weights.items():
        np.testing.assert_allclose(weight, alone[1][name], rtol=0, atol=1e-6)


def test_no_adapter_is_written_after_the_death_of_a_rank(folder, alone, tmp_path):
    """Rank 1 dies after step 13 of 100, beside ranks with the unmodified program."""
    script = write_script(
        tmp_path,
        """
import os, runpy, signal
if os.environ["PHALANX_RANK"] == "1":
    from mlx_lm.cli_ui import TrainUI
    plain, steps = TrainUI.advance, []
    def advance(self):
        steps.append(plain(self))
        if len(steps) == 13:
            os.kill(os.getpid(), signal.SIGKILL)
    TrainUI.advance = advance
runpy.run_module("mlx_lm", run_name="__main__", alter_sys=True)
""",
    )
    options = words(folder, tmp_path / "out", iters=100, save_every=5, val_batches=1)
    ended = launch("-n", "3", "--grace", "30", script, *options)
    said = COLOUR.sub("", ended.stderr.decode())
    failed = sorted(
        re.findall(r"^\[(\d)\] phalanx\.errors\.RankFailure: rank 1 ", said, re.MULTILINE)
    )
    assert failed == ["0", "2"], said
    assert ended.returncode != 0
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    numbered = ["0000005_adapters.safetensors", "0000010_adapters.safetensors"]
    assert written == [*numbered, "adapter_config.json", "adapters.safetensors"]
    last = (tmp_path / "out" / "adapters.safetensors").read_bytes()
    assert last == (tmp_path / "out" / numbered[-1]).read_bytes()


def test_a_sharded_model_gives_the_same_logits(folder, tmp_path):
    code = f"""
import mlx.core as mx, sys
from mlx_lm import load
world = mx.distributed.init(strict=True)
tokens = mx.arange(20)[None]
whole, _ = load({str(folder / "model")!r})
expected = whole(tokens)
parts, _ = load({str(folder / "model")!r})
parts.shard(world)
found = parts(tokens)
print(mx.allclose(found, expected, rtol=1e-4, atol=1e-5).item(),
      parts.model.layers[0].mlp.up_proj.weight.shape[0])
"""
    assert printed(tmp_path, 2, code) == of_each(2, "True 32")
