"""A host's way to its root: a connection, and another one when that has broken.

What is said meanwhile is kept, and nothing is taken twice. It knows sockets and letters; what is
said, and what follows when the root is gone, is the role's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from phalanx.protocol import MAX_FRAME
from phalanx.protocol.host_letters import ToHostLetter
from phalanx.protocol.hosts import FromHost, HostBoot, Rejoin, Rejoined, ToHost

from ._letters import Letters
from ._reach import reach

__all__ = ["RootLink"]

MESSAGE_MAX_NBYTES = MAX_FRAME + (1 << 20)
# A root that lives is listening: what is refused for so long is refused for good. More than once,
# for a router or a firewall that starts anew may refuse what it does not know yet.
REFUSED_S = 0.5
AGAIN_S = 0.1  # between tries to reach it
REACH_S = 1.5  # for tcp's first two packets, and one tried again
JOIN_S = 5.0  # for its answer on a new connection: a root that is busy, or stopped for a while


class RootLink:
    """What a host says to its root and hears from it; ``endpoint`` is the one it has reached."""

    def __init__(self, context: zmq.asyncio.Context, boot: HostBoot, endpoint: str) -> None:
        self._context = context
        self._boot = boot
        self._endpoint = endpoint
        self._letters = Letters()
        self._decoder = msgspec.msgpack.Decoder(ToHostLetter)
        self._turn = 0
        self._has_heard = False
        self._is_joined = True  # the first connection needs no more words
        self._stale = asyncio.Event()
        self._socket = self._connect(endpoint)

    @property
    def address(self) -> str:
        """Where the root is reached."""
        return self._endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")

    @property
    def is_joined(self) -> bool:
        """Whether the root hears what is said now, as far as is known."""
        return self._is_joined

    def _connect(self, endpoint: str) -> zmq.asyncio.Socket:
        root = self._context.socket(zmq.DEALER)
        root.linger = 500  # ms: the last word still goes out
        root.sndhwm = root.rcvhwm = 0
        root.maxmsgsize = MESSAGE_MAX_NBYTES
        root.ipv6 = True
        # Not by itself: a new connection begins with what was not heard on the one before.
        root.reconnect_ivl = -1
        root.curve_serverkey = self._boot.root_key
        root.curve_publickey, root.curve_secretkey = self._boot.public_key, self._boot.secret_key
        # Before it connects: what is refused at once is to be heard of as well. A root that ends
        # closes its connections first, and can still be reached until it closes what listens.
        self._monitor = root.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED)
        root.connect(endpoint)
        return root

    def say(self, message: FromHost) -> None:
        """Say something; it is kept until the root has it."""
        self._send(self._letters.write(message))

    def note(self, message: FromHost) -> None:
        """Say something that is of no use later."""
        if self._is_joined:
            self._send(self._letters.note(message))

    def _send(self, body: bytes) -> None:
        if self._is_joined:
            self._socket.send_multipart([body])

    def doubt(self) -> None:
        """Try another connection: nothing has come on this one for a while."""
        self._stale.set()

    async def run(self, take: Callable[[ToHost], None]) -> bool:
        """Hand on what the root says; return when there is no such root any more.

        Returns
        -------
        bool
            Whether the root had ever said anything.
        """
        while True:
            await self._serve(take)
            if not self._has_heard:
                return False
            if not self._is_joined:  # it was let in by nobody
                await asyncio.sleep(AGAIN_S)
            self._is_joined = False
            self._socket.close(linger=0)
            endpoint = await self._find()
            if not endpoint:
                return True
            self._endpoint = endpoint
            self._turn += 1
            self._socket = self._connect(endpoint)
            self._socket.send_multipart([self._letters.note(Rejoin(self._turn))])

    async def _serve(self, take: Callable[[ToHost], None]) -> None:
        """Hand on what comes on this connection, until it has broken, or nothing comes."""
        root, monitor = self._socket, self._monitor
        self._stale.clear()
        joined = asyncio.Event()
        reading = asyncio.ensure_future(self._read(root, take, joined))
        broken = asyncio.ensure_future(recv_monitor_message(monitor))
        silent = asyncio.ensure_future(self._wait_silent(joined))
        every: set[asyncio.Future[Any]] = {reading, broken, silent}
        try:
            await asyncio.wait(every, return_when=asyncio.FIRST_COMPLETED)
            # What came before its end is read as well: it may be the root's last word.
            # Asked so, the socket tells its readers as well; a poll takes the signal from them.
            while not reading.done() and int(root.get(zmq.EVENTS)) & zmq.POLLIN:
                await asyncio.sleep(0)
            if reading.done():
                reading.result()  # a mistake of ours
        finally:
            for task in every:
                task.cancel()
            await asyncio.wait(every)
            self._unwatch()

    async def _wait_silent(self, joined: asyncio.Event) -> None:
        """Wait until this connection has been silent for too long."""
        if self._turn:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(joined.wait(), JOIN_S)
            if not joined.is_set():
                return
            self._stale.clear()
        await self._stale.wait()

    async def _read(
        self, root: zmq.asyncio.Socket, take: Callable[[ToHost], None], joined: asyncio.Event
    ) -> None:
        while True:
            (body,) = await root.recv_multipart()
            letter = self._decoder.decode(body)
            is_new = self._letters.read(letter)
            self._has_heard = True
            if isinstance(letter.message, Rejoined):
                self._is_joined = True
                joined.set()
                for kept in self._letters.unheard:
                    self._send(kept)
            if is_new:
                take(letter.message)

    async def _find(self) -> str:
        """Wait until the root can be reached again; "" when it does not listen there any more."""
        loop = asyncio.get_running_loop()
        others = [other for other in self._boot.endpoints if other != self._endpoint]
        refused_since_s: float | None = None
        while True:
            found = await reach((self._endpoint, *others), REACH_S, is_refusal_final=True)
            if found.endpoint:
                return found.endpoint
            now_s = loop.time()
            if not found.is_refused:
                refused_since_s = None
            elif refused_since_s is None:
                refused_since_s = now_s
            elif now_s - refused_since_s >= REFUSED_S:
                return ""
            await asyncio.sleep(AGAIN_S)

    def _unwatch(self) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disable_monitor()
        self._monitor.close(linger=0)  # that has only forgotten it

    def close(self) -> None:
        """Close the connection; what was said last still goes out."""
        self._unwatch()  # where nobody has run it
        self._socket.close()
