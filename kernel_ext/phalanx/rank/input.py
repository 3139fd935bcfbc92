"""Provide `input()` and ``sys.stdin`` in a rank.

`TypedLines` reads the lines typed for a cell, by the rule below. `CellInput` is ``sys.stdin``.

The rule of typed input (`RankInputLog`)
----------------------------------------
1. A cell has one log. The workspace appends each typed line once, as entry 0, 1, 2 …, and sends it
   to every rank. So all ranks have the same log, each up to some entry.
2. An entry has a kind and a set of ranks. *Data* was typed where a program reads (`input`,
   `getpass`, ``sys.stdin``); a *command* was typed at a prompt of an interpreter (pdb,
   `code.interact`). ``@2 …`` addresses rank 2 alone. Without an address, data is for every rank,
   also one that reads later; a command is for the ranks that wait at that prompt.
3. A rank reads data and commands separately, with a position for each. A read takes the first
   entry at or after the position that has its kind and is for this rank, and the position moves
   behind that entry. If there is none yet, the read waits and asks.

Consequences: The k-th read of data on a rank returns the k-th line of data for this rank, at any
time: a slow rank gets the same lines as the fast ones. A command is only for ranks that wait for a
command when it is typed. So a rank that comes to its breakpoint later does not replay old commands
but waits for its own. A command for pdb never answers an `input`, nor the reverse. The end of input
ends all data of its ranks; at a debugger it is one command (the debugger quits).
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.distributed.bootstrap.supervised import Loss
from phalanx.errors import RankFailure
from phalanx.protocol import LineNeed, LineNotNeeded, TypedLine

# Poll interval of a wait. An interrupt of the main thread is then seen at once: on some platforms
# a Condition's wait in the main thread returns on a signal only when it has a timeout. The loss of
# a rank is seen as soon as in an operation. A poll costs 15 us.
POLL_S = 0.04


class NoCellRuns(RuntimeError):
    """Report a read between cells, when no line can be typed."""


class DebuggerStopped(BaseException):
    """Stop a cell at a debugger's prompt.

    Not a KeyboardInterrupt: pdb takes that for "cancel the command" and asks again.
    """


class _Read(NamedTuple):
    """One call of `TypedLines.next_line`.

    ``known_epoch`` is the epoch with a loss that this read must not raise again.
    """

    cell: str
    is_command: bool
    known_epoch: int


@dataclass(frozen=True)
class MissingInput:
    """Result of a read before entry ``index`` has come."""

    index: int


class RankInputLog:
    """One rank's copy of a cell's log, with two positions.

    Each kind of entry has a position. ``refusal`` is the reason why no user can be asked.

    Examples
    --------
    >>> log = RankInputLog(1)
    >>> log.read(is_command=False)
    MissingInput(index=0)
    >>> log.feed(TypedLine("n", ranks=(0,), is_command=True))
    >>> log.feed(TypedLine("ann"))
    >>> log.read(is_command=False), log.read(is_command=True)
    ('ann', MissingInput(index=2))
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._entries: list[TypedLine] = []
        self._places = {False: 0, True: 0}  # by is_command
        self.refusal: str | None = None
        self.is_stopped = False

    def feed(self, entry: TypedLine) -> None:
        """Add the next entry of the log."""
        self._entries.append(entry)

    def read(self, *, is_command: bool) -> str | MissingInput:
        """Take the next line of this kind for this rank.

        Raises
        ------
        EOFError
            The end of input: for data from now on, for a command this time only.
        """
        for place in range(self._places[is_command], len(self._entries)):
            entry = self._entries[place]
            if entry.is_for(self._rank, is_command):
                self._places[is_command] = place + (entry.line is not None or is_command)
                if entry.line is None:
                    raise EOFError
                return entry.line
        self._places[is_command] = len(self._entries)
        return MissingInput(len(self._entries))


