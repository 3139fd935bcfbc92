"""Begin, hold, interrupt and end cells in a rank.

During a stop `HeldCell` holds the rank before its next operation;
`phalanx.workspace.cells.stopping` decides when the rank goes on.
"""

from __future__ import annotations

import asyncio
import hashlib
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Literal

from phalanx.distributed.bootstrap.progress import (
    Progress,
    drop_hold,
    hold,
    let_in,
    progress,
    release,
)
from phalanx.protocol import Step, StopReport

CELL = "<cell "  # how the file names of cells begin
# Signal that only interrupts a wait: Python code does not see it, and programs that are started
# from here ignore it unless they install a handler.
NUDGE = signal.SIGURG


def cell_name(transformed_code: str) -> str:
    """Return the file name of a cell, from its code for Python."""
    digest = hashlib.sha256(transformed_code.encode(errors="replace")).hexdigest()
    return f"{CELL}{digest[:8]}>"


class InterruptGate:
    """Deliver an interrupt once, and only to its target cell.

    An interrupt may come before the cell has begun (the cell waits in the shell's queue) or after
    it has ended. The main thread calls `begin` and `end`; any other thread calls `interrupt`. One
    lock makes the test for the running cell and the signal one atomic step. The caller of `end`
    must have replaced Python's SIGINT handler before, so that a signal sent just before has no
    effect.

    A signal may come between the interpreter's last check for signals and a wait in C. This is
    likely, because the main thread releases the GIL there and our thread then runs. Python notes
    such a signal, but the wait does not end: `time.sleep(60)` sleeps on. `nudge` therefore
    signals the main thread until it has checked for signals.

    Make this object on the main thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._main_thread = threading.main_thread().ident or 0
        self._running: str | None = None
        self._stopped: set[str] = set()
        self._is_sent = False  # SIGINT was sent to the cell that runs
        self._has_looked = True  # the main thread has checked for signals since then
        self._runs_code = self._is_closed = False
        signal.signal(NUDGE, self._on_nudge)

    def _on_nudge(self, number: int, frame: object) -> None:
        # Python runs handlers by signal number: SIGINT's, a smaller number, has run before.
        self._has_looked = True

    @property
    def running(self) -> str | None:
        """Return the name of the cell that runs, or None."""
        return self._running

    def begin(self, cell: str, *, is_callback: bool = False) -> None:
        """Enter the cell.

        ``is_callback``: it may run before a cell that was stopped and has not begun.

        Raises
        ------
        KeyboardInterrupt
            The cell was interrupted before it began, or the rank is ending.
        """
        with self._lock:
            self._running = cell
            self._is_sent = self._runs_code = False
            was_stopped = cell in self._stopped or self._is_closed
            if not is_callback:
                self._stopped.clear()
        if was_stopped:
            raise KeyboardInterrupt

    def begin_code(self) -> None:
        """Begin the user's code; only the first call in a cell counts.

        An interrupt since `begin` may have been swallowed by code that runs before the user's, such
        as IPython's callbacks. In this case the cell is interrupted again.
        """
        with self._lock:
            is_lost = self._is_sent and not self._runs_code
            self._runs_code = True
        if is_lost:
            signal.raise_signal(signal.SIGINT)

    def end(self) -> bool:
        """Leave the cell; return whether the rank is ending."""
        with self._lock:
            self._running = None
            return self._is_closed

    def close(self) -> str | None:
        """Let no cell begin any more; return the cell that runs.

        Without a cell, a request of another client that runs is interrupted.
        """
        with self._lock:
            self._is_closed = True
            if self._running is None:  # between requests the rank ignores the signal
                signal.pthread_kill(self._main_thread, signal.SIGINT)
            return self._running

    def interrupt(self, cell: str) -> None:
        """Raise KeyboardInterrupt in the cell, now or when the cell begins."""
        with self._lock:
            if self._running == cell:
                self._is_sent, self._has_looked = True, False
                # Signal the main thread itself: only then do its waits in C end at once.
                signal.pthread_kill(self._main_thread, signal.SIGINT)
            else:
                self._stopped.add(cell)

    def is_blocked(self, cell: str) -> bool:
        """Whether the main thread has not yet seen the cell's interrupt."""
        with self._lock:
            return self._running == cell and self._is_sent and not self._has_looked

    def is_stopped(self) -> bool:
        """Whether the running cell was interrupted and does not go on."""
        cell = self._running
        return cell is not None and self._is_sent and not self.has_swallowed(cell)

    def has_swallowed(self, cell: str) -> bool:
        """Whether the cell's code goes on after it has caught an interrupt.

        False while the code handles the interrupt, as in a ``finally`` that saves, and while it
        awaits: the exceptions that a waiting coroutine handles cannot be seen.
        """
        with self._lock:
            if self._running != cell or not (self._is_sent and self._has_looked):
                return False
        if _cell_frame(sys._current_frames().get(self._main_thread)) is None:
            return False
        seen: set[int] = set()
        handled = _handled_by(self._main_thread)
        while handled is not None and id(handled) not in seen:
            if isinstance(handled, (KeyboardInterrupt, asyncio.CancelledError)):
                return False
            seen.add(id(handled))
            handled = handled.__cause__ or handled.__context__
        return True

    def nudge(self, cell: str) -> bool:
        """End a wait that the main thread began without seeing `interrupt`.

        Returns
        -------
        bool
            Whether to call this again in a moment: the main thread has not checked for signals yet.
        """
        with self._lock:
            if self._running != cell or self._has_looked:
                return False
            signal.pthread_kill(self._main_thread, NUDGE)
            return True


