"""Control a host on another machine, from the root.

`RemoteHost` sends the root's calls to the host's supervisor and keeps its newest reports. It
forwards events to the root (`WorldEvents`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
from collections.abc import Callable, Sequence

import msgspec
import zmq

from phalanx.errors import DistributedError
from phalanx.protocol import (
    Activity,
    BootProgress,
    BootState,
    HostClock,
    HostInfo,
    HostPlan,
    RemoteOptions,
    ToRank,
)
from phalanx.protocol.host import (
    AbortEpoch,
    CommandOutput,
    CommandRuns,
    EndRank,
    FromCommand,
    FromHost,
    FromRankEnvelope,
    GetTraces,
    GiveBack,
    HostReport,
    HostSamples,
    HostUp,
    Kill,
    Killed,
    Look,
    Looked,
    OutputDone,
    RankFrozen,
    RankGone,
    RankReport,
    ReadShown,
    Refresh,
    Refreshed,
    ReleaseOutput,
    RunCommand,
    Shown,
    SignalRank,
    Spawn,
    ToCommand,
    ToHost,
    ToRankEnvelope,
    Traces,
    Versions,
    WatchRanks,
)

from ..launchers.remote_command import HostStart, HostUnreachable
from ..processes.streams import OutputWindow
from .connection import Answer, HostConnection
from .interface import Piece, RemoteHosts, WorldEvents
from .samples import RemoteSampler
from .session import HostServer

log = logging.getLogger(__name__)
# Time limit of a request: a host answers in milliseconds, and the client waits 10 s for the root.
ANSWER_S = 5.0

REFRESH_S = 0.5  # after this time a display shows the old values


class RemoteRankState:
    """Newest report on a rank of a remote host.

    The rank cannot receive messages before its first report.
    """

    def __init__(self, rank: int, status: int | None = None) -> None:
        self.status = status
        self.report = RankReport(rank, 0, Activity(0, {}), "", 0, 0)

    @property
    def is_there(self) -> bool:
        """Whether the rank's process was started and has not ended."""
        return self.status is None and self.report.pid > 0


def named_in(message: FromHost) -> Sequence[int]:
    """Return the ranks that a host's message is about."""
    if isinstance(message, HostReport | HostSamples):
        return [its.rank for its in message.ranks]
    if isinstance(message, FromRankEnvelope | RankGone | RankFrozen | FromCommand):
        return [message.rank]
    return ()


