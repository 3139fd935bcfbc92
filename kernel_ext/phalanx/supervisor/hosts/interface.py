"""Define the interface of hosts, the layout of ranks, the output file.

`LocalHost` implements `HostInterface` for one machine, `HostSet` for the whole world. The file of a
rank's output (``shown``) is written by `phalanx.rank.OutputRecord` in the rank and read here.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from phalanx.protocol import (
    OUTPUT_GAP,
    Activity,
    FromRoot,
    HostClock,
    HostInfo,
    HostPlan,
    ToRank,
    ToSupervisor,
)
from phalanx.protocol.host import FromCommand

if TYPE_CHECKING:
    from ..launchers.batch import JobGathering

MOST_NBYTES = 1 << 20  # most bytes read at once: as much as a person wants to see
COUNTED_NBYTES = 64 << 20  # lines are counted in up to this many bytes (30 ms)
LINE_NBYTES = 4096  # how far back the beginning of a line is searched
_GAP = re.compile(rb"\n?" + re.escape(OUTPUT_GAP))


@dataclass(frozen=True)
class Layout:
    """Placement of ranks: ``hosts[r]`` is rank r's host, ``slots[r]`` its slot there.

    ``names`` are the names of the hosts, by index.
    """

    hosts: tuple[int, ...]
    slots: tuple[int, ...]
    names: tuple[str, ...]

    @classmethod
    def of_one(cls, size: int) -> Layout:
        """Place all ranks on this machine."""
        return cls((0,) * size, tuple(range(size)), (socket.gethostname(),))

    @classmethod
    def of(cls, plans: Sequence[HostPlan]) -> Layout:
        """Number the ranks in the order of the hosts.

        Examples
        --------
        >>> layout = Layout.of([HostPlan("a", 2), HostPlan("me@b", 1)])
        >>> layout.hosts, layout.slots, layout.names
        ((0, 0, 1), (0, 1, 0), ('a', 'b'))
        """
        return cls(
            tuple(index for index, plan in enumerate(plans) for _ in range(plan.ranks)),
            tuple(slot for plan in plans for slot in range(plan.ranks)),
            # The name that the user gave; for this machine the name that its ranks report.
            tuple(
                socket.gethostname() if plan.is_local else plan.name.rpartition("@")[2]
                for plan in plans
            ),
        )

    def renamed(self, host: int, name: str) -> Layout:
        """Return a copy with another name for a host."""
        names = (*self.names[:host], name, *self.names[host + 1 :])
        return Layout(self.hosts, self.slots, names)

    def ranks_of(self, host: int) -> tuple[int, ...]:
        """Return the ranks of one host, in the order of their slots."""
        return tuple(rank for rank, its in enumerate(self.hosts) if its == host)

    def name_of(self, rank: int) -> str:
        """Return the name of the host on which a rank runs."""
        return self.names[self.hosts[rank]]


@dataclass(frozen=True)
class Piece:
    """The end of a rank's output; ``left_out_lines`` is -1 if uncounted.

    ``end`` is the offset in bytes after ``text``. ``left_out_nbytes`` and ``left_out_lines`` tell
    how much was skipped before ``text``. Lines are uncounted if more than `COUNTED_NBYTES` were
    skipped.
    """

    text: bytes
    end: int
    left_out_nbytes: int
    left_out_lines: int


def create_shown() -> int:
    """Create the output file without a name.

    The file vanishes with its supervisor.
    """
    with tempfile.TemporaryFile() as file:
        fd = os.dup(file.fileno())
    # A rank and its replacement share the file, and both only append.
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return fd


def read_shown(fd: int, since: int, max_lines: int) -> Piece:
    """Read the last lines that were shown from byte ``since`` on.

    If ``since`` is in the middle of a line, the whole line counts. The result has at most
    ``max_lines`` lines (0: any number) and at most `MOST_NBYTES`, plus one line for each
    `OUTPUT_GAP`.
    """
    end = os.fstat(fd).st_size
    since = _line_begin(fd, min(since, end))
    begin = max(since, end - MOST_NBYTES)
    data = os.pread(fd, end - begin, begin)
    end = begin + len(data)
    if begin > since:
        # Drop an incomplete first line, unless it is the only one.
        _, newline, whole = data.partition(b"\n")
        data = whole if newline and whole else data
    if max_lines:
        data = _last_lines(data, max_lines)
    begin = end - len(data)
    return Piece(_say_gaps(data), end, begin - since, _count_lines(fd, since, begin))


def _say_gaps(data: bytes) -> bytes:
    """Replace each gap marker by a line about missing output."""
    if OUTPUT_GAP not in data:
        return data
    folder = tempfile.gettempdir()
    said = (
        f"… output is missing here: {folder} was full; with room there, what comes next is kept\n"
    )
    line = said.encode(errors="replace")
    return _GAP.sub(lambda gap: b"\n" + line if gap.start() else line, data)


def _line_begin(fd: int, at: int) -> int:
    before = os.pread(fd, min(at, LINE_NBYTES), max(0, at - LINE_NBYTES))
    newline = before.rfind(b"\n")
    if newline < 0:
        return 0 if at <= LINE_NBYTES else at
    return at - (len(before) - newline - 1)


def _last_lines(data: bytes, most: int) -> bytes:
    at = len(data) - data.endswith(b"\n")
    for _ in range(most):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return data
    return data[at + 1 :]


def _count_lines(fd: int, begin: int, end: int) -> int:
    if end - begin > COUNTED_NBYTES:
        return -1
    n_lines = 0
    while begin < end:
        data = os.pread(fd, min(1 << 20, end - begin), begin)
        if not data:
            break
        n_lines += data.count(b"\n")
        begin += len(data)
    return n_lines


class HostEvents(Protocol):
    """Callbacks of a host supervisor to its root.

    All are called on the event loop.
    """

    def on_message(self, rank: int, message: ToSupervisor) -> None:
        """Handle a message that a rank sent on its channel."""

    def on_lost(self, rank: int, reason: str, tail: str) -> None:
        """Handle the end of a rank's process.

        ``reason`` says how it ended. ``tail`` is the last output of the process.
        """


class HostInterface(Protocol):
    """Interface of one host (`LocalHost`) or of all hosts (`HostSet`).

    Plain methods return the values of the newest report. Coroutines ask the rank's own host.
    """

    @property
    def ranks(self) -> Sequence[int]:
        """Return the ranks; each has a slot."""

    @property
    def layout(self) -> Layout:
        """Return which rank runs on which host."""

    @property
    def infos(self) -> tuple[HostInfo, ...]:
        """Return the machines, for display."""

    def send(self, rank: int, message: ToRank) -> None:
        """Send a message to a rank; dropped if the rank is gone."""

    def speaks(self, rank: int, pid: int) -> None:
        """Record the pid of the process that joined as a rank.

        It may be a child of the started process: a shell may have started the program.
        """

    def pid(self, rank: int) -> int:
        """Return the process id of a rank; 0 if never started."""

    def status(self, rank: int) -> int | None:
        """Return the exit status of a rank; None while it runs.

        The status is as `subprocess` gives it: -N for signal N.
        """

    def give_back(self, rank: int) -> None:
        """Return a dead rank's memory to the system.

        The rank's epoch was aborted before.
        """

    def release_output(self, rank: int) -> None:
        """Leave a rank's output to its kernel, which is up now."""

    def activity(self, rank: int) -> Activity:
        """Return which operations a rank is in."""

    def is_stuck(self, rank: int) -> bool:
        """Whether a rank's user code has waited 50 ms in one operation."""

    def doing(self, rank: int) -> str:
        """Describe a rank's operation; "" for none.

        If the rank waits, the text has the place in the user's code.
        """

    def rss_nbytes(self, rank: int) -> int:
        """Return a rank's memory in use, in bytes; 0 if unknown."""

    def shown_nbytes(self, rank: int) -> int:
        """Return how many bytes of output a rank has shown so far."""

    def abort(self, epoch: int, kind: int, culprit: int, message: str) -> None:
        """Free every rank that waits in ``epoch``, without the ranks' help."""

    def abort_reason(self, epoch: int) -> tuple[int, int, str] | None:
        """Return ``(kind, culprit, message)`` if ``epoch`` was aborted."""

    def watch(self, *, is_on: bool) -> None:
        """Start or stop immediate reports on ranks; on while a cell runs."""

    async def kill(self, rank: int, timeout_s: float) -> bool:
        """Kill a rank and wait until it is reaped; False after ``timeout_s``."""

    async def look(self, rank: int) -> tuple[bool, str | None]:
        """Return whether a rank is stopped (frozen), and its Python stacks.

        The stacks are as `StackPipe.dump` returns them; "" for a stopped rank.
        """

    async def read_shown(self, rank: int, since: int, max_lines: int) -> Piece | None:
        """Read a rank's output; None if there is no such rank."""

    async def traces(self) -> tuple[tuple[HostClock, ...], tuple[tuple[bytes, int], ...]]:
        """Return the clocks of all hosts and every rank's flight recorder.

        For each rank: the recorder's bytes and the number of lost records.
        """

    async def refresh(self) -> bool:
        """Update the values of plain methods.

        Returns False if a host does not answer in time.
        """


