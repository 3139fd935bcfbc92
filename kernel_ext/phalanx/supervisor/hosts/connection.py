"""Connect the root to the supervisor of another host.

`HostConnection` starts one supervisor process, pings it, sends requests and stops it. After a loss
the root makes a new `HostConnection`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable
from typing import Any

import zmq

import phalanx
from phalanx.protocol.host import (
    ANSWER_TO,
    AskHost,
    FromHost,
    HostAnswer,
    HostAnswered,
    HostLeaving,
    HostPing,
    HostPong,
    HostRequest,
    HostUp,
    Reconnect,
    StopHost,
    ToHost,
)

from ..health.frozen_ranks import SilenceTimer
from ..launchers.remote_command import HostProcess, HostStart, HostUnreachable
from ..launchers.select import launch_host
from ..tasks import TaskSet
from .addresses import PathDiagnosis
from .session import HostServer

log = logging.getLogger(__name__)
LOOK_EVERY_S = 0.2  # poll interval for silence, as exact as for one rank
UP_S = 10.0  # least time limit from process start to `HostUp`: ten times the usual duration
STOP_S = 2.0  # time to end the ranks (0.5 s for slow ones) and to sweep


def beat_every_s(heartbeat_timeout_s: float) -> float:
    """Return the interval in seconds at which each side sends heartbeats.

    Examples
    --------
    >>> beat_every_s(5.0), beat_every_s(2.0)
    (1.0, 0.5)
    """
    return min(1.0, heartbeat_timeout_s / 4)


class ClockOffset:
    """Estimate another machine's clock offset from the fastest round trips.

    An answer holds the other clock's time at some moment of its round trip. So the error is at
    most half the round trip. Clocks drift apart (100 ppm is a high value), so the error bound of
    an answer grows with the answer's age.

    Examples
    --------
    >>> offset = ClockOffset()
    >>> offset.learn(sent_ns=1_000, came_ns=1_200, theirs_ns=501_100)
    >>> offset.at(1_200)
    (-500000, 100)
    """

    DRIFT = 1e-4

    def __init__(self) -> None:
        self._best: tuple[int, int, int] | None = None  # offset, error bound, time (ns)

    def learn(self, *, sent_ns: int, came_ns: int, theirs_ns: int) -> None:
        """Take one answer: time of request, of arrival, and the other's time."""
        half = (came_ns - sent_ns) // 2
        offset = sent_ns + half - theirs_ns
        known = self.at(came_ns)
        if known is None or half <= known[1]:
            self._best = offset, half, came_ns

    def at(self, now_ns: int) -> tuple[int, int] | None:
        """Return the offset of the other clock and its error bound (ns).

        The offset is added to the other clock's time to get local time. None: no answer has come.
        """
        if self._best is None:
            return None
        offset, uncertainty, when = self._best
        return offset, uncertainty + int((now_ns - when) * self.DRIFT)


