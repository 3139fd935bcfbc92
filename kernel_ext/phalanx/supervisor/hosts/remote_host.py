"""Control a host on another machine, from the root.

`RemoteHost` sends the root's messages to the host's supervisor and keeps its newest reports.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import zmq

from phalanx.errors import DistributedError
from phalanx.protocol import (
    Activity,
    BootOptions,
    BootProgress,
    BootState,
    HostInfo,
)
from phalanx.protocol.host import (
    CommandOutput,
    CommandRuns,
    FromCommand,
    FromHost,
    FromRankEnvelope,
    GetTraces,
    GiveBack,
    HostAnswer,
    HostReport,
    HostRequest,
    HostSamples,
    HostUp,
    Kill,
    Killed,
    OutputDone,
    RankFrozen,
    RankGone,
    RankReport,
    Refresh,
    ReleaseOutput,
    RunCommand,
    SampleRanks,
    Spawn,
    ToHost,
    ToRankEnvelope,
    Versions,
    WatchRanks,
)

from ..launchers.remote_command import HostStart, HostUnreachable
from ..processes.streams import OutputWindow
from .connection import HostConnection
from .samples import in_root_time, is_sound

if TYPE_CHECKING:
    from .host_set import HostSet
    from .session import HostServer

log = logging.getLogger(__name__)
# Time limit of a request: a host answers in milliseconds, and the client waits 10 s for the root.
ANSWER_S = 5.0

REFRESH_S = 0.5  # after this time a display shows the old values
_KILLED = -int(signal.SIGKILL)


def first_report(rank: int) -> RankReport:
    """Return the report on a rank before its host sends any."""
    return RankReport(rank, 0, Activity(0, {}), "", 0, 0)


def named_in(message: FromHost) -> Sequence[int]:
    """Return the ranks that a host's message is about."""
    if isinstance(message, HostReport):
        return [its.rank for its in message.ranks]
    if isinstance(message, FromRankEnvelope | RankGone | RankFrozen | FromCommand):
        return [message.rank]
    return ()


