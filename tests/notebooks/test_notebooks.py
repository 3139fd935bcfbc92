"""Runs the tutorials top to bottom in a real kernel, typing and pressing stop where a reader would."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import nbformat
import numpy as np
import psutil
import pytest
from kernel_driver import CellResult, KernelDriver

from phalanx.workspace import parse_ranks

_FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
_NOTEBOOKS = sorted(_FOLDER.glob("*.ipynb"))


def _read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


@pytest.mark.parametrize("path", _NOTEBOOKS, ids=lambda p: p.stem)
def test_is_clean(path):
    notebook = _read(path)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)
    assert cells[0].source == "%load_ext phalanx"
    assert cells[-1].source == "%distributed stop"


def _who_said(text: str, words: str) -> list[int]:
    """The ranks whose lines hold the words: equal lines come once, with all their ranks."""
    labels = [re.match(r"\[([\d,-]+)\]", line) for line in text.splitlines() if words in line]
    return sorted(rank for label in labels if label for rank in parse_ranks(label[1], 4))


def _run(kernel: KernelDriver, cell: nbformat.NotebookNode) -> CellResult:
    tags = cell.metadata.get("tags", [])
    running = kernel.submit(cell.source, stdin=["Ada"] if "answers" in tags else None)
    if "interrupt" in tags:
        running.until(lambda so_far: _who_said(so_far.text, "waiting for rank 0") == [1, 2, 3])
        kernel.interrupt()
    result = running.result(120)
    expected = "error" if "raises-exception" in tags else "ok"
    assert result.status == expected, f"{cell.source}\n\n{result.text}"
    return result


@pytest.fixture(scope="module")
def first_ranks(tmp_path_factory):
    """What the cells of the first tutorial did, by their source, and what was left behind."""
    done = {}
    with KernelDriver(cwd=tmp_path_factory.mktemp("work")) as kernel:
        for cell in _read(_FOLDER / "01_first_ranks.ipynb").cells:
            if cell.cell_type == "code":
                done[cell.source] = _run(kernel, cell)
        left = [p.cmdline() for p in psutil.Process(kernel.pid).children(recursive=True)]
    return done, left


def _of(first_ranks, words: str) -> CellResult:
    (found,) = [result for source, result in first_ranks[0].items() if words in source]
    return found


pytestmark = pytest.mark.slow


def test_every_rank_says_who_it_is(first_ranks):
    text = _of(first_ranks, "I am rank").text
    assert all(_who_said(text, f"I am rank {rank} of 4") == [rank] for rank in range(4))


def test_some_ranks_only(first_ranks):
    text = _of(first_ranks, "secret").text
    assert all(value in text for value in ("200", "300"))
    assert "100" not in text


def test_the_sum_is_numpys(first_ranks):
    with (_FOLDER / "data" / "seattle-weather.csv").open(encoding="utf-8") as file:
        degrees = np.array([float(day["temp_max_c"]) for day in csv.DictReader(file)])
    said = (
        f"{len(degrees)} days, {degrees.mean():.2f} °C on average, "
        f"standard deviation {degrees.std():.2f} °C"
    )
    assert _who_said(_of(first_ranks, "standard deviation").text, said) == [0, 1, 2, 3]


def test_the_question_is_asked_once(first_ranks):
    cell = _of(first_ranks, "Who is asking")
    assert len(cell.prompts) == 1
    assert "Who is asking?" in cell.prompts[0].text
    assert all(f"hello Ada, says rank {rank}" in cell.text for rank in range(4))


def test_an_error_names_its_rank(first_ranks):
    cell = _of(first_ranks, "does not like this cell")
    assert _who_said(cell.stdout, "fine here") == [0, 1, 3]
    assert "rank 2 does not like this cell" in cell.text


def test_a_mismatch_names_both_calls(first_ranks):
    text = _of(first_ranks, "3 if rank == 0 else 4").text
    assert "CollectiveMismatch" in text
    assert "all_sum" in text


def test_stop_loses_nothing(first_ranks):
    assert "KeyboardInterrupt" in _of(first_ranks, "while rank == 0").text
    still = _of(first_ranks, "still here").text
    assert _who_said(still, "still here, Ada: 4 ranks") == [0, 1, 2, 3]


@pytest.mark.parametrize("magic", ["topology", "bandwidth"])
def test_pictures(first_ranks, magic):
    assert "image/svg+xml" in _of(first_ranks, f"%distributed {magic}").mimes()


def test_the_sweep_is_right(first_ranks):
    text = _of(first_ranks, "%distributed bandwidth").text
    rows = [line.split() for line in text.splitlines() if " all_sum " in f" {line} "]
    measured = [row for row in rows if row[0].isdigit()]
    assert measured
    assert all(row[-1] == "0" for row in measured)


def test_nothing_is_left(first_ranks):
    assert first_ranks[1] == []