class WorldEvents(HostEvents, Protocol):
    """Callbacks of all hosts to the root, called on the event loop."""

    def on_frozen(self, rank: int, reason: str) -> None:
        """Handle a rank without a heartbeat; called repeatedly while this lasts."""

    def on_not_up(self, reasons: Sequence[str]) -> None:
        """Handle the failure to start hosts, once every other host is up.

        ``reasons`` has one text for each failed host.
        """

    def on_news(self, message: FromRoot) -> None:
        """Send a message to the clients, for their users."""


class RemoteHosts(Protocol):
    """Services that `RemoteHost` needs of the set of all hosts (`HostSet`)."""

    @property
    def gathering(self) -> JobGathering | None:
        """Return the hosts that start in one batch job, if one does."""

    async def first_line(self, host: int, public_key: bytes, secret_key: bytes) -> bytes:
        """Return the first line for a host's supervisor, and start listening."""

    def named(self, host: int, name: str) -> str:
        """Record a host's own name; return the name to use for it."""

    def on_settled(self, host: int, problem: str, ranks: Sequence[int]) -> None:
        """Record that a host is up, or why not (``problem``).

        ``ranks`` were to run there.
        """

    def on_command(self, message: FromCommand) -> None:
        """Handle a host's message about a rank's command."""
