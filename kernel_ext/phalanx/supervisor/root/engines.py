"""Tell each rank its engine's uuid and how to reach ipyparallel's controller."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from phalanx.protocol import Booted, Registered

from ..engine.controller import Connection, ControllerProcess, file_for_rank
from ..hosts.host_set import HostSet
from ..world.ranks import RankDirectory


class Engines:
    """Run the controller and send each rank its uuid and connection file.

    ``names`` (engine uuid by rank) is also changed by `Restarts`, when a rank is replaced.
    """

    def __init__(
        self, ranks: RankDirectory, hosts: HostSet, *, on_lost: Callable[[str, str], None]
    ) -> None:
        self.names = [str(uuid.uuid4()) for _ in range(ranks.size)]
        self._session = str(uuid.uuid4())
        self._hosts = hosts
        self._ranks = ranks
        self._waiting: dict[int, int] = {}  # rank -> request id, until the controller is up
        self._connection: Connection = {}
        self.controller = ControllerProcess(self._on_up, on_lost)

    def register(self, rank: int, request_id: int) -> None:
        """Answer a rank's registration, now or when the controller is up."""
        if not self._connection:
            self._waiting[rank] = request_id
            return
        file = file_for_rank(self._connection, self._hosts.root_address(rank))
        is_new = self._ranks.is_replacement(rank)
        answer = Registered(request_id, rank, self._ranks.size, self.names[rank], file, is_new)
        self._hosts.send(rank, answer)

    def booted(self, client: int) -> Booted:
        """Return the message that tells a client how to reach the engines."""
        return Booted(self._connection["client"], tuple(self.names), self._session, client)

    def _on_up(self, connection: Connection) -> None:
        self._connection = connection
        for rank, request_id in self._waiting.items():
            self.register(rank, request_id)
        self._waiting.clear()
