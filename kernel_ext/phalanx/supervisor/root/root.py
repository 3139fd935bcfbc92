"""Run the ranks of a world and watch them.

`Root` is the base class of both roots.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from phalanx.distributed.control import AbortKind
from phalanx.protocol import BootOptions, BootProgress, Notice, ToSupervisor
from phalanx.protocol.host import FromCommand

from ..health.impossible_waits import ImpossibleWait
from ..hosts.host_set import HostSet
from ..tasks import TaskSet
from ..world.membership import MembershipCoordinator
from ..world.state import WorldState
from .clients import Client
from .observers import DeadlockWatch, RankInspector, StallWatcher

log = logging.getLogger(__name__)

_Message = TypeVar("_Message")


class Root(ABC, Generic[_Message]):
    """Run the ranks of one world until it ends.

    `HostSet` calls the ``on_`` methods and `tell`.

    Parameters
    ----------
    options : BootOptions
        Options from the client.
    messages : type
        Type of the clients' messages.
    world : WorldState
        The world before its first epoch.
    """

    def __init__(self, options: BootOptions, messages: Any, world: WorldState) -> None:
        self._boot = options
        self._decoder: msgspec.msgpack.Decoder[_Message] = msgspec.msgpack.Decoder(messages)
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._tasks = TaskSet(lambda _error: self.end())
        self._world = world
        self._host = HostSet(options, self)
        self._membership = MembershipCoordinator(options, world, self._host)
        self._stalls = StallWatcher(
            world, self._host, self._running, self._gone, self._on_impossible_wait
        )
        self._deadlocks = DeadlockWatch(
            world,
            self._host,
            options.world.heartbeat_timeout_s,
            lambda found: self._membership.abort(AbortKind.MISMATCH, str(found)),
        )
        self._inspector = RankInspector(
            self._host,
            world,
            slow_operation_s=options.slow_operation_s,
            cwd=options.cwd,
            tell=lambda text: self.tell(Notice(text)),
        )

    async def run(self) -> None:
        """Start the ranks, and end them when the world is over."""
        try:
            await self._start()
            if not self._over.is_set():
                self._tasks.spawn(self._host.watch_health(self._awaited))
                self._tasks.spawn(self._inspector.watch(self._awaited))
                self._tasks.spawn(self._deadlocks.run(self._running))
                await self._over.wait()
        finally:
            self._tasks.cancel()
            self._stalls.stop()
            await self._stop()

    def end(self) -> None:
        """End the world, because of a signal, a request or an error."""
        self._over.set()

    def on_request(self, client: Client, body: bytes) -> None:
        """Handle a message of a client.

        A message that cannot be decoded (another version, a foreign sender) is logged and dropped.
        Such a message must not end the ranks.
        """
        try:
            message = self._decoder.decode(body)
        except (ValueError, RecursionError) as error:  # ValueError: also text that is not UTF-8
            log.warning("a message of a client was not understood: %s", error)
        else:
            self._serve(client, message)

    def on_frozen(self, rank: int, reason: str) -> None:
        """Free the ranks that may wait for a frozen one.

        `HeartbeatMonitor` finds it, and calls this repeatedly while the rank has no heartbeat.
        """
        awaited = self._awaited()
        if rank in awaited and len(awaited) > 1:
            self._membership.free_waiters(rank, reason)

    def _on_impossible_wait(self, found: ImpossibleWait) -> None:
        """Free the ranks that wait for a rank that joins no operation."""
        reason = f"{self._world.absence_reason(found.missing)}; {found}"
        self._membership.free_waiters(found.missing, reason)

    @abstractmethod
    async def _start(self) -> None:
        """Start the ranks."""

    @abstractmethod
    async def _stop(self) -> None:
        """End the ranks and close."""

    @abstractmethod
    def on_client(self, client: Client) -> None:
        """Take a new client."""

    @abstractmethod
    def on_client_gone(self, client: Client) -> None:
        """Take the end of a client; may be called again."""

    @abstractmethod
    def _serve(self, client: Client, message: _Message) -> None:
        """Handle one message of a client."""

    @abstractmethod
    def tell(self, message: BootProgress | Notice) -> None:
        """Send a message to the clients."""

    @abstractmethod
    def _running(self) -> Collection[int]:
        """Return the ranks that run code of the user."""

    @abstractmethod
    def _gone(self) -> Collection[int]:
        """Return the ranks that join no operation of the running ones."""

    @abstractmethod
    def _awaited(self) -> Collection[int]:
        """Return the ranks that others may wait for."""

    @abstractmethod
    def on_message(self, rank: int, message: ToSupervisor) -> None:
        """Answer or record a message that a rank sent on its channel."""

    @abstractmethod
    def on_lost(self, rank: int, reason: str, tail: str) -> None:
        """Handle the end of a rank's process.

        ``reason`` says how it ended. ``tail`` is the last output of the process.
        """

    @abstractmethod
    def on_command(self, message: FromCommand) -> None:
        """Handle a message about a rank's command."""

    @abstractmethod
    def on_not_up(self, reasons: Sequence[str]) -> None:
        """Give up: hosts could not be started.

        Called once every other host is up. ``reasons`` has one text for each failed host.
        """
