"""How a cell's output looks in IPython: whole lines with their rank, values labelled.

Append-only: each line is sent once, so the cost is that of the text. Nothing becomes HTML that a
rank did not display as HTML itself.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeVar

from IPython.display import publish_display_data

from phalanx.workspace import Display, OpenPrompt, Question, StreamName, format_ranks

from ._prompt import open_prompt

__all__ = ["NotebookView", "in_one_line"]

Error = TypeVar("Error", bound=BaseException)


def in_one_line(error: Error) -> Error:
    """Have IPython show an error without a traceback: its frames would be ours, not the user's.

    An error that says for itself how it looks (`CellError`) is left alone.
    """
    if not hasattr(error, "_render_traceback_"):
        text = str(error)
        line = f"{type(error).__name__}: {text}" if text else type(error).__name__
        error._render_traceback_ = lambda: [line]  # type: ignore[attr-defined]
    return error


class NotebookView:
    """Shows one cell in the shell it was typed into."""

    def __init__(self, shell: Any, size: int) -> None:
        self._shell = shell
        self._width = len(str(size - 1))

    def _label(self, rank: int) -> str:
        return f"[{rank:>{self._width}}]"

    def lines(self, rank: int, stream: StreamName, lines: Sequence[str]) -> None:
        """Print lines, each with its rank."""
        label = self._label(rank)
        target = sys.stderr if stream == "stderr" else sys.stdout
        target.write("".join(f"{label} {line}\n" for line in lines))
        target.flush()

    def display(self, event: Display) -> None:
        """Show a value as text with its rank, or a figure below a line that names it."""
        text = event.data.get("text/plain", "")
        is_rich = any(kind != "text/plain" for kind in event.data)
        label = self._label(event.rank) + (" Out:" if event.is_result else "")
        if not is_rich:
            separator = "\n" if "\n" in text else " "
            self._print(f"{label}{separator}{text}\n")
            return
        self._print(f"{label}\n")
        publish_display_data(event.data, event.metadata)

    def _print(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def ask(self, question: Question) -> OpenPrompt:
        """Ask once for all ranks that wait, and say which."""
        who = f"[{format_ranks(question.ranks)}]"
        sys.stdout.flush()
        sys.stderr.flush()
        return open_prompt(self._shell, f"{who} {question.prompt}", question.password)

    def notice(self, text: str) -> None:
        """Print a line of our own."""
        sys.stderr.write(f"phalanx: {text}\n")
        sys.stderr.flush()
