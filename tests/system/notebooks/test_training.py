"""The three tutorials on training: what they were saved with, and what they show when they are run."""

from __future__ import annotations

import re

import pytest
from support.notebooks.tutorials import FOLDER, Done, of, pictures, read, run_all, saved, who_said
from support.runs.tiers import deep_but

_DATA, _TENSOR, _TUNE = "06_data_parallel", "07_tensor_parallel", "08_fine_tune"
# For each tutorial: modules besides Phalanx, number of ranks, kinds of rich output.
_NEEDS = {
    _DATA: ("torch", "mlx.core", "matplotlib"),
    _TENSOR: ("mlx.core", "matplotlib"),
    _TUNE: ("mlx_lm", "matplotlib"),
}
_RANKS = {_DATA: 4, _TENSOR: 4, _TUNE: 2}
_KINDS = {
    _DATA: {"text/plain", "image/png", "image/svg+xml"},
    _TENSOR: {"text/plain", "image/png"},
    _TUNE: {"text/plain", "image/png"},
}
_WAYS = ("one_by_one", "in_buckets", "overlapped")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def _saved(name: str) -> Done:
    return saved(FOLDER / f"{name}.ipynb")


def _shown(name: str, how: str, tmp_path_factory: pytest.TempPathFactory) -> Done:
    if how == "saved":
        return _saved(name)
    for module in _NEEDS[name]:
        pytest.importorskip(module)
    done = run_all(f"{name}.ipynb", tmp_path_factory.mktemp("training"))
    assert done[0].keys() == _saved(name)[0].keys()
    assert done[1] == []  # no process is left
    return done


# What is asked of a run is asked of what the packaged notebook says, too.
_HOW = deep_but(["saved"], ["executed", "saved"])


@pytest.fixture(scope="module", params=_HOW)
def data_parallel(request, tmp_path_factory) -> Done:
    return _shown(_DATA, request.param, tmp_path_factory)


@pytest.fixture(scope="module", params=_HOW)
def tensor_parallel(request, tmp_path_factory) -> Done:
    return _shown(_TENSOR, request.param, tmp_path_factory)


@pytest.fixture(scope="module", params=_HOW)
def fine_tune(request, tmp_path_factory) -> Done:
    return _shown(_TUNE, request.param, tmp_path_factory)


@pytest.mark.parametrize("name", _NEEDS)
def test_the_saved_one_shows_a_whole_run(name):
    notebook = read(FOLDER / f"{name}.ipynb")
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {kind for cell in cells for output in cell.outputs for kind in output.get("data", ())}
    assert kinds == _KINDS[name]
    assert f"{_RANKS[name]} ranks on 1 host" in of(_saved(name), "%distributed start").stdout
    assert f"stopped the {_RANKS[name]} ranks" in of(_saved(name), "%distributed stop").stdout
    # It says first what the reader can do after it, and no line is long.
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    assert texts[0].split("\n\n")[1].startswith("After this notebook you can ")
    assert [line for text in texts for line in text.splitlines() if len(line) > 150] == []


# -- 06 data parallel ---------------------------------------------------------------------------


def test_the_sum_is_the_gradient_for_all_days(data_parallel):
    said = of(data_parallel, "own gradient").stdout
    assert who_said(said, "off by less than 1e-6: True") == [0, 1, 2, 3]
    assert all(float(off) > 1e-3 for off in re.findall(r"own gradient: off by (\S+);", said))


def test_four_ranks_learn_what_one_learns(data_parallel):
    cell = of(data_parallel, "plt.show()")
    assert "image/png" in cell.mimes()
    (difference,) = re.findall(r"largest difference of the losses: (\S+)", cell.stdout)
    assert float(difference) < 1e-5
    equal = of(data_parallel, "the same weights on all ranks: {is_equal(weights").stdout
    assert who_said(equal, "the same weights on all ranks: True") == [0, 1, 2, 3]


def test_three_frameworks_have_the_same_losses(data_parallel):
    losses = {}
    for name in ("numpy", "MLX", "torch"):
        said = of(data_parallel, f'say("{name}", losses)').stdout
        assert who_said(said, "step 100") == [0]
        losses[name] = [float(loss) for loss in re.findall(r"step \d+: (\S+)", said)]
    assert losses["numpy"] == sorted(losses["numpy"], reverse=True)
    assert losses["numpy"][-1] < losses["numpy"][0] / 2
    for name in ("MLX", "torch"):
        assert losses[name] == pytest.approx(losses["numpy"], abs=1e-4)


def test_three_ways_to_average_and_their_cost(data_parallel):
    said = of(data_parallel, "gives the gradients of one_by_one").stdout
    assert all(who_said(said, f"{way} gives the gradients") == [0] for way in _WAYS[1:])
    assert "False" not in said
    table = of(data_parallel, "ms for averaging").stdout
    rows = {
        row[0]: row[1:] for row in re.findall(r"(\w+) +(\d+) +(\S+) +(-?\S+)$", table, re.MULTILINE)
    }
    assert rows.keys() == {"no_average", *_WAYS}
    n_sums = {way: int(row[0]) for way, row in rows.items()}
    assert (n_sums["no_average"], n_sums["one_by_one"], n_sums["in_buckets"]) == (0, 64, 1)
    assert 1 < n_sums["overlapped"] < 64
    assert all(float(row[1]) > 0 for row in rows.values())