class TypedLines:
    """Hand the lines typed for the running cell to its threads.

    If a rank dies, a waiting read of data raises `RankFailure` at once, so that the user need not
    answer first. A loss that an operation has raised before is not raised again. A read of a
    debugger goes on: the user may be looking for the cause of the loss.

    Entries come on another thread (`feed`) than the readers' (`next_line`), and may arrive before
    their cell begins. One lock guards all fields. Readers of a kind (data, commands) queue up, so
    that at most one need of each kind is open. A reader waits for its turn, an entry, a refusal,
    the stop or the end of the cell: each of these ends every wait.
    """

    def __init__(
        self,
        rank: int,
        ask: Callable[[LineNeed | LineNotNeeded], None],
        loss: Callable[[], Loss | None] = lambda: None,
    ) -> None:
        self._rank = rank
        self._ask = ask
        self._loss = loss
        self._condition = threading.Condition()
        self._cell = ""
        self._logs: dict[str, RankInputLog] = {}  # by cell
        self._readers: dict[bool, int] = {}  # by is_command: the thread that reads now
        self._lost: frozenset[int] = frozenset()  # ranks that were lost before the cell began
        self._raised: set[int] = set()  # epochs with a loss that a read of this cell has raised

    def begin(self, cell: str, lost: Iterable[int] = ()) -> None:
        """Start a cell's log; keep lines that came early.

        ``lost`` are the ranks that were lost before the cell began.
        """
        with self._condition:
            self._cell = cell
            self._lost, self._raised = frozenset(lost), set()
            self._logs = {cell: self._log_of(cell)}
            self._condition.notify_all()

    def end(self) -> None:
        """Drop the log at the cell's end; waiting readers get EOFError."""
        with self._condition:
            self._cell = ""
            self._logs.clear()
            self._condition.notify_all()

    @property
    def main_thread_reads(self) -> bool:
        """Whether the main thread waits for data or a debugger's command."""
        return threading.main_thread().ident in self._readers.values()

    def feed(self, cell: str, entry: TypedLine) -> None:
        """Add an entry to a cell's log."""
        with self._condition:
            self._log_of(cell).feed(entry)
            self._condition.notify_all()

    def refuse(self, cell: str, message: str) -> None:
        """Fail this cell's reads with ``message``: no user can be asked."""
        with self._condition:
            self._log_of(cell).refusal = message
            self._condition.notify_all()

    def stop(self, cell: str) -> None:
        """Stop the main thread's reads in this cell; call before the interrupt."""
        with self._condition:
            self._log_of(cell).is_stopped = True
            self._condition.notify_all()

    def _log_of(self, cell: str) -> RankInputLog:
        return self._logs.setdefault(cell, RankInputLog(self._rank))

    def next_line(
        self, prompt: str = "", *, password: bool = False, is_command: bool = False
    ) -> str:
        """Return the next line for this rank; ask the client if necessary.

        Raises
        ------
        EOFError
            The end of input was typed, or the cell has ended.
        NoCellRuns, RuntimeError
            No cell runs, or the front end cannot ask.
        KeyboardInterrupt, DebuggerStopped
            The cell was stopped; the latter if a debugger asked.
        RankFailure
            A rank was lost and no operation has raised this yet; never if a debugger asks.
        """
        me = threading.get_ident()
        with self._condition:
            if not self._cell:
                msg = "input() works while a cell runs"
                raise NoCellRuns(msg)
            read = _Read(self._cell, is_command, self._known_epoch())
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
                    self._condition.notify_all()

    def _next(self, read: _Read, prompt: str, password: bool) -> str:
        log, is_command = self._logs[read.cell], read.is_command
        is_asked = False
        try:
            while isinstance(found := log.read(is_command=is_command), MissingInput):
                if log.refusal is not None:
                    raise RuntimeError(log.refusal)
                self._check_loss(read)
                if not is_asked:
                    self._ask(LineNeed(read.cell, found.index, prompt, password, is_command))
                    is_asked = True
                self._wait(read)
        except RankFailure:
            if is_asked:
                self._ask(LineNotNeeded(read.cell))
            raise
        return found

    def _wait(self, read: _Read) -> None:
        """Wait for a change; the caller holds the lock."""
        was_notified = self._condition.wait(POLL_S)
        if self._cell != read.cell:
            raise EOFError
        # The interrupt comes as a signal right after `stop`. In a cell that awaits, the signal
        # raises nothing, because ipykernel cancels a task instead: only then is the flag used.
        if not was_notified:
            self._check_stop(read)
            self._check_loss(read)

    def _check_stop(self, read: _Read) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if self._logs[read.cell].is_stopped and is_main:
            raise DebuggerStopped if read.is_command else KeyboardInterrupt

    def _known_epoch(self) -> int:
        """Return the epoch with a loss already raised; -1 for none."""
        loss = self._loss()
        if loss is None or not (loss.was_raised or loss.epoch in self._raised):
            return -1
        return loss.epoch

    def _check_loss(self, read: _Read) -> None:
        if read.is_command:
            return
        loss = self._loss()
        if loss is None or loss.epoch == read.known_epoch or loss.error.rank in self._lost:
            return
        self._raised.add(loss.epoch)
        raise loss.error


