"""Who uses a workspace: one owner, whose end starts the linger clock, and those who only watch.

It knows the root's socket, the owner's process and the record in the runtime folder; nothing of
ranks and cells.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

import msgspec
import zmq.asyncio

import phalanx
from phalanx.protocol import (
    BootOptions,
    FromRoot,
    Hello,
    NotYours,
    RootAddress,
    Taken,
    WorkspaceRecord,
)

from ._runtime_folder import RecordFile
from ._system import open_pidfd

__all__ = ["Clients"]


class Clients:
    """The clients of one root.

    Parameters
    ----------
    on_owner_gone : callable
        Called when the owner has gone or is about to be replaced: what is shown from now on
        nobody sees, until another comes.
    on_over : callable
        Called when nobody came within the linger time.
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
        self._owner = b""  # routing id, empty where there is none (yet)
        self._owner_pid = 0
        self._watchers: dict[bytes, int] = {}  # routing id -> process
        self._unsent: list[FromRoot] = []  # for the first owner, until it says hello
        self._had_owner = self._is_stopping = False
        self._pidfd = -1
        self._clock: asyncio.TimerHandle | None = None
        self._ends_at: float | None = None
        self.n_greeted = 0
        self._watch(options.client_pid)

    @property
    def owner_pid(self) -> int:
        """The process that uses the workspace; 0 for none."""
        return self._owner_pid

    @property
    def had_owner(self) -> bool:
        """Whether the first owner has said hello: what is told before is kept for it."""
        return self._had_owner

    def has_owner(self, identity: bytes) -> bool:
        """Whether this client may run cells and stop the ranks."""
        return bool(identity) and identity == self._owner

    # -- coming and going ---------------------------------------------------------------------

    def greet(self, identity: bytes, hello: Hello) -> bool:
        """Take a client in, or tell it why not."""
        if self._is_stopping:
            self.answer(
                identity, NotYours(f"the workspace {self._options.name!r} is being stopped")
            )
            return False
        if hello.version != phalanx.__version__:
            text = f"its phalanx is {phalanx.__version__}, this one is {hello.version}"
            self.answer(identity, NotYours(f"the workspace {self._options.name!r}: {text}"))
            return False
        if hello.mode == "watch":
            self._watchers[identity] = hello.pid
            self.n_greeted += 1
            return True
        is_free = not self._owner_pid or (not self._owner and hello.pid == self._owner_pid)
        if not is_free and hello.mode != "take" and identity != self._owner:
            name = self._options.name
            text = (
                f"the workspace {name!r} is used by process {self._owner_pid}; take it over with "
                f"%distributed attach {name} --take, or look on with --watch"
            )
            self.answer(identity, NotYours(text))
            return False
        if not is_free and identity != self._owner:
            self._on_owner_gone()
            if self._owner:
                self.answer(self._owner, Taken(hello.pid))
        self._owner, self._had_owner = identity, True
        self._stop_clock()
        self._watch(hello.pid)
        unsent, self._unsent = self._unsent, []
        for message in unsent:
            self.answer(identity, message)
        self.n_greeted += 1
        return True

    def let_go(self, identity: bytes) -> None:
        """Let a client leave without stopping the ranks."""
        self._watchers.pop(identity, None)
        if self.has_owner(identity):
            self._on_gone()

    def _watch(self, pid: int) -> None:
        """Start the linger clock when this process is gone (instead of the one before)."""
        self._unwatch()
        if not pid:  # it does not say; the clock never starts
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

    # -- telling ------------------------------------------------------------------------------

    def tell(self, message: FromRoot) -> None:
        """Send news to all clients; before the first owner's hello, keep them for it."""
        for identity, pid in list(self._watchers.items()):
            if _runs(pid):
                self.answer(identity, message)
            else:
                del self._watchers[identity]
        if self._owner:
            self.answer(self._owner, message)
        elif not self._had_owner:
            self._unsent.append(message)

    def answer(self, identity: bytes, message: FromRoot) -> None:
        """Send to a client."""
        # A ROUTER does not block: what a client that is gone cannot take is dropped.
        self._socket.send_multipart([identity, msgspec.msgpack.encode(message)])

    # -- the record ---------------------------------------------------------------------------

    def write(self) -> None:
        """Write down how things stand, for the user's other processes."""
        if self._file is None:
            return
        options = self._options
        self._file.write(
            WorkspaceRecord(
                version=phalanx.__version__,
                kind="cells",
                name=options.name,
                size=options.ranks,
                pid=os.getpid(),
                started=self._started,
                endpoint=self._address.endpoint,
                public_key=self._address.public_key,
                client_public_key=options.client_public_key,
                client_secret_key=options.client_secret_key,
                owner_pid=self._owner_pid,
                ends_at=self._ends_at,
                is_stopping=self._is_stopping,
            )
        )

    def stopping(self) -> None:
        """Take nobody in any more."""
        self._is_stopping = True
        self._stop_clock()
        self.write()

    def close(self) -> None:
        """Remove the record: the ranks are gone."""
        self._unwatch()
        if self._file is not None:
            self._file.close()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it runs under another user's name
        pass
    return True
