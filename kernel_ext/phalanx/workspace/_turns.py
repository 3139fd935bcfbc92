"""Whose turn it is on the ranks: one cell at a time, and what to say to who comes meanwhile.

It knows threads and words, nothing of what a cell does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from phalanx.errors import DistributedError
from phalanx.protocol import name_ranks

__all__ = ["CellRuns", "Turn", "Turns"]

_MOST_SHOWN = 60  # characters of a cell's first line


class CellRuns(DistributedError):
    """The ranks run something already; the text says what."""


@dataclass(frozen=True)
class Turn:
    """A cell that has the ranks."""

    name: str
    ranks: tuple[int, ...]
    what: str = "a cell"
    code: str = ""
    since_s: float = field(default_factory=time.monotonic)

    @property
    def text(self) -> str:
        """What runs where, in one line."""
        first = next((line.strip() for line in self.code.splitlines() if line.strip()), "")
        shown = first if len(first) <= _MOST_SHOWN else first[: _MOST_SHOWN - 1] + "…"
        lasted_s = time.monotonic() - self.since_s
        return (
            f"{self.what} runs already on {name_ranks(self.ranks)}"
            + (f", for {lasted_s:.0f} s" if lasted_s >= 1 else "")
            + (f": `{shown}`" if shown else "")
        )


class Turns:
    """Gives the ranks to one cell at a time; the lock guards both fields."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._turn: Turn | None = None
        self._is_taken = False
        self.n_ended = 0

    @property
    def turn(self) -> Turn | None:
        """What runs, waited for or left to itself."""
        return self._turn

    @property
    def is_taken(self) -> bool:
        """Whether somebody here waits for what runs."""
        return self._is_taken

    def leave(self, turn: Turn) -> None:
        """Note what runs although nobody waits for it: it can be interrupted, and be joined."""
        self._turn = turn

    def check(self) -> None:
        """Raise `CellRuns` if somebody has the ranks."""
        if self._is_taken:
            raise self._refusal()

    def _refusal(self) -> CellRuns:
        turn = self._turn
        # It may have ended just now.
        text = turn.text if turn is not None else "a cell ran already"
        return CellRuns(f"{text}; wait for it, or stop it with %distributed interrupt")

    @contextmanager
    def take_if_free(self, turn: Turn) -> Iterator[bool]:
        """Have the ranks meanwhile, unless somebody has them; whether that is so."""
        with self._changed:
            is_free = not self._is_taken
            if is_free:
                # From here on it can be interrupted: a rank remembers that until the cell comes.
                self._is_taken, self._turn = True, turn
        if not is_free:
            yield False
            return
        try:
            yield True
        finally:
            with self._changed:
                self._is_taken, self._turn = False, None
                self.n_ended += 1
                self._changed.notify_all()

    @contextmanager
    def take(self, turn: Turn) -> Iterator[None]:
        """Have the ranks meanwhile.

        Raises
        ------
        CellRuns
            Somebody has them.
        """
        with self.take_if_free(turn) as is_free:
            if not is_free:
                raise self._refusal()
            yield

    def wait(self, timeout_s: float) -> bool:
        """Wait until nobody has the ranks; False when time is over."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_taken, timeout_s)
