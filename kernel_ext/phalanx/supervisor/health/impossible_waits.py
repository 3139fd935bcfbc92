"""Find waits that cannot end.

They are for a rank that joins no operation any more. Pure: callers pass in the ranks' activities and the time. Ranks that wait for each other are found by `deadlock`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.protocol import Activity, GroupProgress, Passed, name_ranks, say_message

WORLD = 0  # group number of the world
# A sender that waits for space in a queue goes on within microseconds of the peer's last read, or
# after a few scheduler turns on a machine with more ranks than cores.
CONFIRM_S = 0.05

_NONE = Passed(0, 0)
_NOTHING = GroupProgress("", 0, 0)
_NOT_JOINED = Activity(0, {})


class Activities(NamedTuple):
    """Activities of ranks, in an epoch of the world with these splits.

    Activities of other epochs are out of date. ``splits`` has the ranks of each split, by its
    number. Waits in unlisted splits are ignored: the supervisor has not received those yet.
    """

    by_rank: Mapping[int, Activity]
    epoch: int
    splits: Mapping[int, Collection[int]]


@dataclass(frozen=True)
class ImpossibleWait:
    """Describe an operation that rank ``missing`` will never join.

    Ranks ``waiting`` are in operation ``op`` number ``seq``. ``split`` has the ranks of the group;
    empty for the world's group.
    """

    waiting: tuple[int, ...]
    missing: int
    op: str
    seq: int
    split: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return the operation that can never complete, and the waiting ranks.

        Examples
        --------
        >>> str(ImpossibleWait((0, 1, 2), 3, "all_sum", 7))
        'all_sum #7, in which ranks 0-2 wait, can never complete'
        >>> str(ImpossibleWait((1,), 2, "recv", 3, (1, 2, 4)))
        'recv #3 from rank 2 in the split of ranks 1-2,4, in which rank 1 waits, can never complete'
        """
        where = f" in the split of {name_ranks(self.split)}" if self.split else ""
        wait = "waits" if len(self.waiting) == 1 else "wait"
        is_message = self.op in ("send", "recv")
        what = (
            say_message(self.op, self.missing, self.seq) if is_message else f"{self.op} #{self.seq}"
        )
        return f"{what}{where}, in which {name_ranks(self.waiting)} {wait}, can never complete"


def find_impossible_wait(
    seen: Activities,
    *,
    running: Collection[int],
    gone: Collection[int],
    ended: Collection[int] = (),
) -> ImpossibleWait | None:
    """Return an operation or message that waits for a gone rank.

    A gone rank starts nothing any more. What it had completed, its peers can complete from the data
    that it left (in shared memory, or in transit). So the activities may be read at different
    moments, if ``running`` and ``gone`` are older, and the answer is final. The exception is a
    send: the peer may have made space just before it was gone, so `ImpossibleWaitSearch` polls
    twice.

    A wait for a rank that has closed the group is detected by the waiting rank itself.

    Ranks ``running`` still run the cell. Ranks ``gone`` have ended it or were not asked to run it.
    Those of them with an ``ended`` process will not run their queued operations either.
    """
    by_rank, epoch, splits = seen
    busy = {rank: by_rank[rank] for rank in sorted(running) if by_rank[rank].epoch == epoch}
    missed = {
        rank: by_rank[rank] if by_rank[rank].epoch == epoch else _NOT_JOINED
        for rank in sorted(gone)
    }
    operations = _operations(busy, missed, ended, splits)
    for number, found in (*operations, *_messages(busy, missed, splits)):
        # A rank that has joined the epoch but lacks the group has closed the group.
        there = missed[found.missing]
        if there is _NOT_JOINED or number in there.groups:
            return found
    return None


class ImpossibleWaitSearch:
    """Poll `find_impossible_wait`; report a send only if found twice.

    The two polls are at least `CONFIRM_S` apart. If the peer made space before it was gone, the
    sender has gone on by the second poll.
    """

    def __init__(self) -> None:
        # With its epoch, because message numbers restart in each epoch.
        self._send: tuple[int, ImpossibleWait] | None = None
        self._since_s = 0.0

    def look(
        self,
        seen: Activities,
        *,
        now_s: float,
        running: Collection[int],
        gone: Collection[int],
        ended: Collection[int] = (),
    ) -> ImpossibleWait | None:
        """Return what `find_impossible_wait` finds, once it is certain."""
        found = find_impossible_wait(seen, running=running, gone=gone, ended=ended)
        if found is None or found.op != "send":
            self._send = None
            return found
        if (seen.epoch, found) != self._send:
            self._send, self._since_s = (seen.epoch, found), now_s
        return found if now_s - self._since_s >= CONFIRM_S else None


def _operations(
    busy: Mapping[int, Activity],
    missed: Mapping[int, Activity],
    ended: Collection[int],
    splits: Mapping[int, Collection[int]],
) -> Iterator[tuple[int, ImpossibleWait]]:
    """Yield the operations that a member will never enter, with group numbers."""
    waiting: dict[tuple[int, int, str], list[int]] = {}
    for rank, now in busy.items():
        for number, its in now.groups.items():
            if its.op:
                waiting.setdefault((number, its.seq, its.op), []).append(rank)
    for (number, seq, op), ranks in sorted(waiting.items()):
        split = tuple(splits.get(number, ()))
        for rank, there in missed.items():
            its = there.groups.get(number, _NOTHING)
            may_come = rank not in ended and (its.queued or (its.op and its.seq >= seq))
            if (number == WORLD or rank in split) and its.done < seq and not may_come:
                yield number, ImpossibleWait(tuple(ranks), rank, op, seq, split)


def _messages(
    busy: Mapping[int, Activity],
    missed: Mapping[int, Activity],
    splits: Mapping[int, Collection[int]],
) -> Iterator[tuple[int, ImpossibleWait]]:
    """Yield the messages that a peer will never send or take.

    Each message comes with the number of its group.
    """
    for rank, now in busy.items():
        for (number, peer), mine in now.messages.items():
            if peer not in missed or (number != WORLD and number not in splits):
                continue
            theirs = missed[peer].messages.get((number, rank), _NONE)
            split = tuple(splits.get(number, ()))
            if mine.receives and theirs.sent <= mine.received:
                yield number, ImpossibleWait((rank,), peer, "recv", mine.received + 1, split)
            if mine.sends and theirs.received <= mine.sent:
                yield number, ImpossibleWait((rank,), peer, "send", mine.sent + 1, split)
