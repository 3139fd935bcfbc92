"""What a root does for ranks that join the world: their welcome, their rendezvous, their aborts.

It knows the world and this host's ranks; it knows neither cells nor scripts.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Collection

from phalanx.distributed import AbortKind
from phalanx.protocol import (
    EpochAborted,
    Gather,
    Join,
    Recover,
    Refused,
    SplitClosed,
    SplitFormed,
    ToSupervisor,
    Welcome,
    Withdraw,
)

from ._host import HostSupervisor
from ._world import Answer, World

__all__ = ["Membership"]


class Membership:
    """Answers the ranks of one world that all run on this host.

    It decides when the next epoch begins and who is in it. ``gone`` are the ranks that live and
    will ask for nothing any more.
    """

    def __init__(
        self,
        name: str,
        transport: str,
        world: World,
        host: HostSupervisor,
        gone: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self._name = name
        self._transport = transport
        self._world = world
        self._host = host
        self._gone = gone
        self._key = secrets.token_bytes(32)

    def answer(self, rank: int, message: ToSupervisor) -> bool:
        """Take what a rank said; False if it is no matter of membership."""
        if isinstance(message, Join):
            self._host.speaks(rank, message.pid)
            self._host.send(rank, self._welcome(rank, message.id))
        elif isinstance(message, Gather):
            self.send_all(self._world.gather(rank, message))
        elif isinstance(message, Recover):
            self._world.ask(rank, message)
            self.look()
        elif isinstance(message, Withdraw):
            missing = self._world.withdraw(rank, message.of)
            self._host.send(rank, Refused(message.id, -1, ", ".join(map(self._who, missing))))
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

    def look(self) -> None:
        """Let the next epoch begin if every rank asks for it; free those who ask in vain."""
        if self._world.is_unanimous:
            self._begin_epoch()
        else:
            self.send_all(self._world.refuse_asking(self._gone()))

    def _begin_epoch(self) -> None:
        world, memory = self._world, self._host.memory
        if not world.is_good:
            # Closed somewhere, perhaps not aborted: what comes next may use the same memory.
            memory.abort(world.epoch, AbortKind.ERROR, -1, "the group was formed anew")
        reason = memory.reason(world.epoch)
        if reason is not None:
            self.send_all(world.abort(world.epoch, reason[2]))
            world.begin_epoch()
        self.welcome_asking()

    def welcome_asking(self) -> None:
        """Tell all who asked for it which epoch it is now."""
        for rank, request_id in self._world.take_asking():
            self._host.send(rank, self._welcome(rank, request_id))

    def _who(self, rank: int) -> str:
        doing = self._host.memory.activity(rank).doing
        return f"rank {rank} ({doing})" if doing else f"rank {rank}"

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
