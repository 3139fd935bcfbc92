"""Run the cells of a tutorial as a reader does: type, and press stop."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
import psutil
from support.notebooks.kernel_driver import CellResult, KernelDriver
from support.places import ROOT

from phalanx.workspace import parse_ranks

FOLDER = ROOT / "notebooks"
# What the cells of a tutorial did, by their source, and which processes were left behind.
Done = tuple[dict[str, CellResult], list[list[str]]]

# What a reader types, by words of the cell that asks.
TYPED = {
    "Who is asking?": ["Ada"],
    "What is your name?": ["Ada", "42"],
    "getpass(": ["secret"],
    "breakpoint()": ["p mine", "@1 p len(mine)", "c"],
    "%distributed debug 2": ["p x", "u", "q"],
    "%distributed debug 1": ["p share", "u", "p parts", "q"],
}
# What is seen before the stop button is pressed, and by which ranks.
SEEN = {"waiting for rank 0": [1, 2, 3], "100 turns, and no end": [0, 1, 2, 3]}


def who_said(text: str, words: str) -> list[int]:
    """The ranks whose lines hold the words: equal lines come once, with all their ranks."""
    labels = [re.match(r"\[([\d,-]+)\]", line) for line in text.splitlines() if words in line]
    return sorted(rank for label in labels if label for rank in parse_ranks(label[1], 4))


def run_tutorial_cell(kernel: KernelDriver, cell: nbformat.NotebookNode) -> CellResult:
    tags = cell.metadata.get("tags", [])
    (typed,) = [t for words, t in TYPED.items() if words in cell.source] or [None]
    assert ("answers" in tags) == (typed is not None)
    running = kernel.submit(cell.source, stdin=typed)
    if "interrupt" in tags:

        def is_seen(so_far: CellResult) -> bool:
            return any(who_said(so_far.text, words) == who for words, who in SEEN.items())

        running.until(is_seen)
        kernel.interrupt()
    result = running.result(120)
    expected = "error" if "raises-exception" in tags else "ok"
    assert result.status == expected, f"{cell.source}\n\n{result.text}"
    return result


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def run_all(name: str, folder: Path) -> Done:
    """Run all cells of a tutorial in a folder."""
    done = {}
    # A runtime folder of its own: the ranks that it comes back to are the only ones there.
    with KernelDriver(cwd=folder, XDG_RUNTIME_DIR=str(folder), TMPDIR=str(folder)) as kernel:
        for cell in read(FOLDER / name).cells:
            if cell.cell_type == "code":
                done[cell.source] = run_tutorial_cell(kernel, cell)
        left = []
        for process in psutil.Process(kernel.pid).children(recursive=True):
            with suppress(psutil.ZombieProcess, psutil.NoSuchProcess):  # it has just ended
                left.append(process.cmdline())
    return done, left


def saved(path: Path) -> Done:
    """Return what the cells of a notebook showed when it was saved."""
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    return {cell.source: CellResult(outputs=cell.outputs) for cell in cells}, []


def of(done: Done, words: str) -> CellResult:
    """Return what the one cell with these words did."""
    (found,) = [result for source, result in done[0].items() if words in source]
    return found


def pictures(outputs: list[dict[str, Any]]) -> list[str]:
    kind = "image/svg+xml"
    return [output["data"][kind] for output in outputs if kind in output.get("data", {})]
