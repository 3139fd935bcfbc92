"""Answer the ranks' messages about epochs, joins and splits, on all hosts.

`WorldState` decides, without I/O; `MembershipCoordinator` connects it to the hosts and sends its
answers.
"""

from __future__ import annotations

import secrets

import phalanx
from phalanx.distributed.bootstrap.other_libraries import MASTER_VARIABLES
from phalanx.distributed.control import AbortKind, culprit_rank
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
from phalanx.protocol.host import GiveBack

from ..hosts.host_set import HostSet
from .state import Answer, WorldState


class MembershipCoordinator:
    """Answer the membership messages of ranks on all hosts.

    The coordinator decides when the next epoch begins and which ranks are in it.
    """

    def __init__(
        self,
        options: BootOptions,
        world: WorldState,
        host: HostSet,
    ) -> None:
        self._options = options
        self._world = world
        self._host = host
        self._key = secrets.token_bytes(32)
        self._foreign: dict[int, str] = {}  # ranks with another version -> the text for all ranks
        world.subscribe(self._on_lost)

    def _on_lost(self, rank: int) -> None:
        self._foreign.pop(rank, None)  # its replacement may have our version

    def answer(self, rank: int, message: ToSupervisor) -> bool:
        """Handle a rank's message; False if it does not concern membership."""
        if isinstance(message, Join):
            if self._has_our_version(rank, message):
                self._admit(rank, message)
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
            self._host.take(message)
            is_loss = kind in {AbortKind.RANK_FAILURE, AbortKind.LINK_BROKEN}
            lost = culprit_rank(kind, culprit) if is_loss else -1
            self.send_all(self._world.abort(message.epoch, message.message, lost))
        elif isinstance(message, SplitFormed):
            self._world.form_split(rank, message)
        elif isinstance(message, SplitClosed):
            self._world.close_split(rank, message)
        else:
            return False
        return True

    def abort(self, kind: AbortKind, reason: str, culprit: int = -1) -> None:
        """Free every rank that waits in this epoch, now or later.

        ``culprit`` is the rank that never comes, if there is one.
        """
        epoch = self._world.epoch
        self._host.take(EpochAborted(epoch, kind, culprit, reason))
        self.send_all(self._world.abort(epoch, reason, culprit))

    def free_waiters(self, rank: int, reason: str) -> None:
        """Free the ranks that wait in this epoch for ``rank``.

        It never comes: ranks that begin to wait later are freed as well.
        """
        self.abort(AbortKind.RANK_FAILURE, reason, rank)

    def lose(
        self, rank: int, reason: str, consequence: str = "", *, will_return: bool = False
    ) -> None:
        """Free those that wait for a dead rank; record its death.

        The control page of every host gets the abort, which frees the ranks that wait there. The
        arguments are those of `WorldState.lose`, which refuses the ranks that wait in the root.
        """
        said = f"{reason}; {consequence}" if consequence else reason
        self._host.take(EpochAborted(self._world.epoch, AbortKind.RANK_FAILURE, rank, said))
        self.send_all(self._world.lose(rank, reason, consequence, will_return=will_return))
        # A rank that is being ended may still save arrays.
        if self._host.statuses[rank] is not None:
            self._host.take(GiveBack(rank))

    def take_abort(self) -> bool:
        """End the epoch if its control page has an abort.

        Returns False if it has none.

        A rank reports an abort before the end of its cell. Any other abort is known from the page.
        """
        reason = self._host.abort_reason(self._world.epoch)
        if reason is None:
            return False
        self.send_all(self._world.abort(self._world.epoch, reason[2]))
        return True

    def _admit(self, rank: int, request: Join) -> None:
        """Welcome a rank to this epoch, or to the next one."""
        if self._world.joins_next:
            self._world.ask(rank, Recover(request.id, 0, True, request.version))
            self.look()
        else:
            self._host.send(rank, self._welcome(rank, request.id))

    def send_all(self, answers: list[Answer]) -> None:
        """Send answers to live ranks."""
        for rank, message in answers:
            if rank not in self._world.dead:
                self._host.send(rank, message)

    def _has_our_version(self, rank: int, ask: Join | Recover) -> bool:
        """Check a rank's version; refuse the rank and its waiting peers."""
        self._foreign.pop(rank, None)
        if ask.version == phalanx.__version__:
            return True
        # Its messages have another layout. A group without this rank can never form.
        why = (
            f"rank {rank} has phalanx {ask.version or 'of another version'}, its supervisor has "
            f"{phalanx.__version__}: all need the same version"
        )
        self._foreign[rank] = why
        epoch = self._world.epoch
        self._host.take(EpochAborted(epoch, AbortKind.ERROR, rank, why))
        self.send_all(self._world.abort(epoch, why))
        self._host.send(rank, Refused(ask.id, -1, why))
        self.look()
        return False

    def look(self) -> None:
        """Begin the next epoch if every rank waits for it.

        Otherwise refuse the ranks that wait in vain.
        """
        world = self._world
        if world.is_unanimous:
            self._begin_epoch()
        elif self._foreign and not world.lacking:
            why = next(iter(self._foreign.values()))
            self.send_all([(rank, Refused(of, -1, why)) for rank, of in world.take_asking()])
        else:
            self.send_all(world.refuse_asking(world.gone()))

    def _begin_epoch(self) -> None:
        world = self._world
        if not world.is_good:
            # A rank may have closed the epoch without an abort. The next epoch may use the same
            # memory.
            self.abort(AbortKind.ERROR, "the group was formed anew")
            world.begin_epoch()
        elif self.take_abort():
            world.begin_epoch()
        self.welcome_asking()

    def welcome_asking(self) -> None:
        """Tell all ranks that asked for an epoch the current one."""
        for rank, request_id in self._world.take_asking():
            self._host.send(rank, self._welcome(rank, request_id))

    def _who(self, rank: int) -> str:
        doing = self._host.activity(rank).doing
        return f"rank {rank} ({doing})" if doing else f"rank {rank}"

    def _welcome(self, rank: int, request_id: int) -> Welcome:
        self._world.welcome(rank)
        layout, members = self._host.layout, self._world.members
        return Welcome(
            id=request_id,
            rank=rank,
            world=self._options.world,
            epoch=self._world.epoch,
            key=self._key,
            hosts=layout.hosts,
            slots=layout.slots,
            host_names=layout.names,
            kept=tuple(name for name in MASTER_VARIABLES if name in self._options.remote.env),
            members=members if len(members) < self._world.size else (),
        )
