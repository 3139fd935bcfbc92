"""What a root does for ranks that join the world: their welcome, their rendezvous, their aborts.

It knows the world and its hosts; it knows neither cells nor scripts.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection

import phalanx
from phalanx.distributed import AbortKind, accused
from phalanx.protocol import (
    BootOptions,
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

from ._any_host import Host
from ._world import Answer, World

__all__ = ["Membership"]


class Membership:
    """Answers the ranks of one world, whatever hosts they run on.

    It decides when the next epoch begins and who is in it. ``gone`` are the ranks that live and
    will ask for nothing any more.
    """

    def __init__(
        self,
        options: BootOptions,
        world: World,
        host: Host,
        gone: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self._options = options
        self._world = world
        self._host = host
        self._gone = gone
        self._key = secrets.token_bytes(32)
        self._foreign: dict[int, str] = {}  # ranks of another version, and what all are told

    def answer(self, rank: int, message: ToSupervisor) -> bool:
        """Take what a rank said; False if it is no matter of membership."""
        if isinstance(message, Join):
            self._host.speaks(rank, message.pid)
            if self._has_our_version(rank, message):
                self._host.send(rank, self._welcome(rank, message.id))
        elif isinstance(message, Gather):
            self.send_all(self._world.gather(rank, message))
        elif isinstance(message, Recover):
            if self._has_our_version(rank, message):
                self._world.ask(rank, message)
                self.look()
        elif isinstance(message, Withdraw):
            missing = self._world.withdraw(rank, message.of)
            self._host.send(rank, Refused(message.id, -1, ", ".join(map(self._who, missing))))
        elif isinstance(message, EpochAborted):
            kind, culprit = message.kind, message.culprit
            self._host.abort(message.epoch, kind, culprit, message.message)
            is_loss = kind in {AbortKind.RANK_FAILURE, AbortKind.LINK_BROKEN}
            lost = accused(kind, culprit) if is_loss else -1
            self.send_all(self._world.abort(message.epoch, message.message, lost))
        elif isinstance(message, SplitFormed):
            self._world.form_split(rank, message)
        elif isinstance(message, SplitClosed):
            self._world.close_split(rank, message)
        else:
            return False
        return True

    def free(self, lost: int, reason: str) -> None:
        """Free every rank that waits, or will wait, in this epoch: rank ``lost`` does not come."""
        epoch = self._world.epoch
        self._host.abort(epoch, AbortKind.RANK_FAILURE, lost, reason)
        self.send_all(self._world.abort(epoch, reason, lost))

    def lose(self, rank: int, reason: str) -> None:
        """Free everyone who waits for a rank that is dead, now and until the world is mended."""
        self._foreign.pop(rank, None)  # whoever takes its place may be of our version
        self._host.abort(self._world.epoch, AbortKind.RANK_FAILURE, rank, reason)
        self.send_all(self._world.lose(rank, reason))
        self._host.give_back(rank)

    def send_all(self, answers: list[Answer]) -> None:
        """Send what the world answers; the dead get nothing."""
        for rank, message in answers:
            if rank not in self._world.dead:
                self._host.send(rank, message)

    def _has_our_version(self, rank: int, ask: Join | Recover) -> bool:
        """Refuse a rank of another one, and whoever waits for it."""
        self._foreign.pop(rank, None)
        if ask.version == phalanx.__version__:
            return True
        # What it would send is laid out otherwise; a group without it can never stand.
        why = (
            f"rank {rank} has phalanx {ask.version or 'of another version'}, its supervisor has "
            f"{phalanx.__version__}: all need the same version"
        )
        self._foreign[rank] = why
        epoch = self._world.epoch
        self._host.abort(epoch, AbortKind.ERROR, rank, why)
        self.send_all(self._world.abort(epoch, why))
        self._host.send(rank, Refused(ask.id, -1, why))
        self.look()
        return False

    def look(self) -> None:
        """Let the next epoch begin if every rank asks for it; free those who ask in vain."""
        world = self._world
        if world.is_unanimous:
            self._begin_epoch()
        elif self._foreign and not world.dead:
            why = next(iter(self._foreign.values()))
            self.send_all([(rank, Refused(of, -1, why)) for rank, of in world.take_asking()])
        else:
            self.send_all(world.refuse_asking(self._gone()))

    def _begin_epoch(self) -> None:
        world, host = self._world, self._host
        if not world.is_good:
            # Closed somewhere, perhaps not aborted: what comes next may use the same memory.
            host.abort(world.epoch, AbortKind.ERROR, -1, "the group was formed anew")
        reason = host.abort_reason(world.epoch)
        if reason is not None:
            self.send_all(world.abort(world.epoch, reason[2]))
            world.begin_epoch()
        self.welcome_asking()

    def welcome_asking(self) -> None:
        """Tell all who asked for it which epoch it is now."""
        for rank, request_id in self._world.take_asking():
            self._host.send(rank, self._welcome(rank, request_id))

    def _who(self, rank: int) -> str:
        doing = self._host.activity(rank).doing
        return f"rank {rank} ({doing})" if doing else f"rank {rank}"

    def _welcome(self, rank: int, request_id: int) -> Welcome:
        self._world.welcome(rank)
        layout = self._host.layout
        return Welcome(
            id=request_id,
            rank=rank,
            size=self._world.size,
            epoch=self._world.epoch,
            workspace=self._options.name,
            key=self._key,
            hosts=layout.hosts,
            slots=layout.slots,
            host_names=layout.names,
            transport=self._options.transport,
            silence_s=self._options.silence_s,
        )
