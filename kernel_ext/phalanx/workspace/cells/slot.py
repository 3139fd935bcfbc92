"""Give the ranks to one cell or call at a time."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from phalanx.errors import DistributedError
from phalanx.protocol import name_ranks

CHECK_S = 0.25  # how late a waiting cell notices a stop
_MOST_SHOWN = 60  # characters of a cell's first line


class CellRuns(DistributedError):
    """The ranks already run something; the text names it."""


@dataclass(frozen=True)
class RunningCell:
    """A cell that has the ranks, or waits for them."""

    name: str
    ranks: tuple[int, ...]
    what: str = "a cell"
    code: str = ""
    is_all: bool = False  # the user named no ranks: dead ones are left out
    since_s: float = field(default_factory=time.monotonic)

    @property
    def title(self) -> str:
        """Return the first line of the code, shortened; "" without code."""
        first = next((line.strip() for line in self.code.splitlines() if line.strip()), "")
        return first if len(first) <= _MOST_SHOWN else first[: _MOST_SHOWN - 1] + "…"

    @property
    def text(self) -> str:
        """Describe in one line what runs, and where."""
        lasted_s = time.monotonic() - self.since_s
        return (
            f"{self.what} runs already on {name_ranks(self.ranks)}"
            + (f", for {lasted_s:.0f} s" if lasted_s >= 1 else "")
            + (f": `{self.title}`" if self.code else "")
        )


class ExecutionSlot:
    """Gives the ranks to one cell at a time.

    The lock guards all fields.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.turn: RunningCell | None = None  # the cell that runs, even if nobody waits for it
        self.is_taken = False  # whether this process waits for a running cell
        self._line: deque[RunningCell] = deque()  # calls that wait, the next one first
        self.n_ended = 0

    def leave(self, turn: RunningCell) -> None:
        """Record a cell that runs although nobody waits for it.

        Such a cell can be interrupted and joined.
        """
        self.turn = turn

    def _say_why(self) -> str:
        turn = self.turn
        if turn is None and self._line:
            turn = self._line[0]
        # The cell may have ended just now.
        return turn.text if turn is not None else "a cell ran already"

    @contextmanager
    def take(
        self,
        turn: RunningCell,
        tell: Callable[[str], None] = lambda _text: None,
        check: Callable[[], object] | None = None,
    ) -> Iterator[None]:
        """Hold the ranks inside the context.

        With ``check`` wait in line for them: ``tell`` gets one line about the cell that is waited
        for, if there is one. ``check`` is called four times a second, and raises to end the waiting.

        Raises
        ------
        CellRuns
            Another cell has the ranks; only without ``check``.
        """
        if check is not None:
            self._wait_for(turn, tell, check)
        with self._changed:
            if not self._is_free_for(turn):
                way_out = "wait for it, or stop it with %distributed interrupt"
                msg = f"{self._say_why()}; {way_out}"
                raise CellRuns(msg)
            # From here on the cell can be interrupted: a rank remembers an interrupt until the
            # cell arrives.
            self.is_taken, self.turn = True, replace(turn, since_s=time.monotonic())
            if self._line:
                self._line.popleft()
        try:
            yield
        finally:
            with self._changed:
                self.is_taken, self.turn = False, None
                self.n_ended += 1
                self._changed.notify_all()

    def _is_free_for(self, turn: RunningCell) -> bool:
        return not self.is_taken and (not self._line or self._line[0] is turn)

    def line_up(self, turn: RunningCell) -> None:
        """Append a turn to the queue, for which `take` waits; idempotent."""
        with self._changed:
            if turn not in self._line:
                self._line.append(turn)

    def leave_line(self, turn: RunningCell) -> None:
        """Remove a turn from the queue; idempotent."""
        with self._changed:
            self._line = deque(one for one in self._line if one is not turn)
            self._changed.notify_all()

    def _wait_for(
        self, turn: RunningCell, tell: Callable[[str], None], check: Callable[[], object]
    ) -> None:
        self.line_up(turn)
        try:
            check()
            if not self._is_free_within(turn, 0.0):
                tell(f"{turn.what} waits: {self._say_why()}")
                while not self._is_free_within(turn, CHECK_S):
                    check()
                check()  # the cell before may have ended for the reason that ends this wait
        except BaseException:
            self.leave_line(turn)
            raise

    def _is_free_within(self, turn: RunningCell, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._is_free_for(turn), timeout_s)