def test_the_saved_cost_is_least_for_few_sums():
    """Times are not compared in a run: the machine may be busy."""
    table = of(_saved(_DATA), "ms for averaging").stdout
    ms = dict(re.findall(r"(\w+) +\d+ +(\S+) +-?\S+$", table, re.MULTILINE))
    assert float(ms["no_average"]) < float(ms["in_buckets"]) < float(ms["one_by_one"])


def test_the_monitor_shows_the_sums(data_parallel):
    cell = of(data_parallel, "%distributed monitor")
    (picture,) = pictures(cell.outputs)
    assert picture.startswith("<svg")
    assert "all_sum" in picture
    assert all(f"rank {rank} " in cell.text for rank in range(4))


def test_ranks_go_on_together_after_a_stop(data_parallel):
    stopped = of(data_parallel, "while True").error
    assert stopped.startswith("TimeoutError: the cell ran longer than 1 s; its ranks were stopped")
    slow = of(data_parallel, "time.sleep(60)")
    assert "variables may differ; px.broadcast them before you go on" in slow.stderr
    repaired = of(data_parallel, "had made").stdout
    made = {int(rank): int(n) for rank, n in re.findall(r"rank (\d) had made (\d+)", repaired)}
    assert sorted(made) == [0, 1, 2, 3]
    now = f"now {made[0]} steps on all ranks, the same weights: True"
    assert who_said(repaired, now) == [0, 1, 2, 3]


# -- 07 tensor parallel -------------------------------------------------------------------------


def test_the_divided_model_has_the_same_logits(tensor_parallel):
    said = of(tensor_parallel, "largest logit").stdout
    ((largest, difference),) = set(re.findall(r"largest logit (\S+), largest diff\w+ (\S+)'", said))
    assert float(largest) > 1
    assert float(difference) < 1e-4
    assert "8 sums for 4 layers" in said


def test_it_is_divided_by_heads(tensor_parallel):
    shapes = of(tensor_parallel, 'px.print0(f"qkv').stdout
    assert "qkv (384, 128) -> (96, 128)" in shapes
    assert "out (128, 128) -> (128, 32)" in shapes
    uneven = of(tensor_parallel, "heads, {hidden}").stdout
    assert who_said(uneven, "3 heads, ") == [0, 1]
    assert who_said(uneven, "2 heads, ") == [2]
    assert all(float(off) < 1e-4 for off in re.findall(r"largest difference (\S+)", uneven))


def test_the_divided_model_learns_what_the_whole_one_learns(tensor_parallel):
    said = of(tensor_parallel, "losses = train(divided)").stdout
    assert who_said(said, "the same embedding on all ranks: True") == [0, 1, 2, 3]
    divided, whole = (
        [float(loss) for loss in re.findall(r"\d\.\d{4}", of(tensor_parallel, words).stdout)]
        for words in ("losses = train(divided)", "losses = train(whole)")
    )
    assert len(divided) == 4
    assert divided == pytest.approx(whole, abs=1e-2)
    assert divided == sorted(divided, reverse=True)


def test_each_rank_keeps_a_part_of_the_bytes(tensor_parallel):
    cell = of(tensor_parallel, "plt.show()")
    assert "image/png" in cell.mimes()
    sizes = {
        name: [float(mb) for mb in its.split(", ")]
        for name, its in re.findall(r"(\w[\w ]*): ([\d., ]+) MB", cell.stdout)
    }
    (whole,) = sizes["whole"]
    assert [len(sizes[name]) for name in ("4 ranks", "3 ranks")] == [4, 3]
    # The embedding, 128 KiB, is whole on each rank.
    assert all(mb < whole / 4 + 0.2 for mb in sizes["4 ranks"])
    assert all(mb < 3 * whole / 8 + 0.2 for mb in sizes["3 ranks"])
    assert sizes["3 ranks"][2] < sizes["3 ranks"][0] == sizes["3 ranks"][1]


# -- 08 fine-tune -------------------------------------------------------------------------------


def _losses(text: str, is_validation: bool) -> list[float]:
    """Return the losses of mlx-lm's table."""
    kind = "val +" if is_validation else ""
    found = re.findall(rf"^\[0\] +\d+ +{kind}(\d+\.\d+)\b", _COLOUR.sub("", text), re.MULTILINE)
    return [float(loss) for loss in found]


def test_the_loss_falls_on_two_ranks(fine_tune):
    cell = of(fine_tune, "lora.train_model(")
    training, validation = _losses(cell.stdout, False), _losses(cell.stdout, True)
    assert len(training) == 6
    assert len(validation) == 4
    assert training[-1] < training[0]
    assert validation[-1] < validation[0] - 0.3
    assert "image/png" in of(fine_tune, "plt.show()").mimes()
    adapter = of(fine_tune, "weights in the adapter").stdout
    assert "equal on all ranks: True" in adapter
    assert "'adapters.safetensors'" in adapter


def test_the_merged_model_is_the_one_with_the_adapter(fine_tune):
    said = of(fine_tune, "validation loss").stdout
    losses = dict(re.findall(r"(\w[\w ]*\w) +validation loss (\S+)", said))
    merged, adapted, base = (float(losses[name]) for name in ("merged", "with adapter", "base"))
    assert merged == pytest.approx(adapted, abs=2e-3)
    assert merged < base
    (difference,) = re.findall(r"merged and with adapter: (\S+)", said)
    assert float(difference) < 1e-3


def test_the_command_trains_too(fine_tune):
    validation = _losses(of(fine_tune, "phalanx launch").stdout, True)
    assert len(validation) == 2
    assert validation[1] < validation[0]