class RemoteHost:
    """One remote host of the world, with its ranks.

    `boot` or the first `Spawn` starts the host's supervisor. After a loss the next `Spawn` starts
    it anew.
    """

    def __init__(
        self, index: int, options: BootOptions, server: HostServer, hosts: HostSet
    ) -> None:
        self.ranks = hosts.layout.ranks_of(index)
        self._index = index
        self._plan = options.hosts[index]
        self._name = hosts.layout.names[index]
        self._remote = options.remote
        self._heartbeat_timeout_s = options.world.heartbeat_timeout_s
        self._server = server
        self._hosts = hosts
        self._loop = asyncio.get_running_loop()
        self._reports = {rank: first_report(rank) for rank in self.ranks}
        self._wanted: list[int] = []  # ranks to spawn once the supervisor is up
        self._booting: asyncio.Task[None] | None = None
        self._connection: HostConnection | None = None
        self._lost_connections: list[HostConnection] = []
        self._is_watching = False
        self._window = OutputWindow()
        self._aborted: tuple[int, int, int, str] | None = None
        self.info = HostInfo(index, self._name, next(iter(self._plan.addresses), ""), 0)
        self.root_address = ""  # address at which the host has reached the root
        self.free_port = 0
        self.versions = Versions()
        self._size = options.world.size

    def report(self, rank: int) -> RankReport:
        """Return the newest report on a rank."""
        return self._reports[rank]

    def abort_reason(self, epoch: int) -> tuple[int, int, str] | None:
        """Return ``(kind, culprit, message)`` if ``epoch`` was aborted."""
        known = self._aborted
        return known[1:] if known is not None and known[0] == epoch else None

    @property
    def is_up(self) -> bool:
        """Whether the host's supervisor is up and not lost."""
        return self._connection is not None and self._connection.is_up

    def take(self, message: ToHost) -> None:
        """Send a message to the host.

        It is dropped if the host or the rank is gone. A `Spawn` waits until the host is up.
        """
        match message:
            case Spawn():
                self._reports[message.rank] = first_report(message.rank)
                if not self.is_up:
                    self._wanted.append(message.rank)
                    self._begin_boot()
                    return
            case RunCommand():
                self._reports[message.rank] = first_report(message.rank)
                if not self.is_up:  # the host was lost while other hosts started
                    why = "lost its host before it was started"
                    self._hosts.hear(RankGone(message.rank, _KILLED, why, ""))
                    return
            case OutputDone():
                self._window.done(message)
            case WatchRanks():
                if message.is_on is self._is_watching:
                    return
                self._is_watching = message.is_on
            case ToRankEnvelope() | ReleaseOutput():
                has_ended = self._hosts.statuses[message.rank] is not None
                if has_ended or not self._reports[message.rank].pid:
                    return
            case GiveBack():  # also for a rank that has ended, unless its whole host was lost
                if not self._reports[message.rank].pid:
                    return
        if self._connection is not None and self._connection.is_up:
            self._connection.send(message)

    async def answer(self, request: HostRequest) -> HostAnswer | None:
        """Ask the host; None if it does not answer in time."""
        limit_s = ANSWER_S
        if isinstance(request, Kill):
            if request.rank in self._wanted:  # the host is not up yet
                self._wanted.remove(request.rank)
                self._hosts.statuses[request.rank] = _KILLED
                return Killed(True)
            limit_s = request.timeout_s + 1
        elif isinstance(request, Refresh):
            limit_s = REFRESH_S
        elif isinstance(request, SampleRanks):
            return await self._sample(request)
        if self._connection is None:
            return None
        if isinstance(request, GetTraces) and self._connection.is_up:
            self._connection.measure()
        return await self._connection.ask(request, limit_s)

    def clock(self) -> tuple[int, int] | None:
        """Return the offset of the host's clock; see `HostConnection.clock`."""
        return None if self._connection is None else self._connection.clock()

    async def _sample(self, request: SampleRanks) -> HostSamples | None:
        """Return samples in the root's time; None without the host."""
        connection = self._connection
        if connection is None or connection.clock() is None:
            return None
        # Without a time limit: a host sends each operation once, so no answer may be dropped.
        answer = await connection.ask(request, None)
        clock = connection.clock()
        if not isinstance(answer, HostSamples) or clock is None:
            return None
        if not is_sound(answer, self.ranks, self._size):
            connection.refuse("it has sent samples that its root cannot understand")
            return None
        return HostSamples(tuple(in_root_time(its, clock[0]) for its in answer.ranks))

    async def boot(self) -> None:
        """Start the host's supervisor, before any rank.

        The result goes to `HostSet.on_settled`.
        """
        await asyncio.wait({self._begin_boot()})

    def _begin_boot(self) -> asyncio.Task[None]:
        if self._booting is None:
            self._booting = self._loop.create_task(self._boot())
        return self._booting

    async def _boot(self) -> None:
        began_s = self._loop.time()

        def tell(state: BootState, text: str = "") -> None:
            seconds = self._loop.time() - began_s
            self._hosts.events.tell(BootProgress(self._index, self._name, state, seconds, text))

        tell("starting")
        problem = ""
        connection: HostConnection | None = None
        try:
            connection = HostConnection(
                self._server, self._heartbeat_timeout_s, self._hear, self._on_lost
            )
            first_line = await self._hosts.first_line(self._index, *connection.keys)
            self._connection = connection
            on_slow = functools.partial(tell, "starting")
            jobs = self._hosts.slurm_jobs
            start = HostStart(self._plan, first_line, self._remote, on_slow, jobs)
            up = await connection.boot(start)
        except HostUnreachable as error:
            problem = error.text
        except (DistributedError, OSError, zmq.ZMQError) as error:
            problem = f"it could not be started from here: {error}"
        except Exception as error:  # A bug of ours. Report it, because callers wait for this host.
            log.exception("a host could not be started")
            problem = f"it could not be started from here: {error!r}"
        finally:
            self._booting = None
        wanted, self._wanted = self._wanted, []
        if problem:
            for rank in wanted:
                self._hosts.statuses[rank] = 1
            tell("failed", problem)
        else:
            self._on_up(up, wanted)
            tell("up")
        self._hosts.on_settled(self._index, problem, wanted)

    def _on_up(self, up: HostUp, wanted: Sequence[int]) -> None:
        assert self._connection is not None
        self._name = self._hosts.named(self._index, up.name)
        address = next(iter(up.addresses), "")
        self.info = HostInfo(self._index, self._name, address, up.cores, up.device)
        self.root_address, self.free_port = up.root_address, up.free_port
        self.versions = up.versions
        if self._is_watching:
            self._connection.send(WatchRanks(is_on=True))
        for rank in wanted:
            self._connection.send(Spawn(rank))

    def _on_lost(self, reason: str) -> None:
        """Report all running ranks as killed."""
        if self._connection is not None:
            self._lost_connections.append(self._connection)
        self._aborted = None
        for rank in self.ranks:  # those that have ended are known to have
            self._hosts.hear(RankGone(rank, _KILLED, f"lost its host: {reason}", ""))

    async def stop(self) -> None:
        """End the ranks and the supervisor, and the remains of lost supervisors."""
        if self._booting is not None:
            self._booting.cancel()
        current = [] if self._connection is None else [self._connection]
        every = [*self._lost_connections, *current]
        await asyncio.gather(*(connection.stop() for connection in every))

    def _hear(self, message: FromHost) -> None:
        """Check a message of the host and keep reports."""
        problem = ""
        if not set(named_in(message)) <= self._reports.keys():
            problem = "it has spoken for ranks that are not its own"
        elif isinstance(message, HostReport):
            for report in message.ranks:
                self._reports[report.rank] = report
            if message.aborted is not None:
                self._aborted = message.aborted
        elif isinstance(message, CommandOutput) and not self._window.take(message):
            problem = "it has sent more output than it may before that is written out"
        else:
            if isinstance(message, CommandRuns):
                its = self._reports[message.rank]
                self._reports[message.rank] = msgspec.structs.replace(its, pid=message.pid)
            self._hosts.hear(message)
        if problem and self._connection is not None:
            self._connection.refuse(problem)