class CellInput(io.TextIOBase):
    r"""Text file that reads lines from ``next_line`` until EOFError.

    Iteration and `readlines` are `io.TextIOBase`'s. If a read takes less than a line, the rest is
    kept for the next read, until `forget`.

    Examples
    --------
    >>> lines = iter(["ann", "bob"])
    >>> file = CellInput(lambda: next(lines))
    >>> file.readline(2), file.readline(), file.readline()
    ('an', 'n\n', 'bob\n')
    """

    # Typeshed declares these writable; they are what a file over str must have.
    encoding = "utf-8"
    errors = "strict"
    name = "<stdin>"
    mode = "r"

    def __init__(self, next_line: Callable[[], str]) -> None:
        self._next_line = next_line
        self._rest = ""
        self._lock = threading.RLock()

    def forget(self) -> None:
        """Drop the rest of a line when a new cell begins."""
        with self._lock:
            self._rest = ""

    def readable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return False: lines come from a notebook, not from a terminal."""
        return False

    def fileno(self) -> int:
        """Raise: a cell's input has no descriptor.

        Raises
        ------
        io.UnsupportedOperation
            Always.
        """
        msg = "the input of a cell has no file descriptor; read sys.stdin itself"
        raise io.UnsupportedOperation(msg)

    def readline(self, size: int | None = -1) -> str:  # type: ignore[override]
        """Return the next line with its end, at most ``size`` characters.

        The rest of a line comes first. An empty string is the end of input.
        """
        with self._lock:
            self._check_open()
            if size == 0:
                return ""
            line = self._rest or self._fetch()
            n_taken = len(line) if size is None or size < 0 else size
            self._rest = line[n_taken:]
            return line[:n_taken]

    def read(self, size: int | None = -1) -> str:
        """Return ``size`` characters, or all lines until the end of input."""
        with self._lock:
            self._check_open()
            is_all = size is None or size < 0
            pieces = [self._rest]
            n_read = len(self._rest)
            while is_all or n_read < (size or 0):
                line = self._fetch()
                if not line:
                    break
                pieces.append(line)
                n_read += len(line)
            text = "".join(pieces)
            n_taken = len(text) if is_all else size
            self._rest = text[n_taken:]
            return text[:n_taken]

    def _fetch(self) -> str:
        try:
            return self._next_line() + "\n"
        except (EOFError, NoCellRuns):  # between cells stdin behaves like /dev/null
            return ""

    def _check_open(self) -> None:
        if self.closed:
            msg = "I/O operation on closed file"
            raise ValueError(msg)