class HostConnection:
    """Connection to one supervisor process of a host.

    The connection lasts until the process is stopped or lost.

    A broken tcp connection is no loss: the host reconnects, and both ends resend unacknowledged
    messages. The host is lost when its process is known to have ended, or when it has been silent
    for ``heartbeat_timeout_s``.

    Parameters
    ----------
    heartbeat_timeout_s : float
        Seconds of silence after which the host is lost.
    take : callable
        Gets each message of a host that is up, except those that this class handles.
    lost : callable
        Called once with the reason, when a host that was up is lost.
    """

    def __init__(
        self,
        server: HostServer,
        heartbeat_timeout_s: float,
        take: Callable[[FromHost], None],
        lost: Callable[[str], None],
    ) -> None:
        self._server = server
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._take = take
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self.keys = zmq.curve_keypair()  # public, secret
        self._key = self.keys[0]
        self._process: HostProcess | None = None
        self._ended: asyncio.Task[str] | None = None
        self._up: asyncio.Future[HostUp] = self._loop.create_future()
        # set if the connection fails before the host is up
        self._refused: asyncio.Future[str] = self._loop.create_future()
        self._left = asyncio.Event()
        self._silence = SilenceTimer(heartbeat_timeout_s, self._loop.time())
        self._offset = ClockOffset()
        self._ping_numbers = itertools.count(1)
        self._sent: dict[int, int] = {}  # by number of a ping without an answer: time sent, in ns
        self._ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[HostAnswer]] = {}
        self._tasks = TaskSet(lambda _error: self._lose("its connection has failed"))
        self.is_up = False
        self._is_broken = False  # whether the tcp connection is broken now
        self._way = PathDiagnosis("", "")

    async def boot(self, asked: HostStart) -> HostUp:
        """Start the supervisor process and wait until it is up.

        The first line that the supervisor reads has its keys.

        Raises
        ------
        HostUnreachable
            The host could not be started in time, or has another phalanx version; the text says
            why.
        """
        self._server.expect(self._key, self._on_message, self._on_failed)
        until_s = self._loop.time() + asked.remote.timeout_s
        self._process = await launch_host(asked)
        # time in a scheduler's queue does not count
        until_s = max(until_s, self._loop.time() + UP_S)
        self._ended = self._loop.create_task(self._process.ended())
        news: set[asyncio.Future[Any]] = {self._ended, self._up, self._refused}
        await asyncio.wait(
            news,
            timeout=max(0.0, until_s - self._loop.time()),
            return_when=asyncio.FIRST_COMPLETED,
        )
        problem = ""
        if self._refused.done():
            problem = self._refused.result()
        elif self._up.done():
            up = self._up.result()
            if up.version == phalanx.__version__:
                self.is_up = True
                self._silence = SilenceTimer(self._heartbeat_timeout_s, self._loop.time())
                there = self._server.address_of(self._key)
                self._way = PathDiagnosis(up.root_address, there, up.addresses)
                self._tasks.spawn(self._ping())
                self._tasks.spawn(self._watch_process(self._ended))
                return up
            problem = f"its phalanx is {up.version}, this one is {phalanx.__version__}"
        elif self._ended.done():
            problem = self._ended.result()
        self.evict()
        text = problem or f"its supervisor was not up within {asked.remote.timeout_s:g} s"
        raise HostUnreachable(asked.plan.name, text)

    def _on_message(self, message: FromHost) -> None:
        self._silence.reset()
        if isinstance(message, HostUp):
            if not self._up.done():
                self._up.set_result(message)
        elif isinstance(message, HostLeaving):
            self._left.set()
        elif isinstance(message, Reconnect):
            self._is_broken = False
        elif not self.is_up:
            return
        elif isinstance(message, HostPong):
            self._on_pong(message)
        elif isinstance(message, HostAnswered):
            asked = self._asked.get(message.id)
            if asked is not None and not asked.done():
                asked.set_result(message.answer)
        else:
            self._take(message)

    def _on_failed(self, problem: str) -> None:
        """Handle a protocol error (``problem``) or a broken connection ("")."""
        if not self.is_up:
            if problem and not self._refused.done():
                self._refused.set_result(problem)
            return
        if problem:
            self.refuse(problem)
            return
        self._is_broken = True
        self._tasks.spawn(self._look())

    async def _look(self) -> None:
        """After the connection broke, find out whether the supervisor has ended."""
        if self._process is None:
            return
        why = self._why_over() or await self._process.look(self._up.result())
        if why and self._is_broken:  # else the host has reconnected meanwhile
            self._lose(why)

    def refuse(self, problem: str) -> None:
        """Drop a supervisor that sent an invalid message."""
        self._lose(problem)
        self.evict()

    def _why_over(self) -> str:
        """Return how the supervisor ended; "" if it may still run.

        The supervisor may outlive the process that started it (e.g. ssh).
        """
        if self._process is None or self._ended is None or not self._ended.done():
            return ""
        return self._ended.result() if self._process.is_over else ""

    def _lose(self, reason: str) -> None:
        if not self.is_up:
            return
        self._finish()
        self._server.give_up(self._key)
        self._lost(reason)

    def _finish(self) -> None:
        self.is_up = False
        for asked in self._asked.values():
            if not asked.done():
                asked.cancel()
        self._tasks.cancel()

    async def _ping(self) -> None:
        ping_at_s = 0.0
        asking: asyncio.Task[None] | None = None
        while True:
            now_s = self._loop.time()
            if self._silence.is_over(now_s) and asking is not None:
                # on a busy machine the query may end after its timeout
                await asyncio.wait({asking})
            if self._silence.lasts_s >= self._heartbeat_timeout_s:
                how = " (its connection has broken)" if self._is_broken else ""
                self._lose(
                    f"it has not answered for {self._heartbeat_timeout_s:g} s{how}{self._way}"
                )
                return
            if self._silence.lasts_s < self._heartbeat_timeout_s / 2:
                self._way.forget()
            elif not self._way.is_asked:
                asking = self._tasks.spawn(self._way.ask(self._heartbeat_timeout_s / 3))
            if now_s >= ping_at_s:
                ping_at_s = now_s + beat_every_s(self._heartbeat_timeout_s)
                self._send_ping()
            await asyncio.sleep(min(LOOK_EVERY_S, self._heartbeat_timeout_s / 4))

    def _send_ping(self) -> None:
        number = next(self._ping_numbers)
        self._sent[number] = time.monotonic_ns()
        self._server.send_unreliable(self._key, HostPing(number))

    def _on_pong(self, message: HostPong) -> None:
        sent_ns = self._sent.pop(message.number, None)
        if sent_ns is not None:
            came_ns = time.monotonic_ns()
            self._offset.learn(sent_ns=sent_ns, came_ns=came_ns, theirs_ns=message.now_ns)
            # Pongs come in order: those of older pings are lost.
            self._sent = {n: at for n, at in self._sent.items() if n > message.number}

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

    def send(self, message: ToHost) -> None:
        """Send a message to the host.

        The session keeps the message for a reconnection. If the host is lost, the message is
        dropped.
        """
        self._server.send(self._key, message)

    async def ask(self, request: HostRequest, timeout_s: float | None) -> HostAnswer | None:
        """Send a request and wait for its answer; None after ``timeout_s``.

        If ``timeout_s`` is None, the wait lasts until the host answers or is lost.
        """
        if not self.is_up:
            return None
        number = next(self._ids)
        asked = self._asked[number] = self._loop.create_future()
        self.send(AskHost(number, request))
        try:
            await asyncio.wait({asked}, timeout=timeout_s)
            answer = None if asked.cancelled() or not asked.done() else asked.result()
        finally:
            del self._asked[number]
        if answer is not None and type(answer) is not ANSWER_TO[type(request)]:
            self.refuse("answered what it was not asked")
            return None
        return answer

    def measure(self, n_pings: int = 5) -> None:
        """Send ``n_pings`` pings to measure the clock offset.

        The pongs arrive before the answer to the next request.
        """
        for _ in range(n_pings):
            self._send_ping()

    def clock(self) -> tuple[int, int] | None:
        """Return what to add to the host's time for ours, in ns.

        The second value is the greatest error of the first, in ns. None: the host is down, or its
        clock is unknown.
        """
        return self._offset.at(time.monotonic_ns()) if self.is_up else None

    async def stop(self) -> None:
        """Stop the supervisor and its ranks.

        After `STOP_S`, kill the local process and leave the supervisor to end by itself.
        """
        was_up = self.is_up
        self._finish()
        if was_up:
            self.send(StopHost())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._over(), STOP_S)
        self.evict()
        if self._ended is not None:
            await asyncio.wait({self._ended}, timeout=1.0)
            self._ended.cancel()

    async def _over(self) -> None:
        """Wait for the supervisor's `HostLeaving` message, or for its process's end.

        The process that started it may have ended before.
        """
        left = self._loop.create_task(self._left.wait())
        waits = {left} if self._ended is None else {left, self._ended}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not self._why_over():
            await asyncio.wait({left})
        left.cancel()
        if self._ended is not None:
            await asyncio.wait({self._ended})

    def evict(self) -> None:
        """End the local process, and leave the supervisor to end by itself.

        The supervisor learns that it is evicted when it sends a message.
        """
        self._finish()
        self._server.give_up(self._key)
        if self._process is not None:
            self._process.kill()
