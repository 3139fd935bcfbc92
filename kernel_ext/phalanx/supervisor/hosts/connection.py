"""Connect the root to the supervisor of another host.

`HostConnection` starts one supervisor process, pings it, sends requests and stops it. After a loss
the root makes a new `HostConnection`. `PathDiagnosis` finds out why a host is silent: it connects
to all known addresses of the host. A refused connection also proves that the host's system answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import logging
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zmq

import phalanx
from phalanx.hosts import interface_of
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

from ..health.liveness import ClockOffset, SilenceTimer, TaskSet, beat_every_s
from ..launchers.remote_command import HostProcess, HostStart, HostUnreachable
from ..launchers.select import launch_host
from .addresses import reach
from .session import HostServer

_ANY_PORT = 9  # the discard port
# Linux lists all connections here, including half-open ones. Other systems have no such table.
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_SYN_RECV = "03"  # linux/tcp_states.h: a SYN came, the peer has not confirmed our SYN-ACK

log = logging.getLogger(__name__)
LOOK_EVERY_S = 0.2  # poll interval for silence, as exact as for one rank
UP_S = 10.0  # least time limit from process start to `HostUp`: ten times the usual duration
STOP_S = 2.0  # time to end the ranks (0.5 s for slow ones) and to sweep


class PathDiagnosis:
    """Diagnosis of the network path between the addresses ``here`` and ``there``.

    ``others`` are further addresses of the host. `ask` connects to ``port`` of each address: a host
    that is up accepts or refuses, unless a firewall drops the packets. A path over loopback needs
    no diagnosis, so its text is empty.
    """

    def __init__(
        self, here: str, there: str, others: Sequence[str] = (), port: int = _ANY_PORT
    ) -> None:
        self._here = here
        self._there = "" if _is_loopback(there) else there
        self._port = port
        self._every = tuple(dict.fromkeys((there, *others))) if self._there else ()
        self._answering: tuple[str, ...] = ()
        self.is_asked = self._has_tried = self._is_one_way = False

    @property
    def is_cut(self) -> bool:
        """Whether `ask` has run and ``there`` did not answer."""
        return self._has_tried and self._there not in self._answering

    async def ask(self, timeout_s: float) -> None:
        """Find the addresses at which the host's system answers."""
        self.is_asked = True
        found = await asyncio.gather(
            *(_answers(address, timeout_s, self._port) for address in self._every)
        )
        self._answering = tuple(
            a for a, is_there in zip(self._every, found, strict=True) if is_there
        )
        self._has_tried = bool(self._there)
        self._is_one_way = self.is_cut and _tries_to_connect(self._there)

    def forget(self) -> None:
        """Discard the result of `ask`, because a message has arrived since."""
        self._answering = ()
        self.is_asked = self._has_tried = self._is_one_way = False

    def __str__(self) -> str:
        """Return the end of a sentence about a silent host.

        Examples
        --------
        >>> str(PathDiagnosis("192.0.2.1", "192.0.2.2"))
        ': nothing comes from 192.0.2.2 to 192.0.2.1'
        >>> str(PathDiagnosis("127.0.0.1", "127.0.0.1"))
        ''
        """
        if not self._there:
            return ""
        if self._there in self._answering:
            text = "its machine answers there, its supervisor is stopped or far too busy"
            return f" at {self._there}: {text}"
        card = interface_of(self._here)
        here = f"{self._here}{f' on {card}' if card else ''}"
        if self._is_one_way:
            here = here or "this machine"
            return f": nothing comes from {here} to {self._there}, but its packets do come here"
        text = f": nothing comes from {self._there}{f' to {here}' if here else ''}"
        if self._answering:
            text += (
                f", while it answers at {', '.join(self._answering)}: the host lives, "
                "a card, cable or switch of that network does not"
            )
        return text


async def _answers(address: str, timeout_s: float, port: int = _ANY_PORT) -> bool:
    host = f"[{address}]" if ":" in address else address
    found = await reach([f"tcp://{host}:{port}"], timeout_s)
    return bool(found.endpoint) or found.is_refused


def _tries_to_connect(address: str) -> bool:
    """Whether ``address`` has half-open connections to this machine.

    If so, its packets arrive here, but ours do not reach it: the path is broken in one direction.
    """
    packed = ipaddress.ip_address(address.partition("%")[0]).packed
    mapped = bytes(10) + b"\xff\xff" + packed  # form of an IPv4 address on an IPv6 socket
    numbers = {_as_listed(packed), _as_listed(mapped)}
    for table in _TABLES:
        with contextlib.suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                remote, state = (*line.split(), "", "", "", "")[2:4]
                if state == _SYN_RECV and remote.partition(":")[0] in numbers:
                    return True
    return False


def _as_listed(packed: bytes) -> str:
    """Return an address as /proc/net/tcp lists it.

    The table has each four bytes as one number in this machine's byte order.

    Examples
    --------
    >>> _as_listed(bytes([1, 1, 1, 1]))
    '01010101'
    """
    return "".join(f"{number:08X}" for (number,) in struct.iter_unpack("=I", packed))


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:  # the address is empty: the host has not connected yet
        return True


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
            if self._process is not None and not self.is_up:
                self._process.farewell()
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

    def offset(self) -> tuple[int, int]:
        """Return what to add to the host's time for ours, in ns.

        The second value is the greatest error of the first, in ns.
        """
        return self._offset.at(time.monotonic_ns())

    def clock(self) -> tuple[int, int] | None:
        """Return `offset`; None if the host is down or its clock unknown."""
        return self.offset() if self.is_up and self._offset.is_known else None

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