def from_cell(traceback: TracebackType | None) -> TracebackType | None:
    """Drop a traceback's frames before its first frame in a cell."""
    while traceback is not None and not traceback.tb_frame.f_code.co_filename.startswith(CELL):
        traceback = traceback.tb_next
    return traceback


def runs_cell() -> bool:
    """Whether the calling thread runs the code of a cell."""
    return _cell_frame(sys._getframe()) is not None


def _cell_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of a cell, from this frame on outwards."""
    while frame is not None and not frame.f_code.co_filename.startswith(CELL):
        frame = frame.f_back
    return frame


def _handled_by(thread: int) -> BaseException | None:
    found = sys._current_exceptions().get(thread)
    return found[1] if isinstance(found, tuple) else found  # a tuple until Python 3.12


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore SIGINT in this block; an interrupt meanwhile is lost.

    Used while a failed cell's error is shown. When one rank was stopped in an operation, the
    others fail, and each may be stopped while it shows its error. IPython would swallow such a stop
    and print that it did.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:  # the signal came just before
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class HeldCell:
    """Hold the cell that runs before its next operation.

    The main thread calls `begin` and `end`, the control thread all other methods.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._before: Progress | None = None  # progress before the cell
        self._seen: Progress | None = None  # progress when the cell was last seen in an operation

    def begin(self) -> None:
        """Save the rank's progress before the cell."""
        release()
        self._before = progress()

    def end(self) -> None:
        """Stop to hold the cell."""
        release()

    def hold(self) -> bool:
        """Hold the cell; False if it has called no operation."""
        if not self._has_called(progress()):
            return False
        self._seen = None
        hold()
        return True

    def let_in(self, steps: Iterable[Step]) -> None:
        """Let the cell into operations that other ranks have begun."""
        by_epoch: dict[int, list[tuple[int, int, bool, int]]] = {}
        for step in steps:
            if self._rank in {step.source, step.target} or step.source < 0:
                is_recv = step.target == self._rank
                peer = step.source if is_recv else step.target
                found = (step.group, peer, is_recv, step.number)
                by_epoch.setdefault(step.epoch, []).append(found)
        for epoch, begun in by_epoch.items():
            let_in(epoch, begun)

    def report(self) -> StopReport:
        """Return the rank's progress, and whether the rank is held."""
        found = self._look()
        if found is None:
            return StopReport("runs")
        held = found.held
        upcoming = None
        if held is not None:
            called = held.called
            lane = held.group, called.peer, called.op == "recv"
            upcoming = self._step(found.epoch, lane, called.number)
        # The stop of another rank may end this operation, and with it the cell, before our own.
        place = "" if found.current is None else f"in {found.current}"
        return self._report(found, "runs" if held is None else "held", upcoming, place)

    def stop(self) -> StopReport:
        """Drop the hold before an interrupt; return where the cell is.

        A cell that is held now stays held until the interrupt has come.
        """
        found = self._look()
        if found is None:
            return StopReport("stopped", place=_place(None))
        report = self._report(found, "stopped", None, _place(found))
        drop_hold()
        return report

    def _look(self) -> Progress | None:
        """Return the rank's progress.

        An operation that has just ended, because another rank was interrupted in it first, still
        counts as the current one.
        """
        found, seen = progress(), self._seen
        if found is None:
            return None
        if found.current is not None:
            self._seen = found
        elif seen is not None and found.last == seen.last:
            found = found._replace(current=seen.current)
        return found

    def _report(
        self,
        found: Progress,
        state: Literal["runs", "held", "stopped"],
        upcoming: Step | None,
        place: str = "",
    ) -> StopReport:
        before = self._begun_before(found)
        begun = tuple(
            self._step(found.epoch, lane, number)
            for lane, number in sorted(found.begun.items())
            if lane[1] < 0 or number != before.get(lane, 0)
        )
        has_called = self._has_called(found)
        return StopReport(state, begun, upcoming, found.is_open, has_called, place)

    def _has_called(self, found: Progress | None) -> bool:
        """Whether the cell has begun an operation, or one still runs."""
        if found is None:
            return False
        before = self._begun_before(found)
        return found.is_open or any(
            number > before.get(lane, 0) for lane, number in found.begun.items()
        )

    def _begun_before(self, found: Progress) -> dict[tuple[int, int, bool], int]:
        before = self._before
        return before.begun if before is not None and before.epoch == found.epoch else {}

    def _step(self, epoch: int, lane: tuple[int, int, bool], number: int) -> Step:
        group, peer, is_recv = lane
        ends = (-1, -1) if peer < 0 else (peer, self._rank) if is_recv else (self._rank, peer)
        return Step(epoch, group, *ends, number)


def _place(found: Progress | None) -> str:
    """Describe the main thread's place, as a text after "stopped"."""
    if found is not None and found.held is not None:
        return f"before {found.held.called}"
    if found is not None and found.current is not None:
        return f"in {found.current}"
    frame = _cell_frame(sys._current_frames().get(threading.main_thread().ident or 0))
    words = [] if frame is None else [f"at cell line {frame.f_lineno}"]
    if found is not None and found.last is not None:
        words.append(f"after {found.last}")
    return " ".join(words)
