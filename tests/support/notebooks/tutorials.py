"""Run the cells of a tutorial as a reader does: type, and press stop."""

from __future__ import annotations

import re

import nbformat
from support.notebooks.kernel_driver import CellResult, KernelDriver

from phalanx.workspace import parse_ranks

__all__ = ["run_tutorial_cell", "who_said"]

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
