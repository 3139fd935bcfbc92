"""Finding an operation or a message that no one can complete any more.

Pure: what each rank does, and who takes part, in; the verdict out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from phalanx.protocol import Activity, Passed, Standing, name_ranks, say_message

__all__ = [
    "WORLD",
    "Activity",
    "Hopeless",
    "HopelessSearch",
    "Passed",
    "Standing",
    "find_hopeless",
    "say_message",
]

WORLD = 0  # the number of the world's own group
# A sender that waits for room in a queue goes on within microseconds of the peer's last read, or
# after a few turns of the scheduler on a crowded machine.
CONFIRM_S = 0.05


@dataclass(frozen=True)
class Hopeless:
    """Ranks ``waiting`` are in operation ``op`` number ``seq``, which ``missing`` will never do.

    ``split``: the ranks of the group, unless it is the world's.
    """

    waiting: tuple[int, ...]
    missing: int
    op: str
    seq: int
    split: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Say what can never complete, and who waits in it.

        Examples
        --------
        >>> str(Hopeless((0, 1, 2), 3, "all_sum", 7))
        'all_sum #7, in which ranks 0-2 wait, can never complete'
        >>> str(Hopeless((1,), 2, "recv", 3, (1, 2, 4)))
        'recv #3 from rank 2 in the split of ranks 1-2,4, in which rank 1 waits, can never complete'
        """
        where = f" in the split of {name_ranks(self.split)}" if self.split else ""
        wait = "waits" if len(self.waiting) == 1 else "wait"
        is_message = self.op in ("send", "recv")
        what = (
            say_message(self.op, self.missing, self.seq) if is_message else f"{self.op} #{self.seq}"
        )
        return f"{what}{where}, in which {name_ranks(self.waiting)} {wait}, can never complete"


def find_hopeless(
    activities: Mapping[int, Activity],
    *,
    epoch: int,
    running: Collection[int],
    gone: Collection[int],
    splits: Mapping[int, Collection[int]],
    ended: Collection[int] = (),
) -> Hopeless | None:
    """Return the operation or message that waits for a rank whose part of the cell is over.

    A rank that is gone starts nothing any more, and what it had completed its peers can complete
    from what it left (shared memory, or bytes that are on their way). So activities need not be of
    one moment, if ``running`` and ``gone`` are older, and the answer is final. The exception is a
    send: the peer may have made room just before it was gone, so `HopelessSearch` looks twice.

    Who waits for a rank that has closed the group finds that out without us.

    Parameters
    ----------
    activities : mapping of int to Activity
        By rank.
    epoch : int
        Of the world; activities of another one are of the past.
    running : collection of int
        Ranks that still run the cell.
    gone : collection of int
        Ranks that have ended the cell or were not asked to run it.
    splits : mapping of int to collection of int
        The ranks of each split, by its number. A rank that is in a split that is not listed is
        left alone: its supervisor has yet to hear of it.
    ended : collection of int
        Those of ``gone`` whose process is over: what they had queued will not come either.
    """
    busy = {rank: activities[rank] for rank in sorted(running) if activities[rank].epoch == epoch}
    missed = {
        rank: there if there.epoch == epoch else _NOT_JOINED
        for rank, there in ((rank, activities[rank]) for rank in sorted(gone))
    }
    for number, found in (
        *_operations(busy, missed, ended, splits),
        *_messages(busy, missed, splits),
    ):
        # One that has joined, and has not got the group, has closed it.
        there = missed[found.missing]
        if there is _NOT_JOINED or number in there.groups:
            return found
    return None


class HopelessSearch:
    """Call `find_hopeless` again and again; report a send only if it is found twice.

    The two looks are at least `CONFIRM_S` apart, so that a sender whose peer made room before it
    was gone has gone on by the second.
    """

    def __init__(self) -> None:
        self._send: tuple[int, Hopeless] | None = None  # with its epoch: each numbers messages anew
        self._since_s = 0.0

    def look(
        self,
        activities: Mapping[int, Activity],
        *,
        now_s: float,
        epoch: int,
        running: Collection[int],
        gone: Collection[int],
        splits: Mapping[int, Collection[int]],
        ended: Collection[int] = (),
    ) -> Hopeless | None:
        """Return what `find_hopeless` finds, once it is certain; ``now_s`` is any steady clock."""
        found = find_hopeless(
            activities, epoch=epoch, running=running, gone=gone, splits=splits, ended=ended
        )
        if found is None or found.op != "send":
            self._send = None
            return found
        if (epoch, found) != self._send:
            self._send, self._since_s = (epoch, found), now_s
        return found if now_s - self._since_s >= CONFIRM_S else None


def _operations(
    busy: Mapping[int, Activity],
    missed: Mapping[int, Activity],
    ended: Collection[int],
    splits: Mapping[int, Collection[int]],
) -> Iterator[tuple[int, Hopeless]]:
    """Each operation of a group, with its number, that a member will never enter."""
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
                yield number, Hopeless(tuple(ranks), rank, op, seq, split)


def _messages(
    busy: Mapping[int, Activity],
    missed: Mapping[int, Activity],
    splits: Mapping[int, Collection[int]],
) -> Iterator[tuple[int, Hopeless]]:
    """Each message of a group, with its number, that a peer will never send or take."""
    for rank, now in busy.items():
        for (number, peer), mine in now.messages.items():
            if peer not in missed or (number != WORLD and number not in splits):
                continue
            theirs = missed[peer].messages.get((number, rank), _NONE)
            split = tuple(splits.get(number, ()))
            if mine.receives and theirs.sent <= mine.received:
                yield number, Hopeless((rank,), peer, "recv", mine.received + 1, split)
            if mine.sends and theirs.received <= mine.sent:
                yield number, Hopeless((rank,), peer, "send", mine.sent + 1, split)


_NONE = Passed(0, 0)
_NOTHING = Standing("", 0, 0)
_NOT_JOINED = Activity(0, {})
