"""The tutorial on training by hand: what it was saved with, and what it shows when it is run."""

from __future__ import annotations

import re

import pytest
from notebooks.test_notebooks import _FOLDER, Done, _of, _read, _run_all
from support.notebooks.kernel_driver import CellResult
from support.notebooks.tutorials import who_said
from support.tiers import deep, deep_but

_NAME = "06_training_by_hand.ipynb"
_BOTH = [0, 1]
_BROADCASTS = ["torch.manual_seed", "mx.random.seed"]
_LOOPS = ["optimizer.step()\n    if", "adam.update("]


@pytest.fixture(scope="module")
def executed(tmp_path_factory) -> Done:
    pytest.importorskip("torch")
    pytest.importorskip("mlx.core")
    return _run_all(_NAME, tmp_path_factory.mktemp("training"))


@pytest.fixture(scope="module")
def saved() -> Done:
    cells = [cell for cell in _read(_FOLDER / _NAME).cells if cell.cell_type == "code"]
    return {cell.source: CellResult(outputs=cell.outputs) for cell in cells}, []


@pytest.fixture(params=deep_but(["saved"], ["executed", "saved"]))
def shown(request) -> Done:
    """What is asked of this run is asked of what the packaged notebook says, too."""
    return request.getfixturevalue(request.param)


def _off_by(done: Done, words: str) -> list[tuple[str, str]]:
    """The steps that a loop told of, with the error that it told."""
    found = re.findall(r"step +(\d+): off by (\S+) °C", _of(done, words).stdout)
    return list(dict.fromkeys(found))  # both ranks say it, mostly in one line


pytestmark = [pytest.mark.slow]


def test_the_saved_one_shows_a_whole_run():
    cells = [cell for cell in _read(_FOLDER / _NAME).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {kind for cell in cells for output in cell.outputs for kind in output.get("data", ())}
    assert kinds <= {"text/plain"}
    text = (_FOLDER / _NAME).read_text(encoding="utf-8")
    assert "/tmp" not in text
    assert "/work" not in text


def test_each_rank_has_its_days(shown):
    said = _of(shown, "seattle-weather").stdout
    assert who_said(said, "731 of 1461 days") == [0]
    assert who_said(said, "730 of 1461 days") == [1]


@pytest.mark.parametrize("words", _BROADCASTS)
def test_a_broadcast_makes_the_models_equal(shown, words):
    said = _of(shown, words).stdout
    assert who_said(said, "equal as they were made: False") == _BOTH
    assert who_said(said, "equal after the broadcast: True") == _BOTH


def test_the_sum_is_the_gradient_for_all_days(shown):
    said = _of(shown, "alone.backward()").stdout
    ((summed, alone),) = set(re.findall(r"loss (\S+), alone (\S+);", said))
    assert float(summed) == pytest.approx(float(alone), abs=2e-3)
    assert who_said(said, "the same gradients: True") == _BOTH


@pytest.mark.parametrize("words", _LOOPS)
def test_the_model_learns_and_stays_equal(shown, words):
    told = _off_by(shown, words)
    assert [int(step) for step, _ in told] == [1, 10, 50, 100]
    # The time of the year alone brings the standard deviation of 7.4 °C down to less than 5.
    errors = [float(error) for _, error in told]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 5
    assert who_said(_of(shown, words).stdout, "the same parameters on all ranks: True") == _BOTH


def test_ranks_go_on_together_after_a_stop(shown):
    stopped = _of(shown, "while True").error
    assert stopped.startswith("TimeoutError: the cell ran longer than 1 s; its ranks were stopped")
    mended = _of(shown, "had made").stdout
    made = {int(rank): int(n) for rank, n in re.findall(r"rank (\d) had made (\d+) steps", mended)}
    assert sorted(made) == _BOTH
    assert who_said(mended, f"now {made[0]} steps on all ranks, the same state: True") == _BOTH
    later = _of(shown, "20 steps later").stdout
    assert who_said(later, "20 steps later, the same state: True") == _BOTH


def test_mlx_ranks_take_all_from_rank_0(shown):
    said = _of(shown, "adam.state = ").stdout
    assert who_said(said, "step 100 on all ranks, the same state: True") == _BOTH


@deep
def test_the_saved_numbers_are_those_of_a_run(executed, saved):
    assert [_off_by(saved, words) for words in _LOOPS] == [
        _off_by(executed, words) for words in _LOOPS
    ]
    assert saved[0].keys() == executed[0].keys()
    assert executed[1] == []
