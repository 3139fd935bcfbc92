"""Another host of the world, as the root sees it: what is known of its ranks, and how to ask.

It hands on what happens there; what follows from it is the root's business.
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
    BootProgress,
    BootState,
    HostClock,
    HostInfo,
    HostPlan,
    RemoteOptions,
    ToRank,
)
from phalanx.protocol.host_commands import (
    CommandOutput,
    CommandRuns,
    FromCommand,
    OutputDone,
    RunCommand,
    ToCommand,
)
from phalanx.protocol.host_samples import HostSamples
from phalanx.protocol.hosts import (
    AbortEpoch,
    FromHost,
    GetTraces,
    GiveBack,
    HostReport,
    HostUp,
    Kill,
    Killed,
    Look,
    Looked,
    RankFrozen,
    RankGone,
    RankSaid,
    ReadShown,
    Refresh,
    Refreshed,
    ReleaseOutput,
    Shown,
    SignalRank,
    Spawn,
    TellRank,
    ToHost,
    Traces,
    WatchRanks,
)

from ._any_host import RemoteHosts, WorldEvents
from ._far_samples import FarSamples
from ._host_door import HostDoor
from ._host_line import Answer, HostLine
from ._known_rank import KnownRank, KnownRanks, named_in
from ._launch_host import HostStart, HostUnreachable
from ._output_window import OutputWindow
from ._shown import Piece

__all__ = ["RemoteHost"]

log = logging.getLogger(__name__)

ANSWER_S = 5.0  # a host answers in milliseconds; the client has 10 s for the root
REFRESH_S = 0.5  # a picture is drawn of what is known when the time is over


class RemoteHost(KnownRanks):
    """A host of the world, with its ranks; its supervisor is started with its first rank.

    After a loss the next rank that is spawned starts the supervisor anew.
    """

    def __init__(
        self,
        index: int,
        plan: HostPlan,
        name: str,
        ranks: Sequence[int],
        size: int,
        remote: RemoteOptions,
        silence_s: float,
        door: HostDoor,
        keeper: RemoteHosts,
        events: WorldEvents,
    ) -> None:
        super().__init__(ranks)
        self._index = index
        self._plan = plan
        self._name = name
        self._remote = remote
        self._silence_s = silence_s
        self._door = door
        self._keeper = keeper
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._wanted: list[int] = []  # to be spawned once the supervisor is up
        self._booting: asyncio.Task[None] | None = None
        self._line: HostLine | None = None
        self._lost_lines: list[HostLine] = []
        self._is_watching = False
        self._window = OutputWindow()
        self._aborted: tuple[int, int, int, str] | None = None
        self.info = HostInfo(index, name, next(iter(plan.addresses), ""), 0)
        self.root_address = ""  # where it has reached the root
        self.samples = FarSamples(ranks, size, lambda: self._line)

    # -- its life -----------------------------------------------------------------------------

    def spawn(self, rank: int, *, cwd: str = "") -> None:
        """Start the process of a rank, as soon as the host is up; its folder is the host's."""
        self._ranks[rank] = KnownRank(rank)
        if self._line is not None and self._line.is_up:
            self._line.say(Spawn(rank))
            return
        self._wanted.append(rank)
        if self._booting is None:
            self._booting = self._loop.create_task(self._boot())

    async def boot(self) -> None:
        """Start the host's supervisor, before any rank; the keeper is told what comes of it."""
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
        line: HostLine | None = None
        try:
            line = HostLine(self._door, self._silence_s, self._take, self._on_lost)
            first_line = await self._keeper.first_line(self._index, *line.keys)
            self._line = line
            on_slow = functools.partial(tell, "starting")
            up = await line.boot(HostStart(self._plan, first_line, self._remote, on_slow))
        except HostUnreachable as error:
            problem = error.text
        except (DistributedError, OSError, zmq.ZMQError) as error:
            problem = f"it could not be started from here: {error}"
        except Exception as error:  # of ours: whoever waits for this host must hear of it
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
        self._keeper.on_settled(self._index, problem, wanted)

    def _on_up(self, up: HostUp, wanted: Sequence[int]) -> None:
        assert self._line is not None
        self._name = self._keeper.named(self._index, up.name)
        address = next(iter(up.addresses), "")
        self.info = HostInfo(self._index, self._name, address, up.cores, up.device)
        self.root_address = up.root_address
        if self._is_watching:
            self._line.say(WatchRanks(is_on=True))
        for rank in wanted:
            self._line.say(Spawn(rank))

    def _on_lost(self, reason: str) -> None:
        """Lose all ranks with their host."""
        if self._line is not None:
            self._lost_lines.append(self._line)
        self._aborted = None
        self.samples.lose()
        for rank in self.ranks:
            known = self._ranks[rank]
            if known.status is None:
                known.status = -int(signal.SIGKILL)
                self._events.on_lost(rank, f"lost its host: {reason}", "")

    async def stop(self) -> None:
        """End the ranks and the supervisor, and what is left of those that were lost."""
        if self._booting is not None:
            self._booting.cancel()
        lines = self._lost_lines if self._line is None else [*self._lost_lines, self._line]
        await asyncio.gather(*(line.stop() for line in lines))

    # -- what it says -------------------------------------------------------------------------

    def _take(self, message: FromHost) -> None:
        problem = ""
        if not set(named_in(message)) <= self._ranks.keys():
            problem = "it has spoken for ranks that are not its own"
        elif isinstance(message, HostReport):
            for report in message.ranks:
                self._ranks[report.rank].report = report
            if message.aborted is not None:
                self._aborted = message.aborted
        elif isinstance(message, RankSaid):
            if self.status(message.rank) is None:  # else it is known to be over
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
            self._keeper.on_command(message)
        elif isinstance(message, HostSamples):
            problem = self.samples.come(message)
        if problem and self._line is not None:
            self._line.refuse(problem)

    # -- by rank ------------------------------------------------------------------------------

    def run_command(self, message: RunCommand) -> None:
        """Start a rank's command; the host is up."""
        known = self._ranks[message.rank] = KnownRank(message.rank)
        if self._line is not None and self._line.is_up:
            self._say(message)
        else:  # it was lost while others came up
            known.status = -int(signal.SIGKILL)
            self._events.on_lost(message.rank, "lost its host before it was started", "")

    def command(self, message: ToCommand) -> None:
        """Say something of the commands that run there."""
        if isinstance(message, OutputDone):
            self._window.done(message)
        self._say(message)

    def signal(self, rank: int, number: signal.Signals) -> None:
        """As `HostSupervisor.signal`."""
        self._say(SignalRank(rank, int(number)))

    def send(self, rank: int, message: ToRank) -> None:
        """As `Host.send`."""
        self._tell(rank, TellRank(rank, message))

    def give_back(self, rank: int) -> None:
        """As `Host.give_back`."""
        if self._ranks[rank].report.pid:  # also of one that is over, and not with its host
            self._say(GiveBack(rank))

    def release_output(self, rank: int) -> None:
        """As `Host.release_output`."""
        self._tell(rank, ReleaseOutput(rank))

    def _tell(self, rank: int, message: TellRank | ReleaseOutput) -> None:
        if self._ranks[rank].is_there:
            self._say(message)

    def _say(self, message: ToHost) -> None:
        if self._line is not None and self._line.is_up:
            self._line.say(message)

    def speaks(self, rank: int, pid: int) -> None:
        """Nothing: its own host has heard it, too."""

    async def kill(self, rank: int, timeout_s: float) -> bool:
        """As `Host.kill`."""
        if rank in self._wanted:  # its host is not up yet
            self._wanted.remove(rank)
            self._ranks[rank].status = -int(signal.SIGKILL)
            return True
        answer = await self._ask(lambda id_: Kill(id_, rank, timeout_s), Killed, timeout_s + 1)
        return self.status(rank) is not None or (answer is not None and answer.is_over)

    async def look(self, rank: int) -> tuple[bool, str | None]:
        """As `Host.look`."""
        answer = await self._ask(lambda id_: Look(id_, rank), Looked, ANSWER_S)
        return (False, "") if answer is None else (answer.is_stopped, answer.dump)

    async def read_shown(self, rank: int, since: int, max_lines: int) -> Piece | None:
        """As `Host.read_shown`."""
        answer = await self._ask(
            lambda id_: ReadShown(id_, rank, since, max_lines), Shown, ANSWER_S
        )
        if answer is None:
            return Piece(b"", since, 0, 0)
        return Piece(answer.text, answer.end, answer.left_out_nbytes, answer.left_out_lines)

    # -- as a whole ---------------------------------------------------------------------------

    def abort(self, epoch: int, kind: int, culprit: int, message: str) -> None:
        """As `Host.abort`."""
        self._say(AbortEpoch(epoch, kind, culprit, message))

    def abort_reason(self, epoch: int) -> tuple[int, int, str] | None:
        """As `Host.abort_reason`."""
        known = self._aborted
        return known[1:] if known is not None and known[0] == epoch else None

    def watch(self, *, is_on: bool) -> None:
        """As `Host.watch`."""
        if is_on is not self._is_watching:
            self._is_watching = is_on
            self._say(WatchRanks(is_on))

    async def refresh(self) -> None:
        """As `Host.refresh`."""
        await self._ask(Refresh, Refreshed, REFRESH_S)

    async def traces(self) -> tuple[HostClock, tuple[tuple[bytes, int], ...]]:
        """Return this host's clock, and by slot what `Host.traces` gives."""
        if self._line is not None and self._line.is_up:
            self._line.measure()
        answer = await self._ask(GetTraces, Traces, ANSWER_S)
        nothing = ((b"", 0),) * len(self.ranks)
        traces = nothing if answer is None else (*answer.traces, *nothing)[: len(self.ranks)]
        offset = (0, 0) if self._line is None else self._line.offset()
        return HostClock(self._name, *offset), traces

    async def _ask(
        self, make: Callable[[int], ToHost], kind: type[Answer], timeout_s: float
    ) -> Answer | None:
        return None if self._line is None else await self._line.ask(make, kind, timeout_s)
