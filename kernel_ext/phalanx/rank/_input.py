"""What a cell reads: waiting for lines of its log, asking for those that nobody typed yet.

It knows cells, threads and a way to ask; nothing of kernels, sockets or front ends. Which entry
a read takes is `_log`'s rule.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from phalanx.distributed import Loss
from phalanx.errors import RankFailure
from phalanx.protocol import LineNeed, TypedLine

from ._log import LogOfRank, Missing

__all__ = ["DebuggerStopped", "NoCellRuns", "TypedLines"]

# A wait wakes this often so that an interrupt of the main thread is seen at once (a Condition's
# wait in the main thread returns on a signal only when it has a timeout on some platforms), and
# the loss of a rank as soon as in an operation. A look costs 15 us.
POLL_S = 0.04
# A connection that breaks takes along what is on its way, a need or a line: who waits says so again
# after a second, and each time after twice as long.
AGAIN_S, MOST_S = 1.0, 30.0


class NoCellRuns(RuntimeError):
    """A line was asked for between cells, when nobody is there to type one."""


class DebuggerStopped(BaseException):
    """The cell was stopped at a debugger's prompt.

    Not a KeyboardInterrupt: pdb takes that for "cancel the command" and asks again.
    """


class _Read(NamedTuple):
    """One call of `TypedLines.next_line`: what it reads, and the loss that is no news to it."""

    cell: str
    is_command: bool
    heard_epoch: int


def _nothing() -> None:
    """No rank is ever lost."""


class TypedLines:
    """The lines typed for the cell that runs here, read by its threads.

    Who reads data gets the loss of a rank as an error, unless an operation has raised it before:
    a person need not answer first. A debugger goes on: what it looks at may be why.

    Entries come on another thread (`feed`) than the readers' (`next_line`), and may overtake the
    beginning of their cell. One lock guards all. Readers of a kind (data, commands) queue up, so
    that at most one need of each kind is open; a reader waits for its turn, an entry, a refusal,
    the stop or the end of the cell: each of these ends every wait.
    """

    def __init__(
        self,
        rank: int,
        ask: Callable[[LineNeed], None],
        withdraw: Callable[[str], None] = lambda cell: None,
        loss: Callable[[], Loss | None] = _nothing,
    ) -> None:
        self._rank = rank
        self._ask = ask
        self._withdraw = withdraw
        self._loss = loss
        self._condition = threading.Condition()
        self._cell = ""
        self._logs: dict[str, LogOfRank] = {}
        self._refusals: dict[str, str] = {}
        self._stopped: set[str] = set()
        self._readers: dict[bool, int] = {}  # by is_command: the thread whose turn it is
        self._lost: frozenset[int] = frozenset()  # ranks that the cell was begun without
        self._heard: set[int] = set()  # epochs whose loss a read of this cell has raised
        self._needs: dict[bool, LineNeed] = {}  # by is_command: what it has asked for

    def begin(self, cell: str, lost: Iterable[int] = ()) -> None:
        """Start a new log for a cell (lines that overtook it are kept).

        ``lost`` are the ranks that it was begun without.
        """
        with self._condition:
            self._cell = cell
            self._lost, self._heard = frozenset(lost), set()
            self._logs = {cell: self._logs.get(cell, LogOfRank(self._rank))}
            self._refusals = {c: text for c, text in self._refusals.items() if c == cell}
            self._stopped &= {cell}
            self._condition.notify_all()

    def end(self) -> None:
        """Forget the log with its cell; who still reads gets the end of input."""
        with self._condition:
            self._cell = ""
            self._logs.clear()
            self._refusals.clear()
            self._condition.notify_all()

    @property
    def cell(self) -> str:
        """The cell that runs; empty between cells."""
        return self._cell

    def repeat_needs(self) -> None:
        """Ask again for what is asked for already: a new client has not heard of it."""
        with self._condition:
            for need in self._needs.values():
                self._ask(need)

    def typed(self) -> list[tuple[int, TypedLine]]:
        """Return the entries of the running cell's log that have come here."""
        with self._condition:
            return self._logs[self._cell].entries if self._cell else []

    def feed(self, cell: str, index: int, entry: TypedLine) -> None:
        """Take an entry of a cell's log."""
        with self._condition:
            if cell not in self._logs:
                self._logs[cell] = LogOfRank(self._rank)
            self._logs[cell].feed(index, entry)
            self._condition.notify_all()

    def refuse(self, cell: str, message: str) -> None:
        """Nobody can be asked: every read of this cell fails with this text."""
        with self._condition:
            self._refusals[cell] = message
            self._condition.notify_all()

    def stop(self, cell: str) -> None:
        """Let the main thread read no more in this cell; call it before the interrupt itself."""
        with self._condition:
            self._stopped.add(cell)
            self._condition.notify_all()

    def next_line(
        self, prompt: str = "", *, password: bool = False, is_command: bool = False
    ) -> str:
        """Return the next line for this rank, asking for it where it is not there yet.

        Raises
        ------
        EOFError
            The end of input was typed, or the cell has ended meanwhile.
        NoCellRuns, RuntimeError
            No cell runs, or the front end cannot ask.
        KeyboardInterrupt, DebuggerStopped
            The cell was stopped; the latter where a debugger asked.
        RankFailure
            A rank was lost, of which nothing has told yet; not where a debugger asks.
        """
        me = threading.get_ident()
        with self._condition:
            if not self._cell:
                msg = "input() works while a cell runs"
                raise NoCellRuns(msg)
            read = _Read(self._cell, is_command, self._heard_epoch())
            self._check_stop(read)
            try:
                while self._readers.setdefault(is_command, me) != me:
                    self._wait(read)
                return self._next(read, prompt, password)
            except KeyboardInterrupt:
                if is_command:
                    raise DebuggerStopped from None
                raise
            finally:
                if self._readers.get(is_command) == me:
                    del self._readers[is_command]
                    self._needs.pop(is_command, None)
                    self._condition.notify_all()

    def _next(self, read: _Read, prompt: str, password: bool) -> str:
        cell, is_command = read.cell, read.is_command
        is_asked = False
        again_s = after_s = AGAIN_S
        try:
            while isinstance(found := self._logs[cell].read(is_command=is_command), Missing):
                if cell in self._refusals:
                    raise RuntimeError(self._refusals[cell])
                self._check_loss(read)
                if not is_asked:
                    need = LineNeed(cell, found.index, prompt, password, is_command)
                    self._needs[is_command] = need
                    self._ask(need)
                    is_asked = True
                    again_s = time.monotonic() + after_s
                elif time.monotonic() >= again_s:
                    self._ask(msgspec.structs.replace(need, index=found.index, is_again=True))
                    after_s = min(2 * after_s, MOST_S)
                    again_s = time.monotonic() + after_s
                self._wait(read)
        except RankFailure:
            if is_asked:
                self._withdraw(cell)
            raise
        return found

    def _wait(self, read: _Read) -> None:
        """Wait for news; the lock is held before and after."""
        was_told = self._condition.wait(POLL_S)
        if self._cell != read.cell:
            raise EOFError
        # The interrupt comes as a signal right after `stop`; only where it raises nothing (in a
        # cell that awaits, ipykernel cancels a task instead) is the flag itself the news.
        if not was_told:
            self._check_stop(read)
            self._check_loss(read)

    def _check_stop(self, read: _Read) -> None:
        if read.cell in self._stopped and threading.current_thread() is threading.main_thread():
            raise DebuggerStopped if read.is_command else KeyboardInterrupt

    def _heard_epoch(self) -> int:
        """Return the epoch whose loss is no news to a read that begins now; -1 for none."""
        loss = self._loss()
        if loss is None or not (loss.is_told or loss.epoch in self._heard):
            return -1
        return loss.epoch

    def _check_loss(self, read: _Read) -> None:
        if read.is_command:
            return
        loss = self._loss()
        if loss is None or loss.epoch == read.heard_epoch or loss.error.rank in self._lost:
            return
        self._heard.add(loss.epoch)
        raise loss.error
