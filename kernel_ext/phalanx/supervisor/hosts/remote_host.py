"""Start the supervisor of another host, and send it messages."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import zmq

import phalanx
from phalanx.errors import DistributedError
from phalanx.protocol import Activity, BootOptions, BootProgress, BootState, EpochAborted, HostInfo
from phalanx.protocol.host import (
    ANSWER_TO,
    AskHost,
    FromHost,
    GetTraces,
    HostAnswer,
    HostAnswered,
    HostLeaving,
    HostPing,
    HostPong,
    HostReport,
    HostRequest,
    HostSamples,
    HostUp,
    RankGone,
    RankReport,
    Refresh,
    RunCommand,
    SampleRanks,
    Spawn,
    StopHost,
    ToHost,
)

from ..launchers.remote_command import HostStart, HostUnreachable, RemoteCommand
from ..launchers.select import launch_host
from ..tasks import TaskSet
from .addresses import PathReport, SilenceWatch, diagnose_path
from .samples import ClockOffset, in_root_time, is_sound

if TYPE_CHECKING:
    from .connection import HostServer
    from .host_set import HostSet


log = logging.getLogger(__name__)
LOOK_EVERY_S = 0.2  # poll interval for silence, as exact as for one rank
UP_S = 10.0  # least time limit from process start to `HostUp`: ten times the usual duration
STOP_S = 2.0  # time to end the ranks (0.5 s for slow ones) and to sweep
# Time limit of a request: a host answers in milliseconds, and the client waits 10 s for the root.
ANSWER_S = 5.0
REFRESH_S = 0.5  # after this time a display shows the old values
N_PINGS = 5  # before a trace is read: the fastest round trip tells the clock's offset best
_KILLED = -int(signal.SIGKILL)


def first_report(rank: int) -> RankReport:
    return RankReport(rank, 0, Activity(0, {}), "", 0, 0)


def named_in(message: FromHost) -> Sequence[int]:
    """Return the ranks that a host's message is about."""
    if isinstance(message, HostReport):
        return [its.rank for its in message.ranks]
    rank = getattr(message, "rank", None)
    return () if rank is None else (rank,)


