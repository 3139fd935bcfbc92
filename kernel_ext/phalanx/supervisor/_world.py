"""The world as its root supervisor keeps it: epochs, rendezvous, cells, losses.

Pure state: messages in, messages out. It knows no process, no socket, no clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from phalanx.protocol import (
    CellAllowed,
    Gather,
    Gathered,
    RankState,
    Recover,
    Refused,
    SplitClosed,
    SplitFormed,
)

__all__ = ["Answer", "World"]

Answer = tuple[int, Gathered | Refused]  # (rank, message)


@dataclass
class _Round:
    """One round of a rendezvous: the shares that have come, and whom to answer."""

    shares: dict[int, bytes] = field(default_factory=dict)
    requests: dict[int, int] = field(default_factory=dict)  # rank -> request id
    came: set[int] = field(default_factory=set)  # also those who have given it up


class World:
    """Membership, epochs and cells of ``size`` ranks.

    An *epoch* is one life of the group: it ends when anything in it was aborted, and the next
    begins when a cell is about to run on ranks that all live, or when all of them ask for it
    (`Recover`). A lost rank stays in the world (its number is kept) until it is replaced.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.epoch = 1
        self.dead: dict[int, str] = {}
        self._is_aborted = False
        self._why: tuple[int, str] | None = None  # the epoch was aborted: whom it accuses (or -1)
        self._rounds: dict[int, _Round] = {}
        self._running: dict[str, set[int]] = {}  # cell -> ranks that have not ended it
        self._how_gone: dict[int, str] = {}  # since the last cell began
        self._splits: dict[int, tuple[tuple[int, ...], set[int]]] = {}  # members, those inside
        self._living_on: set[int] = set()  # ranks with threads that outlived their cell
        self._asking: dict[int, Recover] = {}  # ranks that wait for the next epoch
        self._asked: set[int] = set()  # and those who did in this one, and have given it up
        self._welcomed: set[int] = set()  # ranks that were told of this epoch, to enter it

    # -- rendezvous ---------------------------------------------------------------------------

    def gather(self, rank: int, request: Gather) -> list[Answer]:
        """Take a rank's share of a round; the answers are those to send now."""
        if self.dead:
            lost, reason = next(iter(self.dead.items()))
            return [(rank, Refused(request.id, lost, reason))]
        if request.epoch == self.epoch and self._why is not None:
            return [(rank, Refused(request.id, *self._why))]
        if request.epoch != self.epoch or self._is_aborted:
            message = f"epoch {request.epoch} is over (now {self.epoch}); join again"
            return [(rank, Refused(request.id, -1, message))]
        this = self._rounds.setdefault(request.round, _Round())
        this.shares[rank] = request.data
        this.requests[rank] = request.id
        this.came.add(rank)
        if len(this.shares) < self.size:
            return []
        del self._rounds[request.round]
        parts = tuple(this.shares[r] for r in range(self.size))
        return [(r, Gathered(this.requests[r], parts)) for r in range(self.size)]

    def abort(self, epoch: int, message: str, lost: int = -1) -> list[Answer]:
        """Give up ``epoch`` (older ones are over already) and refuse whoever waits in it.

        ``lost`` is the rank that cannot be reached, if that is why.
        """
        if epoch < self.epoch or self._is_aborted:
            return []
        self._is_aborted = True
        self._why = lost, message
        return self._refuse_all(lost, message)

    def lose(self, rank: int, reason: str) -> list[Answer]:
        """Record the death of a rank; everyone who waits for it is refused."""
        self.dead[rank] = reason
        self._is_aborted = True
        self._asking.pop(rank, None)
        for ranks in self._running.values():
            ranks.discard(rank)
        return self._refuse_all(rank, reason) + self.refuse_asking(())

    def withdraw(self, rank: int, of: int) -> list[int]:
        """Forget that a rank waits for the answer to a request; the ranks that were missing.

        Not those that have given up a moment before: ranks have the same patience.
        """
        for this in self._rounds.values():
            if this.requests.get(rank) == of:
                del this.requests[rank], this.shares[rank]
                return self._missing(this.requests.keys(), this.came)
        if rank in self._asking and self._asking[rank].id == of:
            del self._asking[rank]
            return self._missing(self._asking.keys(), self._asked)
        return []  # it was answered

    def _missing(self, here: Collection[int], came: Collection[int]) -> list[int]:
        every = set(range(self.size))
        return sorted(every - set(came) or every - set(here))

    def revive(self, rank: int) -> None:
        """Note that a new process is this rank; it is in no epoch before the next one."""
        self.dead.pop(rank, None)
        self._living_on.discard(rank)
        self._welcomed.discard(rank)

    def _refuse_all(self, culprit: int, message: str) -> list[Answer]:
        answers: list[Answer] = [
            (rank, Refused(request_id, culprit, message))
            for this in self._rounds.values()
            for rank, request_id in this.requests.items()
        ]
        self._rounds.clear()
        return answers

    # -- the next epoch -----------------------------------------------------------------------

    def ask(self, rank: int, request: Recover) -> None:
        """Note that a rank waits for the world to form anew."""
        self._asking[rank] = request
        self._asked.add(rank)

    @property
    def asking(self) -> set[int]:
        """Ranks that wait for the world to form anew."""
        return set(self._asking)

    @property
    def is_unanimous(self) -> bool:
        """Whether every rank waits for the world to form anew."""
        return len(self._asking) == self.size

    @property
    def is_good(self) -> bool:
        """Whether nothing is known against the epoch, of those who ask neither."""
        asks = self._asking.values()
        return not self._is_aborted and all(
            not ask.is_over and ask.epoch == self.epoch for ask in asks
        )

    def begin_epoch(self) -> None:
        """Let the next epoch begin; the one before was aborted wherever it had memory."""
        self.epoch += 1
        self._is_aborted = False
        self._why = None
        self._rounds.clear()
        self._splits.clear()
        self._welcomed.clear()

    def welcome(self, rank: int) -> None:
        """Note that a rank is told of this epoch; if it cannot enter it then, that is an abort."""
        self._welcomed.add(rank)

    def take_asking(self) -> list[tuple[int, int]]:
        """Return who waits for the world to form anew, with its request, and forget it."""
        asking, self._asking = self._asking, {}
        self._asked.clear()
        return [(rank, request.id) for rank, request in asking.items()]

    def refuse_asking(self, gone: Collection[int]) -> list[Answer]:
        """Refuse who waits for a new epoch in vain: a rank is dead, or among those ``gone``."""
        away = sorted(set(gone) - self._asking.keys())
        if not self._asking or not (self.dead or away):
            return []
        if self.dead:
            who, why = next(iter(self.dead.items()))
            why += "; the group cannot be formed without it: %distributed restart, or start the ranks anew"
        else:
            who = away[0]
            why = f"{self.how_gone(who)}; px.recover() of the others can never complete"
        return [(rank, Refused(request, who, why)) for rank, request in self.take_asking()]

    # -- splits -------------------------------------------------------------------------------

    def form_split(self, rank: int, formed: SplitFormed) -> None:
        """Note that a rank is in a split of the epoch."""
        if formed.epoch == self.epoch:
            self._splits.setdefault(formed.number, (formed.members, set()))[1].add(rank)

    def close_split(self, rank: int, closed: SplitClosed) -> None:
        """Note that a rank has left a split; the last one takes it along."""
        if closed.epoch != self.epoch:
            return  # the split of this number may stand again
        _, inside = self._splits.get(closed.number, ((), set()))
        inside.discard(rank)
        if not inside:
            self._splits.pop(closed.number, None)

    @property
    def splits(self) -> dict[int, tuple[int, ...]]:
        """The members of each split, by its number."""
        return {number: members for number, (members, _) in self._splits.items()}

    # -- cells --------------------------------------------------------------------------------

    def begin_cell(self, request_id: int, cell: str, ranks: tuple[int, ...]) -> CellAllowed:
        """Let a cell run; if the epoch is over and every rank can join, a new one begins first.

        Where ranks have not entered the epoch (the client that was to ask them has gone, or was
        stopped), they are to do that now.
        """
        is_entered = not self._is_aborted and len(self._welcomed) == self.size
        reform = not is_entered and not self.dead and not self.unfinished()
        if reform and self._is_aborted:
            self.begin_epoch()
        # Whoever still runs an earlier cell takes no part in this one.
        self._how_gone = dict.fromkeys(self.unfinished(), "still runs the cell before")
        self._running[cell] = {rank for rank in ranks if rank not in self.dead}
        return CellAllowed(request_id, self.epoch, reform, dict(self.dead))

    def end_cell(self, rank: int, cell: str, *, ok: bool = True, lives_on: bool = False) -> None:
        """Note that a rank's part of a cell is over.

        ``lives_on``: threads of the cell go on, and may take part in operations yet.
        """
        if cell == self._newest():
            self._how_gone[rank] = "ended its cell" if ok else "ended its cell with an error"
        else:
            self._how_gone.pop(rank, None)  # of an earlier cell: it still was not asked to run this
        self._living_on.discard(rank)
        if lives_on:
            self._living_on.add(rank)
        ranks = self._running.get(cell)
        if ranks is not None:
            ranks.discard(rank)

    def forget_cell(self, cell: str) -> None:
        """Note that a cell was announced and never sent: nobody runs it."""
        self._running.pop(cell, None)

    def how_gone(self, rank: int) -> str:
        """Words for why a rank takes no part in the cell that runs."""
        if rank in self._asking:
            return "waits in px.recover()"
        return self._how_gone.get(rank, "is not asked to run this cell")

    def gone(self) -> set[int]:
        """Ranks that live and do not run the cell that runs: ended, or never asked."""
        away = set(range(self.size)) - self.dead.keys() - self._living_on
        return away - self._running.get(self._newest(), set())

    def _newest(self) -> str:
        """The cell that began last, of those that run."""
        return next(reversed(self._running), "")

    def unfinished(self) -> set[int]:
        """Ranks that still run a cell; forgets the cells that all have ended."""
        self._running = {cell: ranks for cell, ranks in self._running.items() if ranks}
        return set().union(*self._running.values())

    def state(self, rank: int) -> RankState:
        """One word for what a rank does."""
        if rank in self.dead:
            return "dead"
        return "busy" if any(rank in ranks for ranks in self._running.values()) else "idle"
