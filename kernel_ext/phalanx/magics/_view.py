"""How a cell's output looks in IPython: whole lines with their rank, values labelled.

Append-only: each line is sent once, so the cost is that of the text. Nothing becomes HTML that a
rank did not display as HTML itself.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from IPython.display import publish_display_data

from phalanx.workspace import Clear, Display, OpenPrompt, Question, StreamName, format_ranks

from ._figures import Figures
from ._prompt import TerminalPrompt, open_prompt
from ._status import status_for

__all__ = ["NotebookView", "in_one_line"]

Label = Literal["rank", "none"]
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

    def __init__(self, shell: Any, *, label: Label = "rank") -> None:
        self._shell = shell
        self._label = label
        self._figures = Figures()
        self._bars_id = ""
        self._status = status_for(shell)
        self._prompt: OpenPrompt | None = None

    def _prefix(self, ranks: tuple[int, ...]) -> str:
        return "" if self._label == "none" else f"[{format_ranks(ranks)}] "

    def lines(self, stream: StreamName, lines: Sequence[tuple[tuple[int, ...], str]]) -> None:
        """Print lines, each with its ranks."""
        self._status.lift()
        target = sys.stderr if stream == "stderr" else sys.stdout
        target.write("".join(f"{self._prefix(ranks)}{line}\n" for ranks, line in lines))
        target.flush()

    def bars(self, bars: Mapping[int, str]) -> None:
        """Draw progress bars in a place of their own, which is updated."""
        if not hasattr(self._shell, "kernel"):
            return  # a terminal has no such place; the last state of a bar is printed as a line
        text = "\n".join(f"{self._prefix((rank,))}{bar}" for rank, bar in bars.items())
        is_update = bool(self._bars_id)
        self._bars_id = self._bars_id or str(uuid.uuid4())
        transient = {"display_id": self._bars_id}
        publish_display_data({"text/plain": text}, {}, transient=transient, update=is_update)

    def display(self, ranks: tuple[int, ...], event: Display) -> None:
        """Show a value as text with its ranks, or a figure below a line that names them."""
        self._status.lift()
        text = event.data.get("text/plain", "")
        label = self._prefix(ranks) + ("Out:" if event.is_result else "")
        if all(kind == "text/plain" for kind in event.data) and not event.display_id:
            separator = "\n" if "\n" in text else " " * label.endswith(":")
            self._print(f"{label}{separator}{text}\n")
            return
        if not self._figures.has_place(event) and label.strip():
            self._print(f"{label.strip()}\n")
        self._figures.show(event)

    def clear(self, event: Clear) -> None:
        """Take back the figures of a rank; the next one comes in their place."""
        self._figures.clear(event.rank, wait=event.wait)

    def _print(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def ask(self, question: Question) -> OpenPrompt:
        """Ask once for all ranks that wait, and say which."""
        who = f"[{format_ranks(question.ranks)}]"
        sys.stdout.flush()
        sys.stderr.flush()
        self._status.lift()
        self._prompt = open_prompt(self._shell, f"{who} {question.prompt}", question.password)
        return self._prompt

    def notice(self, text: str) -> None:
        """Print a line of our own."""
        self._status.lift()
        sys.stderr.write(f"phalanx: {text}\n")
        sys.stderr.flush()

    @property
    def shows_status(self) -> bool:
        """Whether there is a place for a status line."""
        return self._status.is_shown

    def status(self, text: str) -> None:
        """Show how a long cell stands; in a terminal not on the line where a person types."""
        if isinstance(self._prompt, TerminalPrompt) and self._prompt.is_open:
            return
        self._status.show(text)
