"""The ranks' engines: what ipyparallel's controller calls them, and which of them take cells.

It knows the controller and its connection files; what becomes of a world without it is the root's.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Protocol

from phalanx.protocol import Booted, Registered, ToRank

from ._controller_process import Connection, ControllerProcess, file_for_rank

__all__ = ["Engines"]


class _Hosts(Protocol):
    """What is wanted of the ranks' hosts."""

    def root_address(self, rank: int) -> str: ...
    def send(self, rank: int, message: ToRank) -> None: ...


class Engines:
    """Runs the controller, and tells each rank how to reach it and by which name.

    ``names`` and ``ready`` (ranks) are also changed where a rank is replaced.
    """

    def __init__(
        self,
        ranks: int,
        hosts: _Hosts,
        *,
        is_new: Callable[[int], bool],
        on_lost: Callable[[str, str], None],
    ) -> None:
        self.names = [str(uuid.uuid4()) for _ in range(ranks)]
        self.ready: set[int] = set()
        self._session = str(uuid.uuid4())
        self._hosts = hosts
        self._is_new = is_new
        self._waiting: dict[int, int] = {}  # rank -> request id, until the controller is up
        self._connection: Connection = {}
        self._controller = ControllerProcess(self._on_up, on_lost)

    def start_controller(self, cwd: str, addresses: Sequence[str]) -> None:
        """Start it; ranks that ask before it is up are answered when it is."""
        self._controller.start(cwd, addresses)

    async def stop_controller(self) -> None:
        """End it, and wait until it is gone."""
        await self._controller.stop()

    def register(self, rank: int, request_id: int) -> None:
        """Answer a rank that wants to be an engine, now or when the controller is up."""
        if not self._connection:
            self._waiting[rank] = request_id
            return
        file = file_for_rank(self._connection, self._hosts.root_address(rank))
        answer = Registered(request_id, rank, self.names[rank], file, self._is_new(rank))
        self._hosts.send(rank, answer)

    def booted(self, client: int) -> Booted:
        """Tell a client, by its number, how the engines are reached."""
        return Booted(self._connection["client"], tuple(self.names), self._session, client)

    def _on_up(self, connection: Connection) -> None:
        self._connection = connection
        for rank, request_id in self._waiting.items():
            self.register(rank, request_id)
        self._waiting.clear()
