"""Keep one rank's process, channel, values and output file.

`phalanx.rank.output.record.OutputRecord` writes the output file in the rank.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import socket
import tempfile
from collections.abc import Callable

import msgspec

from phalanx.protocol import (
    OUTPUT_GAP,
    Activity,
    Complete,
    EngineReady,
    FrameReader,
    GroupProgress,
    Inspect,
    Join,
    OutputIs,
    Passed,
    RankAnswer,
    ToRank,
    ToSupervisor,
    UserWait,
    pack_frame,
)
from phalanx.protocol.host import FromHost, FromRankEnvelope, Looked

from ..health.stack_reader import StackPipe
from ..processes.child import ChildProcess
from ..processes.system import is_stopped, rss_nbytes
from .shared_memory import HostMemory

log = logging.getLogger(__name__)

# A rank with more unread messages than this takes none. A correct rank waits for one answer at a
# time, and the largest (the shares of 1000 ranks) has about 0.5 MB.
MOST_UNSENT_NBYTES = 1 << 20

MOST_NBYTES = 1 << 20  # most bytes read at once: as much as a person wants to see
COUNTED_NBYTES = 64 << 20  # lines are counted in up to this many bytes (30 ms)
LINE_NBYTES = 4096  # how far back the beginning of a line is searched
_GAP = re.compile(rb"\n?" + re.escape(OUTPUT_GAP))

_DECODER = msgspec.msgpack.Decoder(ToSupervisor)


class RankProcess:
    """Process of one rank, its channel and its stack pipe.

    ``say`` gets each message of the rank. ``pid`` is the process that speaks on the channel: the
    child or one of its descendants, if a shell has started the program.
    """

    def __init__(
        self,
        rank: int,
        process: ChildProcess,
        channel: socket.socket,
        stacks: StackPipe,
        say: Callable[[FromHost], None],
    ) -> None:
        self._rank = rank
        self.process = process
        self._channel = channel
        self._stacks = stacks
        self._say = say
        self.pid = process.pid
        self.nonsense = ""  # why the process was killed, if it broke the protocol
        self._reader = FrameReader()
        self._unsent = bytearray()  # waits until the channel takes more
        self._loop = asyncio.get_running_loop()
        channel.setblocking(False)
        self._loop.add_reader(channel, self._read)

    def _read(self) -> None:
        try:
            data = self._channel.recv(1 << 16)
            bodies = self._reader.feed(data)
            messages = [_DECODER.decode(body) for body in bodies]
        except BlockingIOError:
            return
        except (OSError, ValueError) as error:
            # A rank runs our own code, so an invalid message means that the process is broken.
            log.warning("rank %d: its channel failed: %s", self._rank, error)
            data, messages = b"", []
            if isinstance(error, ValueError):
                self.nonsense = "said what its supervisor cannot understand (another phalanx?)"
            self.process.kill()
        for message in messages:
            if isinstance(message, Join):
                self.pid = message.pid
            elif isinstance(message, EngineReady):  # from now on it sends its output itself
                self.process.release_output()
            self._say(FromRankEnvelope(self._rank, message))
        if not data:
            self._loop.remove_reader(self._channel)

    def send(self, message: ToRank) -> None:
        """Send a message to the rank; dropped if the rank is gone."""
        if self.nonsense or self._channel.fileno() < 0:  # it is being killed, or has ended
            return
        # A stopped rank asks for nothing, so its messages cannot become more and more. A rank that
        # cannot run its control thread takes no orders for a while, and needs no old questions then.
        is_full = len(self._unsent) > MOST_UNSENT_NBYTES
        if is_full and isinstance(message, Complete | Inspect):
            return
        if is_full and isinstance(message, RankAnswer) and not is_stopped(self.pid):
            self.nonsense = "did not take what its supervisor answered"
            self.process.kill()
            return
        self._unsent += pack_frame(message)
        self._write()

    def _write(self) -> None:
        """Send what the channel takes now; the rest follows."""
        try:
            while self._unsent:
                del self._unsent[: self._channel.send(self._unsent)]
        except BlockingIOError:
            self._loop.add_writer(self._channel, self._write)
            return
        except OSError as error:  # the next read of the channel finds the cause
            log.info("rank %d did not take an answer: %s", self._rank, error)
            self._unsent.clear()
        self._loop.remove_writer(self._channel)

    async def look(self) -> Looked:
        """Return whether the process is stopped (frozen), and its Python stacks.

        The stacks are as `StackPipe.dump` returns them; "" for a stopped process.
        """
        if is_stopped(self.process.pid):
            return Looked(True, "")
        try:
            # The child leads its own session. If ``getsid`` differs, the pid was reused by another
            # process.
            is_ours = os.getsid(self.pid) == self.process.pid
        except OSError:
            is_ours = False
        return Looked(False, await self._stacks.dump(self.pid) if is_ours else None)

    def close(self) -> None:
        """Read the last messages of the process that has ended, and close."""
        self._read()  # aborted epochs, ended cells
        self._loop.remove_reader(self._channel)
        self._loop.remove_writer(self._channel)
        self._channel.close()
        self._stacks.close()


class LocalRank:
    """One rank of this host, with its values in memory.

    The values have the names of `RankReport`.
    """

    def __init__(self, rank: int, slot: int, memory: HostMemory) -> None:
        self.rank = rank
        self.slot = slot
        self.child: RankProcess | None = None  # the newest process
        self.shown_fd = -1  # output file, kept for replacements
        self._memory = memory
        self._left_in = -1  # the last epoch of the process before this one

    @property
    def pid(self) -> int:
        """Return the id of the newest process; 0 if never started."""
        return self.child.process.pid if self.child else 0

    @property
    def is_running(self) -> bool:
        return self.child is not None and self.child.process.status is None

    @property
    def activity(self) -> Activity:
        page, slot = self._memory.page, self.slot
        epoch, groups, _, messages = page.activity(slot)
        if epoch == self._left_in:
            return Activity(0, {})
        wait = page.wait(slot)  # of 50 ms or more; the call takes about 2 us
        return Activity(
            epoch,
            {number: GroupProgress(*its[:4]) for number, its in groups.items()},
            {key: Passed(*its) for key, its in messages.items()},
            None if wait is None else UserWait(*wait),
        )

    @property
    def doing(self) -> str:
        """Describe the rank's operation; "" for none.

        If the rank waits, the text has the place in the user's code.
        """
        now, site = self.activity, self._memory.page.site(self.slot)
        return now.doing + (f" at {site[2]}" if site is not None and now.is_at(*site[:2]) else "")

    def trace(self, since: int = 0) -> tuple[bytes, int]:
        """Return the flight recorder and the number of dropped records.

        The rank need not help: it may be busy, frozen or dead. ``since``: return only the records
        from this number on, or all if another process has the slot now.
        """
        return self._memory.page.trace(self.slot, since)

    def counters(self) -> tuple[int, int, int, int, dict[int, tuple[int, int]]]:
        """Return the rank's counters.

        They are: operations, arena bytes, time inside operations (ns), time waiting (ns), and
        ``{peer: (sent, received)}`` in bytes.
        """
        return self._memory.page.counters(self.slot)

    @property
    def rss_nbytes(self) -> int:
        return rss_nbytes(self.pid)

    @property
    def shown_nbytes(self) -> int:
        return os.fstat(self.shown_fd).st_size if self.shown_fd >= 0 else 0

    @property
    def beats(self) -> int:
        return self._memory.page.heartbeats(self.slot)

    def begin(self, child: RankProcess) -> None:
        """Take a new process.

        A replacement enters a later epoch. Until then the page has the values of the lost process.
        """
        if self.child is not None:
            self._left_in = self._memory.page.activity(self.slot)[0]
        self.child = child

    def end(self) -> None:
        """Record that the process is gone: expect no heartbeats."""
        self._memory.page.mark_stopped(self.slot)


def create_shown() -> int:
    """Create the output file, which vanishes with its supervisor."""
    with tempfile.TemporaryFile() as file:
        fd = os.dup(file.fileno())
    # A rank and its replacement share the file, and both only append.
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return fd


def read_shown(fd: int, since: int, max_lines: int) -> OutputIs:
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
    return OutputIs(_say_gaps(data), end, begin - since, _count_lines(fd, since, begin))


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
