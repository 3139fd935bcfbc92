"""Keep the state of a world: who lives, epochs, rendezvous and joins.

`WorldState` is pure: messages in, messages out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from phalanx.protocol import (
    CellAllowed,
    CellEnded,
    Gather,
    Gathered,
    RankState,
    Recover,
    Refused,
    SplitClosed,
    SplitFormed,
)

from .cell_history import CellHistory

RESTARTED = "is being restarted"  # why a rank is dead during its restart
Answer = tuple[int, Gathered | Refused]  # (rank, message)


@dataclass(frozen=True)
class RankLoss:
    """Death of a rank: its cause, and the time (`time.time`)."""

    reason: str
    at_s: float


@dataclass
class _Round:
    """Collect one rendezvous round: shares received and requests to answer."""

    shares: dict[int, bytes] = field(default_factory=dict)
    requests: dict[int, int] = field(default_factory=dict)  # rank -> request id
    came: set[int] = field(default_factory=set)  # all ranks that sent a share, also withdrawn ones


class WorldState:
    """Track lives, membership, epochs and cells of ``size`` ranks.

    ``dead`` has the lost ranks, also while they are replaced, each with the newest reason.

    An *epoch* ends when any operation in it is aborted. The next epoch begins when a cell is about
    to run and all ranks live, or when all ranks ask for it (`Recover`). A lost rank keeps its
    number in the world until it is replaced. With ``may_shrink`` the live ranks can form an epoch
    without the lost ones. With ``may_replace`` a world without cells replaces lost ranks, and a
    rank that joins after the end of the epoch waits for the next epoch.
    """

    def __init__(
        self,
        size: int,
        *,
        has_cells: bool = True,
        may_shrink: bool = False,
        may_replace: bool = False,
    ) -> None:
        self.size = size
        self.members = tuple(range(size))  # ranks of this epoch
        self.has_cells = has_cells
        self._may_shrink = may_shrink
        self._may_replace = may_replace
        self.epoch = 1
        self.cells = CellHistory()
        self.dead: dict[int, str] = {}
        self._losses: dict[int, RankLoss] = {}  # of the dead ranks
        self._on_lost: list[Callable[[int], None]] = []
        self._ready: set[int] = set()  # ranks with a first process that has started
        self._replaced: set[int] = set()
        self._why: tuple[int, str] | None = None  # of the abort: culprit (or -1), cause
        self._rounds: dict[int, _Round] = {}
        self._absence_reason: dict[int, str] = {}  # by rank: why it is not in the newest cell
        self._splits: dict[int, tuple[tuple[int, ...], set[int]]] = {}  # members, ranks inside
        self._living_on: set[int] = set()  # ranks with threads that outlived their cell
        self._asking: dict[int, Recover] = {}  # ranks that wait for the next epoch
        self._asked: set[int] = set()  # ranks that asked in this epoch, also withdrawn ones
        self._absentee = -1  # the rank for which the latest of them was refused
        self._welcomed: set[int] = set()  # ranks that were asked to enter this epoch

    # -- lives --------------------------------------------------------------------------------

    def subscribe(self, lost: Callable[[int], None]) -> None:
        """Call ``lost(rank)`` after each death."""
        self._on_lost.append(lost)

    @property
    def alive(self) -> set[int]:
        return set(range(self.size)) - self.dead.keys()

    @property
    def lacking(self) -> dict[int, str]:
        """Return the dead members of this epoch, with the causes."""
        return {rank: why for rank, why in self.dead.items() if rank in self.members}

    def loss(self, rank: int) -> RankLoss:
        return self._losses[rank]

    def mark_ready(self, rank: int) -> None:
        self._ready.add(rank)

    @property
    def are_ready(self) -> bool:
        """Whether the first processes of all ranks have started."""
        return len(self._ready) == self.size

    def is_replacement(self, rank: int) -> bool:
        """Whether the current process of this rank is not its first."""
        return rank in self._replaced

    def lose(
        self, rank: int, reason: str, consequence: str = "", *, will_return: bool = False
    ) -> list[Answer]:
        """Record the death of a rank; refuse all ranks that wait.

        ``consequence`` is added to the reason while the rank is dead. If the rank ``will_return``,
        the ranks that wait for the next epoch go on waiting for it.
        """
        self._asking.pop(rank, None)
        self._asked.discard(rank)
        self._losses.setdefault(rank, RankLoss(reason, time.time()))
        why = self.dead[rank] = f"{reason}; {consequence}" if consequence else reason
        self.cells.lose(rank)
        for tell in self._on_lost:
            tell(rank)
        if self._why is None:  # for ranks that come to this epoch when the rank has returned
            self._why = rank, why
        refused = self._refuse_all(rank, why)
        if not will_return:
            return refused + self.refuse_asking(())
        self.mark_replacing(rank)
        return refused

    def mark_replacing(self, rank: int) -> None:
        self._replaced.add(rank)
        self._losses.setdefault(rank, RankLoss(RESTARTED, time.time()))
        self.dead[rank] = RESTARTED

    def mark_not_replaced(self, rank: int, reason: str) -> None:
        self.dead[rank] = reason

    def revive(self, rank: int) -> None:
        """Record that a new process has this rank.

        The new process joins with the next epoch.
        """
        self._living_on.discard(rank)
        self._welcomed.discard(rank)
        del self.dead[rank], self._losses[rank]
        self.cells.revive(rank)

    # -- rendezvous ---------------------------------------------------------------------------

    @property
    def is_aborted(self) -> bool:
        """Whether this epoch is over."""
        return self._why is not None

    def gather(self, rank: int, request: Gather) -> list[Answer]:
        """Take a rank's share of a round; return the answers to send."""
        if lacking := self.lacking:
            lost, reason = next(iter(lacking.items()))
            return [(rank, Refused(request.id, lost, reason))]
        if request.epoch == self.epoch and self._why is not None:
            return [(rank, Refused(request.id, *self._why))]
        if request.epoch != self.epoch:
            message = f"epoch {request.epoch} is over (now {self.epoch}); join again"
            return [(rank, Refused(request.id, -1, message))]
        this = self._rounds.setdefault(request.round, _Round())
        this.shares[rank] = request.data
        this.requests[rank] = request.id
        this.came.add(rank)
        if len(this.shares) < len(self.members):
            return []
        del self._rounds[request.round]
        parts = tuple(this.shares[r] for r in self.members)
        return [(r, Gathered(this.requests[r], parts)) for r in self.members]

    def abort(self, epoch: int, message: str, lost: int = -1) -> list[Answer]:
        """Abort ``epoch`` and refuse the ranks that wait in it.

        Older epochs are already over. ``lost`` is the unreachable rank, if that is the cause.
        """
        if epoch < self.epoch or self.is_aborted:
            return []
        self._why = lost, message
        return self._refuse_all(lost, message)

    def withdraw(self, rank: int, of: int) -> list[int]:
        """Drop a rank's request; return the ranks that were missing.

        Ranks that withdrew shortly before do not count as missing: all ranks have the same timeout.
        """
        for this in self._rounds.values():
            if this.requests.get(rank) == of:
                del this.requests[rank], this.shares[rank]
                return self._missing(this.requests.keys(), this.came)
        if rank in self._asking and self._asking[rank].id == of:
            del self._asking[rank]
            return self._missing(self._asking.keys(), self._asked)
        return []  # the request was already answered

    def _missing(self, here: Collection[int], came: Collection[int]) -> list[int]:
        every = set(self.members) - (self.dead.keys() if self._may_shrink else set())
        return sorted(every - set(came) or every - set(here))

    def _refuse_all(self, culprit: int, message: str) -> list[Answer]:
        answers: list[Answer] = [
            (rank, Refused(request_id, culprit, message))
            for this in self._rounds.values()
            for rank, request_id in this.requests.items()
        ]
        self._rounds.clear()
        return answers

    # -- the next epoch -----------------------------------------------------------------------

    @property
    def joins_next(self) -> bool:
        """Whether a rank that joins now waits for the next epoch."""
        return self._may_replace and self.is_aborted

    def ask(self, rank: int, request: Recover) -> None:
        """Record that a rank waits for the next epoch (`Recover`)."""
        self._asking[rank] = request
        self._asked.add(rank)

    @property
    def asking(self) -> set[int]:
        return set(self._asking)

    @property
    def is_unanimous(self) -> bool:
        """Whether every rank waits for the next epoch.

        With ``may_shrink`` only the live ranks count.
        """
        lost = len(self.lacking) if self._may_shrink else 0
        return 0 < len(self._asking) == len(self.members) - lost

    @property
    def is_good(self) -> bool:
        """Whether the epoch is intact, also for all ranks that wait.

        The epoch was not aborted, and no waiting rank reports it as over or has another epoch.
        """
        asks = self._asking.values()
        return not self.is_aborted and all(
            not ask.is_over and ask.epoch == self.epoch for ask in asks
        )

    def begin_epoch(self) -> None:
        """Begin the next epoch.

        The caller has aborted the previous epoch on all hosts that have shared memory of it.
        """
        self.epoch += 1
        if self._may_shrink:
            self.members = tuple(rank for rank in self.members if rank not in self.dead)
        self._why = None
        self._rounds.clear()
        self._splits.clear()
        self._welcomed.clear()

    def welcome(self, rank: int) -> None:
        """Record that a rank knows of this epoch.

        A rank that cannot enter the epoch afterwards aborts it.
        """
        self._welcomed.add(rank)

    def take_asking(self) -> list[tuple[int, int]]:
        """Return and drop the waiting ranks, each with its request id."""
        asking, self._asking = self._asking, {}
        self._asked.clear()
        return [(rank, request.id) for rank, request in asking.items()]

    def refuse_asking(self, gone: Collection[int]) -> list[Answer]:
        """Refuse ranks that wait for the next epoch in vain.

        An epoch cannot begin if a rank is dead, or is among ``gone``.
        """
        away = sorted(set(gone) - self._asking.keys())
        lost = {} if self._may_shrink else self.lacking
        if not self._asking or not (lost or away):
            return []
        if lost:
            who, why = next(iter(lost.items()))
            remedy = "launch the ranks anew (with --keep-going the others can go on without it)"
            if self.has_cells:
                remedy = "%distributed restart, or start the ranks anew"
            why += f"; the group cannot be formed without it: {remedy}"
        else:
            # A rank that was refused may have ended its cell since: it is not the cause.
            who = self._absentee = self._absentee if self._absentee in away else away[0]
            why = f"{self.absence_reason(who)}; px.recover() of the others can never complete"
        return [(rank, Refused(request, who, why)) for rank, request in self.take_asking()]

    # -- splits -------------------------------------------------------------------------------

    def form_split(self, rank: int, formed: SplitFormed) -> None:
        """Record that a rank is in a split of the epoch."""
        if formed.epoch == self.epoch:
            self._splits.setdefault(formed.number, (formed.members, set()))[1].add(rank)

    def close_split(self, rank: int, closed: SplitClosed) -> None:
        """Record that a rank left a split; the last one removes it."""
        if closed.epoch != self.epoch:
            return  # the number may belong to a new split of the current epoch
        _, inside = self._splits.get(closed.number, ((), set()))
        inside.discard(rank)
        if not inside:
            self._splits.pop(closed.number, None)

    @property
    def splits(self) -> dict[int, tuple[int, ...]]:
        return {number: members for number, (members, _) in self._splits.items()}

    # -- cells --------------------------------------------------------------------------------

    def begin_cell(self, cell: str, ranks: tuple[int, ...], title: str = "") -> CellAllowed:
        """Start a cell; begin a new epoch first if needed and possible.

        ``reform`` in the answer tells the client to have the ranks enter the epoch. It is also set
        if ranks have not entered the current epoch, because an earlier client that was to do this
        has gone or was stopped.
        """
        is_entered = not self.is_aborted and len(self._welcomed) == self.size
        reform = not is_entered and not self.dead and not self.unfinished()
        if reform and self.is_aborted:
            self.begin_epoch()
        # A rank that still runs an earlier cell takes no part in this one.
        self._absence_reason = dict.fromkeys(self.unfinished(), "still runs the cell before")
        self.cells.begin(cell, tuple(rank for rank in ranks if rank not in self.dead), title)
        return CellAllowed(self.epoch, reform, dict(self.dead))

    def end_cell(self, rank: int, end: CellEnded) -> None:
        """Record that a rank's part of a cell is over."""
        if end.cell == self.cells.newest:
            self._absence_reason[rank] = f"ended its cell{'' if end.ok else ' with an error'}"
        else:
            # The rank ended an earlier cell, and was not asked to run the newest one.
            self._absence_reason.pop(rank, None)
        # Threads of the cell may go on, and still take part in operations.
        self._living_on.discard(rank)
        if end.has_background_threads:
            self._living_on.add(rank)
        self.cells.end(rank, end)

    def absence_reason(self, rank: int) -> str:
        """Return the reason for a rank's absence from the running cell."""
        if rank in self._asking:
            return "waits in px.recover()"
        why = self.dead.get(rank) or self._absence_reason.get(rank)
        return why or "is not asked to run this cell"

    def gone(self) -> set[int]:
        """Return the live ranks that will not act in the newest cell.

        They have ended the cell or never got it. Ranks with background threads are left out. There
        are none in a world without cells.
        """
        if not self.has_cells:
            return set()
        return self.alive - self._living_on - self.cells.running_on(self.cells.newest)

    def unfinished(self) -> set[int]:
        return self.cells.busy

    def state(self, rank: int) -> RankState:
        if rank in self.dead:
            return "dead"
        if rank in self.cells.busy:
            return "busy"
        return "idle" if rank in self._ready else "starting"