class RemoteHost:
    """One remote host of the world, with its ranks.

    `boot` or the first `spawn` starts the host's supervisor. After a loss the next `spawn` starts
    it anew.
    """

    def __init__(
        self,
        index: int,
        plan: HostPlan,
        name: str,
        ranks: Sequence[int],
        size: int,
        remote: RemoteOptions,
        heartbeat_timeout_s: float,
        server: HostServer,
        hosts: RemoteHosts,
        events: WorldEvents,
    ) -> None:
        self.ranks = tuple(ranks)
        self._ranks = {rank: RemoteRankState(rank, status=0) for rank in ranks}
        self._index = index
        self._plan = plan
        self._name = name
        self._remote = remote
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._server = server
        self._hosts = hosts
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._wanted: list[int] = []  # ranks to spawn once the supervisor is up
        self._booting: asyncio.Task[None] | None = None
        self._connection: HostConnection | None = None
        self._lost_connections: list[HostConnection] = []
        self._is_watching = False
        self._window = OutputWindow()
        self._aborted: tuple[int, int, int, str] | None = None
        self.info = HostInfo(index, name, next(iter(plan.addresses), ""), 0)
        self.root_address = ""  # address at which the host has reached the root
        self.free_port = 0
        self.versions = Versions()
        self.samples = RemoteSampler(ranks, size, lambda: self._connection)

    def status(self, rank: int) -> int | None:
        """See `HostInterface.status`."""
        return self._ranks[rank].status

    def pid(self, rank: int) -> int:
        """See `HostInterface.pid`."""
        return self._ranks[rank].report.pid

    def activity(self, rank: int) -> Activity:
        """See `HostInterface.activity`."""
        return self._ranks[rank].report.activity

    def is_stuck(self, rank: int) -> bool:
        """See `HostInterface.is_stuck`."""
        return self.activity(rank).wait is not None

    def doing(self, rank: int) -> str:
        """See `HostInterface.doing`."""
        return self._ranks[rank].report.doing

    def rss_nbytes(self, rank: int) -> int:
        """See `HostInterface.rss_nbytes`."""
        return self._ranks[rank].report.rss_nbytes

    def shown_nbytes(self, rank: int) -> int:
        """See `HostInterface.shown_nbytes`."""
        return self._ranks[rank].report.shown_nbytes

    def spawn(self, rank: int, *, cwd: str = "") -> None:
        """Start a rank's process as soon as the host is up.

        ``cwd`` is ignored: the ranks start in the host's folder.
        """
        self._ranks[rank] = RemoteRankState(rank)
        if self._connection is not None and self._connection.is_up:
            self._connection.send(Spawn(rank))
            return
        self._wanted.append(rank)
        if self._booting is None:
            self._booting = self._loop.create_task(self._boot())

    async def boot(self) -> None:
        """Start the host's supervisor, before any rank.

        The result goes to `RemoteHosts.on_settled`.
        """
        if self._booting is None:
            self._booting = self._loop.create_task(self._boot())
        await asyncio.wait({self._booting})

    async def _boot(self) -> None:
        began_s = self._loop.time()

        def tell(state: BootState, text: str = "") -> None:
            seconds = self._loop.time() - began_s
            self._events.on_news(BootProgress(self._index, self._name, state, seconds, text))

        tell("starting")
        problem = ""
        connection: HostConnection | None = None
        try:
            connection = HostConnection(
                self._server, self._heartbeat_timeout_s, self._take, self._on_lost
            )
            first_line = await self._hosts.first_line(self._index, *connection.keys)
            self._connection = connection
            on_slow = functools.partial(tell, "starting")
            gathering = self._hosts.gathering
            start = HostStart(self._plan, first_line, self._remote, on_slow, gathering)
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
                self._ranks[rank].status = 1
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
        """Mark all ranks as killed and report them as lost."""
        if self._connection is not None:
            self._lost_connections.append(self._connection)
        self._aborted = None
        self.samples.lose()
        for rank in self.ranks:
            known = self._ranks[rank]
            if known.status is None:
                known.status = -int(signal.SIGKILL)
                self._events.on_lost(rank, f"lost its host: {reason}", "")

    async def stop(self) -> None:
        """End the ranks and the supervisor, and the remains of lost supervisors."""
        if self._booting is not None:
            self._booting.cancel()
        current = [] if self._connection is None else [self._connection]
        every = [*self._lost_connections, *current]
        await asyncio.gather(*(connection.stop() for connection in every))

    def _take(self, message: FromHost) -> None:
        problem = ""
        if not set(named_in(message)) <= self._ranks.keys():
            problem = "it has spoken for ranks that are not its own"
        elif isinstance(message, HostReport):
            for report in message.ranks:
                self._ranks[report.rank].report = report
            if message.aborted is not None:
                self._aborted = message.aborted
        elif isinstance(message, FromRankEnvelope):
            if self.status(message.rank) is None:  # else the rank is known to have ended
                self._events.on_message(message.rank, message.message)
        elif isinstance(message, RankGone):
            known = self._ranks[message.rank]
            if known.status is None:
                known.status = message.status
                self._events.on_lost(message.rank, message.reason, message.tail)
        elif isinstance(message, RankFrozen):
            self._events.on_frozen(message.rank, message.reason)
        elif isinstance(message, CommandOutput) and not self._window.take(message):
            problem = "it has sent more output than it may before that is written out"
        elif isinstance(message, FromCommand):
            if isinstance(message, CommandRuns):
                known = self._ranks[message.rank]
                known.report = msgspec.structs.replace(known.report, pid=message.pid)
            self._hosts.on_command(message)
        elif isinstance(message, HostSamples):
            problem = self.samples.come(message)
        if problem and self._connection is not None:
            self._connection.refuse(problem)

    @property
    def is_up(self) -> bool:
        """Whether the host's supervisor is up and not lost."""
        return self._connection is not None and self._connection.is_up

    def run_command(self, message: RunCommand) -> None:
        """Start a rank's command.

        If the host is down, the rank is reported as lost.
        """
        known = self._ranks[message.rank] = RemoteRankState(message.rank)
        if self.is_up:
            self._say(message)
        else:  # the host was lost while other hosts started
            known.status = -int(signal.SIGKILL)
            self._events.on_lost(message.rank, "lost its host before it was started", "")

    def command(self, message: ToCommand) -> None:
        """Send a message about commands to the host."""
        if isinstance(message, OutputDone):
            self._window.done(message)
        self._say(message)

    def signal(self, rank: int, number: signal.Signals) -> None:
        """See `LocalHost.signal`."""
        self._say(SignalRank(rank, int(number)))

    def end(self, rank: int) -> None:
        """See `LocalHost.end`."""
        self._say(EndRank(rank))

    def send(self, rank: int, message: ToRank) -> None:
        """See `HostInterface.send`."""
        self._tell(rank, ToRankEnvelope(rank, message))

    def give_back(self, rank: int) -> None:
        """See `HostInterface.give_back`."""
        # Also for a rank that has ended, unless its whole host was lost.
        if self._ranks[rank].report.pid:
            self._say(GiveBack(rank))

    def release_output(self, rank: int) -> None:
        """See `HostInterface.release_output`."""
        self._tell(rank, ReleaseOutput(rank))

    def _tell(self, rank: int, message: ToRankEnvelope | ReleaseOutput) -> None:
        if self._ranks[rank].is_there:
            self._say(message)

    def _say(self, message: ToHost) -> None:
        if self._connection is not None and self._connection.is_up:
            self._connection.send(message)

    def speaks(self, rank: int, pid: int) -> None:
        """Do nothing: the rank's own host has recorded the process."""

    async def kill(self, rank: int, timeout_s: float) -> bool:
        """See `HostInterface.kill`."""
        if rank in self._wanted:  # the host is not up yet
            self._wanted.remove(rank)
            self._ranks[rank].status = -int(signal.SIGKILL)
            return True
        answer = await self._ask(lambda id_: Kill(id_, rank, timeout_s), Killed, timeout_s + 1)
        return self.status(rank) is not None or (answer is not None and answer.is_over)

    async def look(self, rank: int) -> tuple[bool, str | None]:
        """See `HostInterface.look`."""
        answer = await self._ask(lambda id_: Look(id_, rank), Looked, ANSWER_S)
        return (False, "") if answer is None else (answer.is_stopped, answer.dump)

    async def read_shown(self, rank: int, since: int, max_lines: int) -> Piece | None:
        """See `HostInterface.read_shown`."""
        answer = await self._ask(
            lambda id_: ReadShown(id_, rank, since, max_lines), Shown, ANSWER_S
        )
        if answer is None:
            return Piece(b"", since, 0, 0)
        return Piece(answer.text, answer.end, answer.left_out_nbytes, answer.left_out_lines)

    def abort(self, epoch: int, kind: int, culprit: int, message: str) -> None:
        """See `HostInterface.abort`."""
        self._say(AbortEpoch(epoch, kind, culprit, message))

    def abort_reason(self, epoch: int) -> tuple[int, int, str] | None:
        """See `HostInterface.abort_reason`."""
        known = self._aborted
        return known[1:] if known is not None and known[0] == epoch else None

    def watch(self, *, is_on: bool) -> None:
        """See `HostInterface.watch`."""
        if is_on is not self._is_watching:
            self._is_watching = is_on
            self._say(WatchRanks(is_on))

    async def refresh(self) -> bool:
        """See `HostInterface.refresh`."""
        return await self._ask(Refresh, Refreshed, REFRESH_S) is not None

    async def traces(self) -> tuple[HostClock, tuple[tuple[bytes, int], ...]]:
        """Return this host's clock and the flight recorders by slot."""
        if self._connection is not None and self._connection.is_up:
            self._connection.measure()
        answer = await self._ask(GetTraces, Traces, ANSWER_S)
        nothing = ((b"", 0),) * len(self.ranks)
        traces = nothing if answer is None else (*answer.traces, *nothing)[: len(self.ranks)]
        offset = (0, 0) if self._connection is None else self._connection.offset()
        return HostClock(self._name, *offset), traces

    async def _ask(
        self, make: Callable[[int], ToHost], kind: type[Answer], timeout_s: float
    ) -> Answer | None:
        return (
            None if self._connection is None else await self._connection.ask(make, kind, timeout_s)
        )
