"""Track the owner of a workspace.

When the owner's process ends, the linger timer starts. `Clients` also keeps the workspace's record
in the runtime folder up to date.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

import zmq.asyncio

import phalanx
from phalanx.protocol import (
    AttachRefused,
    BootOptions,
    FromRoot,
    Hello,
    OwnershipTransferred,
    RootAddress,
    WorkspaceRecord,
)
from phalanx.protocol.os_text import encode_message

from ..processes.system import open_pidfd, pid_namespace
from ..runtime_dir import RecordFile


class Clients:
    """Track the owner of one root, and send messages to clients.

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
        socket: zmq.asyncio.Socket,
        address: RootAddress,
        record: RecordFile | None,
        on_owner_gone: Callable[[], None],
        on_over: Callable[[], None],
    ) -> None:
        self._options = options
        self._socket = socket
        self._address = address
        self._file = record
        self._on_owner_gone = on_owner_gone
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self._started = time.time()
        self._owner = b""  # routing id; empty: no owner (yet)
        self._owner_pid = 0
        self._unsent: list[FromRoot] = []  # messages for the first owner, kept until its `Hello`
        self._had_owner = self._is_stopping = False
        self._pidfd = -1
        self._clock: asyncio.TimerHandle | None = None
        self._ends_at: float | None = None
        self.n_greeted = 0
        self._watch(options.client_pid)

    @property
    def owner(self) -> str:
        """Describe the process that owns the workspace."""
        if self._owner_pid or not self._owner:
            return f"process {self._owner_pid}"
        return "a process of another pid namespace (a container's?)"

    @property
    def had_owner(self) -> bool:
        """Whether the first owner has said hello (earlier messages are kept)."""
        return self._had_owner

    def has_owner(self, identity: bytes) -> bool:
        """Whether this client is the owner (may run cells, stop ranks)."""
        return bool(identity) and identity == self._owner

    # -- attach and detach --------------------------------------------------------------------

    def greet(self, identity: bytes, hello: Hello) -> bool:
        """Accept a client, or send it the reason for refusing it."""
        if self._is_stopping:
            self.answer(
                identity,
                AttachRefused(f"the workspace {self._options.world.name!r} is being stopped"),
            )
            return False
        if hello.version != phalanx.__version__:
            text = f"its phalanx is {phalanx.__version__}, this one is {hello.version}"
            self.answer(
                identity, AttachRefused(f"the workspace {self._options.world.name!r}: {text}")
            )
            return False
        # A pid of another namespace (a container's) means nothing here.
        pid = hello.pid if hello.pid_namespace in {0, pid_namespace()} else 0
        is_free = not self._owner and self._owner_pid in {0, pid}
        if not is_free and hello.mode != "take" and identity != self._owner:
            name = self._options.world.name
            text = (
                f"the workspace {name!r} is used by {self.owner}; take it over with "
                f"%distributed attach {name} --take"
            )
            self.answer(identity, AttachRefused(text))
            return False
        if not is_free and identity != self._owner:
            self._on_owner_gone()
            if self._owner:
                self.answer(self._owner, OwnershipTransferred(hello.pid))
        self._owner, self._had_owner = identity, True
        self._stop_clock()
        self._watch(pid)
        unsent, self._unsent = self._unsent, []
        for message in unsent:
            self.answer(identity, message)
        self.n_greeted += 1
        return True

    def let_go(self, identity: bytes) -> None:
        """Detach a client without stopping the ranks."""
        if self.has_owner(identity):
            self._on_gone()

    def _watch(self, pid: int) -> None:
        """Start the linger timer when this process ends.

        The previous owner's process is not watched any more.
        """
        self._unwatch()
        self._owner_pid = 0
        if not pid:  # unknown: only `Detach` starts the timer
            self.write()
            return
        try:
            self._pidfd = open_pidfd(pid)
        except ProcessLookupError:
            self._on_gone()
            return
        self._owner_pid = pid
        self._loop.add_reader(self._pidfd, self._on_gone)
        self.write()

    def _unwatch(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _on_gone(self) -> None:
        self._unwatch()
        self._owner, self._owner_pid = b"", 0
        self._on_owner_gone()
        self._stop_clock()
        self._clock = self._loop.call_later(self._options.linger_s, self._on_over)
        self._ends_at = time.time() + self._options.linger_s
        self.write()

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
        self._clock = self._ends_at = None

    # -- messages to clients ------------------------------------------------------------------

    def tell(self, message: FromRoot) -> None:
        """Send a message to the owner.

        Before the first owner's hello, the message is kept for that owner.
        """
        if self._owner:
            self.answer(self._owner, message)
        elif not self._had_owner:
            self._unsent.append(message)

    def answer(self, identity: bytes, message: FromRoot) -> None:
        """Send a message to one client."""
        # A ROUTER socket does not block: it drops messages to a client that has disconnected.
        self._socket.send_multipart([identity, encode_message(message)])

    # -- the workspace's record ---------------------------------------------------------------

    def write(self, cut_off: str = "") -> None:
        """Write the workspace's record for the user's other processes."""
        if self._file is None:
            return
        options = self._options
        self._file.write(
            WorkspaceRecord(
                version=phalanx.__version__,
                name=options.world.name,
                size=options.world.size,
                pid=os.getpid(),
                started=self._started,
                endpoint=self._address.endpoint,
                public_key=self._address.public_key,
                client_public_key=options.client_public_key,
                client_secret_key=options.client_secret_key,
                owner_pid=self._owner_pid,
                ends_at=self._ends_at,
                is_stopping=self._is_stopping,
                is_detached=options.is_detached,
                grace_s=options.grace_s,
                cut_off=cut_off,
            )
        )

    def stopping(self) -> None:
        """Refuse new clients from now on."""
        self._is_stopping = True
        self._stop_clock()
        self.write()

    def close(self, cut_off: str = "") -> None:
        """Remove the record after the ranks have ended.

        ``cut_off`` names the ranks that were killed, for a process that reads the file.
        """
        self._unwatch()
        if cut_off:
            self.write(cut_off)
        if self._file is not None:
            self._file.close()
