"""The line to the supervisor of another host: its start, its signs of life, questions, its end.

It knows one life of that supervisor; of ranks it knows nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import zmq

import phalanx
from phalanx.protocol.hosts import (
    Beat,
    Beaten,
    Bye,
    FromHost,
    HostUp,
    Killed,
    Looked,
    Refreshed,
    Rejoin,
    Shown,
    StopHost,
    ToHost,
    Traces,
)

from ._beats import ClockOffset, Silence, beat_every_s
from ._host_door import HostDoor
from ._host_process import HostStart
from ._launch_host import HostProcess, HostUnreachable, launch_host
from ._silent_line import SilentLine

__all__ = ["Answer", "HostLine"]

log = logging.getLogger(__name__)

Answer = TypeVar("Answer", Killed, Looked, Traces, Shown, Refreshed)

LOOK_EVERY_S = 0.2  # for a silence: as exact as for one rank
UP_S = 10.0  # from its start to its first word, at least: ten times what that takes
STOP_S = 2.0  # to end ranks (0.5 s for those that take their time), and to sweep up


class HostLine:
    """One start of one host's supervisor, until it is stopped or lost.

    A connection that breaks is no loss: the host comes in again, and nothing is missing. It is lost
    when it is known to have ended, or has not been heard for ``silence_s``.

    Parameters
    ----------
    take : callable
        Gets what it says, once it is up, but for what is this line's own.
    lost : callable
        Called once, with the reason, when it is up and cannot be spoken with any more.
    """

    def __init__(
        self,
        door: HostDoor,
        silence_s: float,
        take: Callable[[FromHost], None],
        lost: Callable[[str], None],
    ) -> None:
        self._door = door
        self._silence_s = silence_s
        self._take = take
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self.keys = zmq.curve_keypair()  # public, secret
        self._key = self.keys[0]
        self._process: HostProcess | None = None
        self._ended: asyncio.Task[str] | None = None
        self._up: asyncio.Future[HostUp] = self._loop.create_future()
        self._refused: asyncio.Future[str] = self._loop.create_future()  # before it was up
        self._bye = asyncio.Event()
        self._silence = Silence(silence_s, self._loop.time())
        self._offset = ClockOffset()
        self._beats = itertools.count(1)
        self._sent: dict[int, int] = {}  # beats without an answer yet: when they were sent, in ns
        self._ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_up = False
        self._is_broken = False  # its connection, for now
        self._way = SilentLine("", "")

    # -- its start ----------------------------------------------------------------------------

    async def boot(self, asked: HostStart) -> HostUp:
        """Start it with its first line, in which its keys are, and wait for it.

        Raises
        ------
        HostUnreachable
            Says why not.
        """
        self._door.expect(self._key, self._on_message, self._on_failed)
        until_s = self._loop.time() + asked.remote.timeout_s
        self._process = await launch_host(asked)
        until_s = max(until_s, self._loop.time() + UP_S)  # what a queue took is no fault of its own
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
                self._silence = Silence(self._silence_s, self._loop.time())
                there = self._door.address_of(self._key)
                self._way = SilentLine(up.root_address, there, up.addresses)
                self._spawn_task(self._beat())
                self._spawn_task(self._watch_process(self._ended))
                return up
            problem = f"its phalanx is {up.version}, this one is {phalanx.__version__}"
        elif self._ended.done():
            problem = self._ended.result()
        self.disown()
        text = problem or f"its supervisor was not up within {asked.remote.timeout_s:g} s"
        raise HostUnreachable(asked.plan.name, text)

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.critical("a task of a host's line failed", exc_info=task.exception())
            self._lose("its line has failed")

    # -- what it says -------------------------------------------------------------------------

    def _on_message(self, message: FromHost) -> None:
        self._silence.heard()
        if isinstance(message, HostUp):
            if not self._up.done():
                self._up.set_result(message)
        elif isinstance(message, Bye):
            self._bye.set()
            if self._process is not None and not self.is_up:
                self._process.farewell()
        elif isinstance(message, Rejoin):
            self._is_broken = False
        elif not self.is_up:
            return
        elif isinstance(message, Beaten):
            self._on_beaten(message)
        elif isinstance(message, Killed | Looked | Traces | Shown | Refreshed):
            asked = self._asked.get(message.id)
            if asked is not None and not asked.done():
                asked.set_result(message)
        else:
            self._take(message)

    def _on_failed(self, problem: str) -> None:
        """Take it that this host said what it may not, or that its connection has broken."""
        if not self.is_up:
            if problem and not self._refused.done():
                self._refused.set_result(problem)
            return
        if problem:
            self.refuse(problem)
            return
        self._is_broken = True
        if why := self._why_over():
            self._lose(why)
        elif self._process is not None:
            self._process.look()

    def refuse(self, problem: str) -> None:
        """End a supervisor that cannot be trusted any more."""
        self._lose(problem)
        self.disown()

    def _why_over(self) -> str:
        """Say how it has ended; "" if it may live, with or without what has started it."""
        if self._process is None or self._ended is None or not self._ended.done():
            return ""
        return self._ended.result() if self._process.is_over else ""

    def _lose(self, reason: str) -> None:
        if not self.is_up:
            return
        self._finish()
        self._door.give_up(self._key)
        self._lost(reason)

    def _finish(self) -> None:
        self.is_up = False
        for asked in self._asked.values():
            if not asked.done():
                asked.cancel()
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()

    # -- signs of life ------------------------------------------------------------------------

    async def _beat(self) -> None:
        beat_at_s = 0.0
        while True:
            now_s = self._loop.time()
            if self._silence.is_over(now_s):
                how = " (its connection has broken)" if self._is_broken else ""
                self._lose(f"it has not answered for {self._silence_s:g} s{how}{self._way}")
                return
            if self._silence.lasts_s < self._silence_s / 2:
                self._way.forget()
            elif not self._way.is_asked:
                self._spawn_task(self._way.ask(self._silence_s / 3))
            if now_s >= beat_at_s:
                beat_at_s = now_s + beat_every_s(self._silence_s)
                self._say_beat()
            await asyncio.sleep(min(LOOK_EVERY_S, self._silence_s / 4))

    def _say_beat(self) -> None:
        number = next(self._beats)
        self._sent[number] = time.monotonic_ns()
        self._door.note(self._key, Beat(number))

    def _on_beaten(self, message: Beaten) -> None:
        sent_ns = self._sent.pop(message.number, None)
        if sent_ns is not None:
            came_ns = time.monotonic_ns()
            self._offset.learn(sent_ns=sent_ns, came_ns=came_ns, theirs_ns=message.now_ns)

    async def _watch_process(self, ended: asyncio.Task[str]) -> None:
        """When what has started it ends: it has died, or it goes on without."""
        await asyncio.wait({ended})
        # Its last words may be on their way: until its connection is known to have broken, which
        # it is when the next word cannot be sent.
        until_s = self._loop.time() + min(1.0, self._silence_s)
        while (why := self._why_over()) and self._loop.time() < until_s and not self._is_broken:
            self._say_beat()
            await asyncio.sleep(0.02)
        if why:
            self._lose(why)

    # -- talking ------------------------------------------------------------------------------

    def say(self, message: ToHost) -> None:
        """Tell it something, also while its connection is broken; one that is gone never hears it."""
        self._door.say(self._key, message)

    async def ask(
        self, make: Callable[[int], ToHost], kind: type[Answer], timeout_s: float
    ) -> Answer | None:
        """Ask it something; None if it does not answer in time."""
        if not self.is_up:
            return None
        number = next(self._ids)
        asked = self._asked[number] = self._loop.create_future()
        self.say(make(number))
        try:
            await asyncio.wait({asked}, timeout=timeout_s)
            answer = None if asked.cancelled() or not asked.done() else asked.result()
        finally:
            del self._asked[number]
        if answer is not None and not isinstance(answer, kind):
            self.refuse("answered what it was not asked")
            return None
        return answer

    def measure(self, n_beats: int = 5) -> None:
        """Compare clocks some times; the answers come before that to the next question."""
        for _ in range(n_beats):
            self._say_beat()

    def offset(self) -> tuple[int, int]:
        """What to add to its time to have ours, and by how much that may be wrong (ns)."""
        return self._offset.at(time.monotonic_ns())

    def clock(self) -> tuple[int, int] | None:
        """Return `offset`; None while it is not up or has not told its time."""
        return self.offset() if self.is_up and self._offset.is_known else None

    # -- its end ------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Have it end its ranks and itself, and wait for that; kill what does not end."""
        was_up = self.is_up
        self._finish()
        if was_up:
            self.say(StopHost())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._over(), STOP_S)
        self.disown()
        if self._ended is not None:
            await asyncio.wait({self._ended}, timeout=1.0)
            self._ended.cancel()

    async def _over(self) -> None:
        """Wait for its goodbye, or for its end without; what has started it may have gone before."""
        bye = self._loop.create_task(self._bye.wait())
        waits = {bye} if self._ended is None else {bye, self._ended}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not self._why_over():
            await asyncio.wait({bye})
        bye.cancel()
        if self._ended is not None:
            await asyncio.wait({self._ended})

    def disown(self) -> None:
        """Let it end by itself, wherever it is, and end what of it is here."""
        self._finish()
        self._door.give_up(self._key)
        if self._process is not None:
            self._process.kill()
