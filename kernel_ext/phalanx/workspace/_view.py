"""Where a cell's output goes and who answers its questions: the seam to a front end.

The magics have one for notebooks, `phalanx bench` and tests have others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ._events import Clear, Display
from ._lines import StreamName
from ._questions import Question

__all__ = ["CannotAsk", "OpenPrompt", "QuietView", "View"]


class CannotAsk(Exception):
    """This front end has no way to ask a person; the text says so in a user's words."""


class OpenPrompt(Protocol):
    """A question that a person has in front of them."""

    def poll(self, timeout_s: float) -> tuple[str | None] | None:
        """``(line,)`` once it was typed (None in it: the end of input), None while it was not."""

    def close(self) -> None:
        """Take the question back."""


class View(Protocol):
    """What a front end does with a cell's events; called on the thread that runs the cell."""

    def begin(self, ranks: tuple[int, ...]) -> None:
        """Learn on which ranks the cell runs; called once, before anything else."""

    @property
    def shows_status(self) -> bool:
        """Whether `status` shows anything; where it does not, nothing is asked for it."""

    @property
    def shows_bars(self) -> bool:
        """Whether `bars` are seen while the cell runs; where not, nothing is held for them."""

    def lines(self, stream: StreamName, lines: Sequence[tuple[tuple[int, ...], str]]) -> None:
        """Show whole lines, each with the ranks that printed it."""

    def bars(self, bars: Mapping[int, str]) -> None:
        """Show progress by rank, a line or some, in the place of what was shown before."""

    def display(self, ranks: tuple[int, ...], event: Display) -> None:
        """Show a figure, or a last value that these ranks have in common."""

    def clear(self, event: Clear) -> None:
        """Take back the figures of a rank."""

    def refresh(self, now_s: float) -> float | None:
        """Draw what was kept back, and say when to be called again; infinity: draw all of it."""

    def ask(self, question: Question) -> OpenPrompt:
        """Put a question to a person; `CannotAsk` where there is nobody."""

    def notice(self, text: str) -> None:
        """Show a line of our own."""

    def status(self, text: str) -> None:
        """Show how a long cell stands in the place of what was said before; empty: nothing."""


class QuietView:
    """Shows nothing and cannot ask: for code that runs cells without a person."""

    shows_status = False
    shows_bars = False

    def begin(self, ranks: tuple[int, ...]) -> None:
        """Do nothing."""

    def lines(self, stream: StreamName, lines: Sequence[tuple[tuple[int, ...], str]]) -> None:
        """Drop them."""

    def bars(self, bars: Mapping[int, str]) -> None:
        """Drop them."""

    def display(self, ranks: tuple[int, ...], event: Display) -> None:
        """Drop it."""

    def clear(self, event: Clear) -> None:
        """Do nothing: nothing was shown."""

    def refresh(self, now_s: float) -> float | None:
        """Draw nothing, and ask for no other time."""
        return None

    def ask(self, question: Question) -> OpenPrompt:
        """Refuse."""
        msg = f"nobody can answer {question.prompt!r} here: this cell runs without a front end"
        raise CannotAsk(msg)

    def notice(self, text: str) -> None:
        """Drop it."""

    def status(self, text: str) -> None:
        """Drop it."""
