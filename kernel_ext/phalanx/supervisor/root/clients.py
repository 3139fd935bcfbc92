"""Serve a root's clients over stream sockets; track the workspace's owner.

When the owner has gone, the linger timer starts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

import phalanx
from phalanx.protocol import (
    BootOptions,
    Failed,
    FrameReader,
    FromRoot,
    Hello,
    OwnershipTransferred,
    RootAnswered,
    Stopped,
    WorkspaceRecord,
    pack_frame,
)

from ..processes.system import peer_of

if TYPE_CHECKING:
    from .workspace_root import WorkspaceRoot


log = logging.getLogger(__name__)

# What a workspace's client may leave unread, besides one message: a kernel that a debugger has
# stopped for a day does not fill the memory of its root.
MOST_UNREAD_NBYTES = 64 << 20
LAST_WORD_S = 0.5  # for clients to take the last message


class Client(asyncio.Protocol):
    """Connection to one client.

    ``pid`` is the process that has connected; 0: of another pid namespace.
    """

    def __init__(self, root: WorkspaceRoot) -> None:
        self._root = root
        self._reader = FrameReader()
        self._largest_nbytes = 0
        self.pid = 0
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet a process of this user, refuse any other."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.pid, user = peer_of(transport.get_extra_info("socket"))
        if user == os.geteuid():
            self._root.on_client(self)
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            bodies = self._reader.feed(data)
        except ValueError as error:
            log.warning("the connection to a client is closed: %s", error)
            self._transport.abort()
            return
        for body in bodies:
            self._root.on_request(self, body)

    def eof_received(self) -> None:
        """Take the client's end; the transport closes by itself."""
        self._root.on_client_gone(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._root.on_client_gone(self)
        self.ended.set_result(None)

    @property
    def is_overdue(self) -> bool:
        """Whether the client leaves too much unread."""
        unread_nbytes = self._transport.get_write_buffer_size()
        return unread_nbytes > MOST_UNREAD_NBYTES + self._largest_nbytes

    def tell(self, message: msgspec.Struct) -> None:
        frame = pack_frame(message)
        self._largest_nbytes = max(self._largest_nbytes, len(frame))
        self._transport.write(frame)

    def close(self) -> None:
        """Close the connection once the client has read everything."""
        self._transport.close()


class Clients:
    """Track the clients of one workspace and which of them owns it.

    The first client has started the root and is its owner.

    Parameters
    ----------
    on_owner_gone : callable
        Called when the owner has gone or is about to be replaced. No client sees output shown from
        then until another owner attaches.
    on_over : callable
        Called when no owner attached within the linger time.
    """

    def __init__(
        self,
        options: BootOptions,
        on_owner_gone: Callable[[], None],
        on_over: Callable[[], None],
    ) -> None:
        self._options = options
        self._on_owner_gone = on_owner_gone
        self._on_over = on_over
        self._started = time.time()
        self._all: set[Client] = set()
        self._owner: Client | None = None
        self.is_stopping = False
        self._clock: asyncio.TimerHandle | None = None
        self._ends_at: float | None = None
        self.n_owners = 0

    @property
    def owner(self) -> str:
        if self._owner is None or self._owner.pid:
            return f"process {self._owner.pid if self._owner else 0}"
        return "a process of another pid namespace (a container's?)"

    def has_owner(self, client: Client) -> bool:
        """Whether this client is the owner (may run cells, stop ranks)."""
        return client is self._owner

    def meet(self, client: Client) -> None:
        """Tell a new client which workspace this is."""
        self._all.add(client)
        if not self.n_owners:
            self._own(client)
        client.tell(
            WorkspaceRecord(
                version=phalanx.__version__,
                name=self._options.world.name,
                size=self._options.world.size,
                pid=os.getpid(),
                started=self._started,
                owner_pid=self._owner.pid if self._owner else 0,
                ends_at=self._ends_at,
                is_stopping=self.is_stopping,
                is_detached=self._options.is_detached,
                grace_s=self._options.grace_s,
            )
        )

    def greet(self, client: Client, hello: Hello) -> bool:
        """Make a client the owner, or send it the reason against that."""
        name = self._options.world.name
        if self.is_stopping:
            client.tell(Failed(f"the workspace {name!r} is being stopped"))
            return False
        if self._owner is not None and self._owner is not client:
            if not hello.is_taking:
                text = (
                    f"the workspace {name!r} is used by {self.owner}; take it over with "
                    f"%distributed attach {name} --take"
                )
                client.tell(Failed(text))
                return False
            self._on_owner_gone()
            self.answer(self._owner, OwnershipTransferred(client.pid))
        self._own(client)
        return True

    def _own(self, client: Client) -> None:
        self._owner = client
        self.n_owners += 1
        self._stop_clock()

    def lose(self, client: Client) -> None:
        """Forget a client that has gone.

        The linger timer starts if it was the owner.
        """
        self._all.discard(client)
        if client is self._owner:
            self._owner = None
            self._on_owner_gone()
            loop, linger_s = asyncio.get_running_loop(), self._options.linger_s
            self._clock = loop.call_later(linger_s, self._on_over)
            self._ends_at = time.time() + linger_s

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
        self._clock = self._ends_at = None

    def tell(self, message: FromRoot) -> None:
        if self._owner is not None:
            self.answer(self._owner, message)

    def answer(self, client: Client, message: FromRoot) -> None:
        """Send a message; give up a client that does not read."""
        if client not in self._all:
            return
        client.tell(message)
        if client.is_overdue:
            log.warning("process %d does not read what its workspace sends", client.pid)
            client.tell(OwnershipTransferred(-1))
            client.close()
            self.lose(client)

    def stopping(self) -> None:
        self.is_stopping = True
        self._stop_clock()

    async def close(self, cut_off: str, asked: tuple[Client, int] | None) -> None:
        """Tell all clients that the ranks have ended, and close the connections.

        ``cut_off`` names the ranks that were killed, and ``asked`` is the client that has asked for
        the end, and the number of its request.
        """
        ends = [client.ended for client in self._all]
        for client in tuple(self._all):
            number = asked[1] if asked and client is asked[0] else 0
            client.tell(RootAnswered(number, Stopped(cut_off)))
            client.close()
        if ends:
            await asyncio.wait(ends, timeout=LAST_WORD_S)