class RemoteHost:
    """One supervisor process of another host, with the host's ranks.

    If it is lost, or could not be started (`is_over`), `HostSet.boot_again` makes another one.

    A broken tcp connection is no loss: the host reconnects, and both ends resend what is missing.
    The host is lost when its process is known to have ended, or when it has been silent
    for the heartbeat timeout.
    """

    def __init__(
        self, index: int, options: BootOptions, server: HostServer, hosts: HostSet
    ) -> None:
        self.ranks = hosts.layout.ranks_of(index)
        self._index = index
        self._plan = options.hosts[index]
        self._options = options
        self._heartbeat_timeout_s = options.world.heartbeat_timeout_s
        self._hosts = hosts
        self._loop = asyncio.get_running_loop()
        self._session = server.expect(self._on_message, self._on_failed)
        self._process: RemoteCommand | None = None
        self._ended: asyncio.Task[str] | None = None
        self._booting: asyncio.Task[str] | None = None
        # What it says of itself first; before that, what the plan says.
        self.up = HostUp("", 0, self._name, 0, self._plan.addresses)
        self._refusal = ""  # why its messages are not taken, if they fail before it is up
        self._answered: asyncio.Future[None] = self._loop.create_future()  # one of both has come
        self.is_up = False
        self.is_over = False  # it could not be started, or is lost
        self._is_broken = False  # whether the tcp connection is broken now
        self._left = asyncio.Event()
        self._offset = ClockOffset()
        self._ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[HostAnswer]] = {}
        self._tasks = TaskSet(lambda _error: self._lose("its connection has failed"))
        self._silence = SilenceWatch(self._heartbeat_timeout_s, self._diagnose, self._tasks.spawn)
        self._reports = {rank: first_report(rank) for rank in self.ranks}
        self._aborted: EpochAborted | None = None

    @property
    def _name(self) -> str:
        return self._hosts.layout.names[self._index]

    @property
    def info(self) -> HostInfo:
        address = next(iter(self.up.addresses), "")
        return HostInfo(self._index, self._name, address, self.up.cores, self.up.device)

    def report(self, rank: int) -> RankReport:
        return self._reports[rank]

    def abort_reason(self, epoch: int) -> tuple[int, int, str] | None:
        """Return ``(kind, culprit, message)`` if ``epoch`` was aborted."""
        known = self._aborted
        if not self.is_up or known is None or known.epoch != epoch:
            return None
        return known.kind, known.culprit, known.message

    def clock(self) -> tuple[int, int] | None:
        """Return what to add to the host's time for ours, in ns.

        The second value is the greatest error of the first, in ns. None: the host is down, or its
        clock is unknown.
        """
        return self._offset.at(time.monotonic_ns()) if self.is_up else None

    # -- messages and requests of the root ----------------------------------------------------

    def take(self, message: ToHost) -> None:
        """Send a message to the host if it is up."""
        if isinstance(message, Spawn | RunCommand):
            self._reports[message.rank] = first_report(message.rank)
            if not self.is_up:  # it was lost while other hosts started
                why = "lost its host before it was started"
                self._hosts.hear(RankGone(message.rank, _KILLED, why, ""))
        if self.is_up:
            self._session.send(message)

    async def answer(self, request: HostRequest) -> HostAnswer | None:
        """Ask the host; None if no answer comes in time."""
        limit_s: float | None = ANSWER_S
        match request:
            case Refresh():
                limit_s = REFRESH_S
            case GetTraces() if self.is_up:  # the pongs arrive before the answer
                for _ in range(N_PINGS):
                    self._send_ping()
            case SampleRanks():
                if self.clock() is None:
                    return None
                # No limit: a host sends each operation once, so no answer may be dropped.
                limit_s = None
        answer = await self._ask(request, limit_s)
        if answer is not None and type(answer) is not ANSWER_TO[type(request)]:
            self._refuse("answered what it was not asked")
            return None
        if isinstance(answer, HostSamples):
            clock = self.clock()
            if not is_sound(answer, self.ranks, self._options.world.size):
                self._refuse("it has sent samples that its root cannot understand")
                return None
            if clock is None:
                return None
            return HostSamples(tuple(in_root_time(its, clock[0]) for its in answer.ranks))
        return answer

    async def _ask(self, request: HostRequest, timeout_s: float | None) -> HostAnswer | None:
        if not self.is_up:
            return None
        number = next(self._ids)
        asked = self._asked[number] = self._loop.create_future()
        self._session.send(AskHost(number, request))
        try:
            await asyncio.wait({asked}, timeout=timeout_s)
            return None if asked.cancelled() or not asked.done() else asked.result()
        finally:
            del self._asked[number]

    # -- begin and end ------------------------------------------------------------------------

    async def boot(self) -> str:
        """Start the host's supervisor; return a problem, or ""."""
        if self._booting is None:
            self._booting = self._loop.create_task(self._boot())
        return await asyncio.shield(self._booting)

    async def _boot(self) -> str:
        began_s = self._loop.time()

        def tell(state: BootState, text: str = "") -> None:
            seconds = self._loop.time() - began_s
            self._hosts.events.tell(BootProgress(self._index, self._name, state, seconds, text))

        tell("starting")
        try:
            problem = await self._start(functools.partial(tell, "starting"))
        except HostUnreachable as error:
            problem = error.text
        except (DistributedError, OSError, zmq.ZMQError) as error:
            problem = f"it could not be started from here: {error}"
        except Exception as error:  # A bug of ours. Report it, because callers wait for this host.
            log.exception("a host could not be started")
            problem = f"it could not be started from here: {error!r}"
        if problem:
            self.is_over = True
            self._evict()
            tell("failed", problem)
        else:
            self._on_up()
            tell("up")
        return problem

    async def _start(self, on_slow: Any) -> str:
        """Start the supervisor; return why it is not up.

        Its first line has the keys of its connection.
        """
        remote = self._options.remote
        first_line = self._hosts.first_line(self._index, *self._session.keys)
        until_s = self._loop.time() + remote.timeout_s
        asked = HostStart(self._plan, first_line, remote, on_slow, self._hosts.slurm_jobs)
        self._process = await launch_host(asked)
        # time in a scheduler's queue does not count
        until_s = max(until_s, self._loop.time() + UP_S)
        self._ended = self._loop.create_task(self._process.ended())
        news: set[asyncio.Future[Any]] = {self._ended, self._answered}
        await asyncio.wait(
            news,
            timeout=max(0.0, until_s - self._loop.time()),
            return_when=asyncio.FIRST_COMPLETED,
        )
        if self._refusal:
            return self._refusal
        if self._answered.done():
            theirs, ours = self.up.version, phalanx.__version__
            return "" if theirs == ours else f"its phalanx is {theirs}, this one is {ours}"
        if self._ended.done():
            return self._ended.result()
        return f"its supervisor was not up within {remote.timeout_s:g} s"

    def _on_up(self) -> None:
        self.is_up = True
        self._hosts.on_named(self._index, self.up.name)
        self._silence.reset()
        assert self._ended is not None
        self._tasks.spawn(self._ping())
        self._tasks.spawn(self._watch_process(self._ended))

    def _lose(self, reason: str) -> None:
        """Report all running ranks as killed."""
        if not self.is_up:
            return
        self.is_over = True
        self._finish()
        self._session.give_up()
        for rank in self.ranks:  # those that have ended are known to have
            self._hosts.hear(RankGone(rank, _KILLED, f"lost its host: {reason}", ""))

    def _refuse(self, problem: str) -> None:
        """Drop a supervisor that sent an invalid message."""
        self._lose(problem)
        self._evict()

    def _finish(self) -> None:
        self.is_up = False
        for asked in self._asked.values():
            if not asked.done():
                asked.cancel()
        self._tasks.cancel()

    def _evict(self) -> None:
        """End the local process, and leave the supervisor to end by itself.

        The supervisor learns that it is evicted when it sends a message.
        """
        self._finish()
        self._session.give_up()
        if self._process is not None:
            self._process.kill()

    async def stop(self) -> None:
        """Stop the supervisor and its ranks, or what remains of them.

        After `STOP_S`, kill the local process and leave the supervisor to end by itself.
        """
        if self._booting is not None:
            self._booting.cancel()
        was_up = self.is_up
        self._finish()
        if was_up:
            self._session.send(StopHost())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._over(), STOP_S)
        self._evict()
        if self._ended is not None:
            await asyncio.wait({self._ended}, timeout=1.0)
            self._ended.cancel()

    async def _over(self) -> None:
        """Wait for the supervisor's `HostLeaving` message, or for its process's end.

        The process that started it may have ended before.
        """
        assert self._ended is not None
        left = self._loop.create_task(self._left.wait())
        await asyncio.wait({left, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        if not self._why_over():
            await asyncio.wait({left})
        left.cancel()
        await asyncio.wait({self._ended})

    # -- messages of the host -----------------------------------------------------------------

    def _on_message(self, message: FromHost) -> None:
        self._silence.reset()
        self._is_broken = False
        match message:
            case HostUp():
                if not self._answered.done():
                    self.up = message
                    self._answered.set_result(None)
            case HostLeaving():
                self._left.set()
            case _ if not self.is_up:
                pass
            case HostPong():
                self._offset.learn(
                    sent_ns=message.sent_ns,
                    came_ns=time.monotonic_ns(),
                    theirs_ns=message.now_ns,
                )
            case HostAnswered():
                asked = self._asked.get(message.id)
                if asked is not None and not asked.done():
                    asked.set_result(message.answer)
            case _ if not set(named_in(message)) <= self._reports.keys():
                self._refuse("it has spoken for ranks that are not its own")
            case HostReport():
                self._reports.update((report.rank, report) for report in message.ranks)
                self._aborted = message.aborted or self._aborted
            case _:
                self._hosts.hear(message)

    def _on_failed(self, problem: str) -> None:
        """Handle a protocol error (``problem``) or a broken connection ("")."""
        if not self.is_up:
            self._refusal = self._refusal or problem
            if problem and not self._answered.done():
                self._answered.set_result(None)
        elif problem:
            self._refuse(problem)
        elif not self._is_broken:
            self._is_broken = True
            self._tasks.spawn(self._look())

    # -- whether it lives ---------------------------------------------------------------------

    async def _look(self) -> None:
        """After the connection broke, find out whether the supervisor has ended."""
        assert self._process is not None
        why = self._why_over() or await self._process.look(self.up)
        if why and self._is_broken:  # else the host has reconnected meanwhile
            self._lose(why)

    def _why_over(self) -> str:
        """Return how the supervisor ended; "" if it may still run.

        The supervisor may outlive the process that started it (e.g. ssh).
        """
        if self._process is None or self._ended is None or not self._ended.done():
            return ""
        return self._ended.result() if self._process.is_over else ""

    async def _watch_process(self, ended: asyncio.Task[str]) -> None:
        """Check the host when the process that started its supervisor ends.

        The supervisor has then ended too, or goes on alone.
        """
        await asyncio.wait({ended})
        if self._is_broken:
            await self._look()
            return
        # Wait for the supervisor's last messages, until its connection is known to be broken. A
        # ping that cannot be sent shows that.
        until_s = self._loop.time() + min(1.0, self._heartbeat_timeout_s)
        while self._loop.time() < until_s and not self._is_broken:
            self._send_ping()
            await asyncio.sleep(0.02)
        if why := self._why_over():
            self._lose(why)

    async def _ping(self) -> None:
        limit_s, ping_at_s = self._heartbeat_timeout_s, 0.0
        while not await self._silence.look():
            if (now_s := self._loop.time()) >= ping_at_s:
                ping_at_s = now_s + min(1.0, limit_s / 4)
                self._send_ping()
            await asyncio.sleep(min(LOOK_EVERY_S, limit_s / 4))
        how = " (its connection has broken)" if self._is_broken else ""
        self._lose(f"it has not answered for {limit_s:g} s{how}{self._silence.path.text}")

    async def _diagnose(self, timeout_s: float) -> PathReport:
        here, there = self.up.root_address, self._session.address
        return await diagnose_path(here, there, self.up.addresses, timeout_s=timeout_s)

    def _send_ping(self) -> None:
        self._session.send_unreliable(HostPing(time.monotonic_ns()))
