"""What a root does for ranks that join the world: their welcome, their rendezvous, their aborts.

It knows the world and this host's ranks; it knows neither cells nor scripts.
"""

from __future__ import annotations

import secrets
import socket

import phalanx
from phalanx.distributed import AbortKind
from phalanx.protocol import (
    EpochAborted,
    Gather,
    Join,
    Refused,
    SplitClosed,
    SplitFormed,
    ToSupervisor,
    Welcome,
)

from ._host import HostSupervisor
from ._world import Answer, World

__all__ = ["Membership"]


class Membership:
    """Answers the ranks of one world that all run on this host."""

    def __init__(self, name: str, transport: str, world: World, host: HostSupervisor) -> None:
        self._name = name
        self._transport = transport
        self._world = world
        self._host = host
        self._key = secrets.token_bytes(32)

    def answer(self, rank: int, message: ToSupervisor) -> bool:
        """Take what a rank said; False if it is no matter of membership."""
        if isinstance(message, Join):
            self._host.speaks(rank, message.pid)
            self._let_in(rank, message)
        elif isinstance(message, Gather):
            self.send_all(self._world.gather(rank, message))
        elif isinstance(message, EpochAborted):
            self._host.memory.abort(message.epoch, message.kind, message.culprit, message.message)
            self.send_all(self._world.abort(message.epoch, message.message))
        elif isinstance(message, SplitFormed):
            self._world.form_split(rank, message)
        elif isinstance(message, SplitClosed):
            self._world.close_split(rank, message)
        else:
            return False
        return True

    def send_all(self, answers: list[Answer]) -> None:
        """Send what the world answers; the dead get nothing."""
        for rank, message in answers:
            if rank not in self._world.dead:
                self._host.send(rank, message)

    def _let_in(self, rank: int, join: Join) -> None:
        if join.version == phalanx.__version__:
            self._host.send(rank, self._welcome(rank, join.id))
            return
        # What it would send is laid out otherwise; a group without it can never stand.
        why = (
            f"rank {rank} has phalanx {join.version or 'of another version'}, its supervisor has "
            f"{phalanx.__version__}: all need the same version"
        )
        epoch = self._world.epoch
        self._host.memory.abort(epoch, AbortKind.ERROR, rank, why)
        self.send_all(self._world.abort(epoch, why))
        self._host.send(rank, Refused(join.id, -1, why))

    def _welcome(self, rank: int, request_id: int) -> Welcome:
        size = self._world.size
        memory = self._host.memory
        return Welcome(
            id=request_id,
            rank=rank,
            size=size,
            epoch=self._world.epoch,
            workspace=self._name,
            key=self._key,
            hosts=(0,) * size,
            slots=tuple(range(size)),
            host_names=(socket.gethostname(),),
            addresses=("127.0.0.1",),
            transport=self._transport,
            page_fd=memory.page_fd,
            region_fds=memory.region_fds,
            wake_fds=memory.wake_fds,
        )
