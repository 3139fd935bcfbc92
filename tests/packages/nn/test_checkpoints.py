"""Checkpoints: saved by some ranks and loaded by others, whole or not at all."""

from __future__ import annotations

import json

import numpy as np
import pytest
from nn.cells import checkpoint_cells as cells

import phalanx as px

safetensors = pytest.importorskip("safetensors")


@pytest.mark.parametrize("framework", ["numpy", "mlx"])
@pytest.mark.parametrize("wait", [True, False])
def test_what_was_saved_is_loaded_on_any_number_of_ranks(rank_pool, tmp_path, framework, wait):
    pytest.importorskip({"mlx": "mlx.core"}.get(framework, framework))
    saved = rank_pool(3).run(cells.save, str(tmp_path), framework, 5.0, wait)
    assert len(list(tmp_path.glob("step-00000005/rank-*.safetensors"))) == 3
    assert rank_pool(3).run(cells.load, str(tmp_path), framework) == [(5, text) for text in saved]
    for n in (1, 2, 4):
        for step, text in rank_pool(n).run(cells.load, str(tmp_path), framework):
            assert step == 5
            # Of another number of ranks, each keeps what it has for itself.
            assert text.partition("'random': {'bit_generator'")[0] in saved[0]
            assert saved[0].partition(", {'random'")[0] in text


def test_modules_and_optimizers_of_torch(rank_pool, tmp_path):
    torch = pytest.importorskip("torch")
    rank_pool(2).run(cells.save_module, str(tmp_path))
    state = cells.state_of("torch", 0.0)
    assert px.nn.load(tmp_path, state) == 4
    torch.manual_seed(1)
    wanted = cells.state_of("torch", 4.0)
    assert cells.text_of(state) == cells.text_of(wanted)


def test_each_rank_writes_a_part(rank_pool, tmp_path):
    rank_pool(3).run(cells.save, str(tmp_path), "numpy", 1.0)
    index = json.loads((tmp_path / "step-00000001/index.json").read_text())
    files = {entry["file"] for entry in index["arrays"]}
    assert (index["ranks"], index["step"]) == (3, 1)
    assert len(files) > 1


def test_old_checkpoints_are_removed_but_never_the_last_complete_one(rank_pool, tmp_path):
    ranks = rank_pool(2)
    for seed in (1.0, 2.0, 3.0, 4.0):
        ranks.run(cells.save, str(tmp_path), "numpy", seed, True, 3)
    assert steps_in(tmp_path) == [2, 3, 4]
    ranks.run(cells.save, str(tmp_path), "numpy", 5.0, True, 1)
    assert steps_in(tmp_path) == [4, 5]
    ranks.run(cells.save, str(tmp_path), "numpy", 6.0, True, 0)
    assert steps_in(tmp_path) == [4, 5, 6]
    assert ranks.run(cells.load, str(tmp_path), "numpy", 4)[0][0] == 4


def steps_in(folder):
    return sorted(int(path.name[5:]) for path in folder.iterdir())


@pytest.mark.parametrize("lost", ["index.json", "rank-00001.safetensors"])
def test_a_save_that_was_cut_off_does_not_count(rank_pool, tmp_path, lost):
    ranks = rank_pool(2)
    for seed in (1.0, 2.0):
        ranks.run(cells.save, str(tmp_path), "numpy", seed)
    path = tmp_path / "step-00000002" / lost
    path.rename(path.with_name(path.name + ".part"))
    assert ranks.run(cells.load, str(tmp_path), "numpy")[0][0] == 1
    ranks.run(cells.save, str(tmp_path), "numpy", 2.0)  # once more, over what is left of it
    assert ranks.run(cells.load, str(tmp_path), "numpy")[0][0] == 2


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("steps", "CollectiveMismatch: save: rank 0 is at step 0, rank 1 at step 1"),
        ("forms", "CollectiveMismatch: save: the states of ranks 0 and 1 differ, such as b"),
        ("shapes", "save: the states of ranks 0 and 1 differ in dtypes or shapes"),
        ("none", "FileNotFoundError: load: there is no checkpoint in "),
        ("objects", "NotSupported: save: a ndarray of dtype <U1 cannot be saved"),
    ],
)
def test_a_mistake_is_one_error_on_all_ranks(rank_pool, tmp_path, case, words):
    for text in rank_pool(3).run(cells.error_of, str(tmp_path), case):
        assert words in text, text
    assert not list(tmp_path.glob("step-*/index.json"))


def test_a_folder_that_cannot_be_made(rank_pool, tmp_path):
    (tmp_path / "file").write_text("")
    for text in rank_pool(2).run(cells.error_of, str(tmp_path / "file"), "no folder"):
        assert "save: rank 0 could not make " in text


def test_another_model_is_refused_and_nothing_is_changed(tmp_path):
    px.nn.save(tmp_path, {"w": np.ones(1), "step": 3})
    state = {"w": np.zeros(2)}
    with pytest.raises(
        ValueError, match=r"of another model: w is float64\[1\] in it, and float64\[2\]"
    ):
        px.nn.load(tmp_path, state)
    with pytest.raises(ValueError, match="of another model: it has w, and not v"):
        px.nn.load(tmp_path, {"v": np.zeros(1)})
    assert state["w"].tolist() == [0, 0]
    with pytest.raises(FileNotFoundError, match="of step 9 in .*; complete are: 3"):
        px.nn.load(tmp_path, state, step=9)


def test_a_damaged_file_is_named(rank_pool, tmp_path):
    rank_pool(2).run(cells.save, str(tmp_path), "numpy", 1.0)
    path = tmp_path / "step-00000001" / "rank-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    for text in rank_pool(2).run(cells.error_of_load, str(tmp_path)):
        assert "ValueError" in text
        assert "rank-00001.safetensors is damaged" in text


def test_a_newer_format_is_refused(tmp_path):
    px.nn.save(tmp_path, {"w": np.ones(1)})
    index = tmp_path / "step-00000000" / "index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"format": 2}))
    with pytest.raises(ValueError, match="is of format 2; this release reads 1"):
        px.nn.load(tmp_path, {"w": np.ones(1)})
    index.write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        px.nn.load(tmp_path, {"w": np.ones(1)})


def test_one_plain_file(rank_pool, tmp_path):
    rank_pool(3).run(cells.save, str(tmp_path), "numpy", 2.0)
    assert px.nn.export(tmp_path, tmp_path / "all.safetensors", "arrays") == 11
    with safetensors.safe_open(str(tmp_path / "all.safetensors"), "numpy") as file:
        assert file.get_tensor("big").tolist() == [2.0] * 10_000
        assert file.get_tensor("float16").dtype == np.float16
    with pytest.raises(ValueError, match="no arrays below 'model'; it has arrays, columns"):
        px.nn.export(tmp_path, tmp_path / "none.safetensors", "model")
    with pytest.raises(FileNotFoundError):
        px.nn.export(tmp_path / "none", tmp_path / "none.safetensors")


def test_without_the_package_it_says_what_to_install(monkeypatch, tmp_path):
    import sys

    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(px.NotSupported, match=r"pip install 'safetensors>=0.8'"):
        px.nn.save(tmp_path, {})
