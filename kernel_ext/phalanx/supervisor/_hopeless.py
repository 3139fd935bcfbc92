"""Finding an operation that no one can complete any more.

Pure: what each rank does, and who takes part, in; the verdict out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["WORLD", "Activity", "Hopeless", "Standing", "find_hopeless", "say_message"]

WORLD = 0  # the number of the world's own group


class Standing(NamedTuple):
    """Where a rank stands in one group: the operation it is in, the last that it has completed.

    ``queued`` operations are still to come from the group's own thread, whatever its cell does.
    """

    op: str
    seq: int
    done: int
    queued: int = 0


@dataclass(frozen=True)
class Activity:
    """What a rank is in the middle of, as its page says (`_native.AbortPage.activity`)."""

    epoch: int
    groups: Mapping[int, Standing]
    pair: tuple[int, str, int, int] = (-1, "", -1, 0)  # the message it waits for

    @property
    def doing(self) -> str:
        """Words for the operation the rank is in, "" for none.

        Examples
        --------
        >>> Activity(1, {0: Standing("", 0, 3)}, (0, "recv", 2, 5)).doing
        'in recv from rank 2'
        """
        busy = [f"in {its.op} #{its.seq}" for _, its in sorted(self.groups.items()) if its.op]
        if not busy and self.pair[1]:
            busy = [f"in {say_message(*self.pair[1:3])}"]
        return busy[0] if busy else ""

    def is_at(self, number: int, seq: int) -> bool:
        """Whether `doing` tells of that operation, or message, of that group."""
        busy = [(group, its.seq) for group, its in sorted(self.groups.items()) if its.op]
        return busy[0] == (number, seq) if busy else self.pair[3] == seq


def say_message(op: str, peer: int) -> str:
    """Words for a message that a rank waits to send or to receive."""
    return f"{op} {'from' if op == 'recv' else 'to'} rank {peer}"


@dataclass(frozen=True)
class Hopeless:
    """Ranks ``waiting`` are in operation ``op`` number ``seq``, which ``missing`` never entered."""

    waiting: tuple[int, ...]
    missing: int
    op: str
    seq: int


def find_hopeless(
    activities: Mapping[int, Activity],
    *,
    epoch: int,
    running: Collection[int],
    gone: Collection[int],
    splits: Mapping[int, Collection[int]],
) -> Hopeless | None:
    """Return the operation that waits for a rank whose part of the cell is over.

    The verdict is final and needs no grace: a rank that is gone starts no operation any more,
    and one that it had completed its peers can complete from what it left (shared memory, or
    bytes that are on their way).

    Parameters
    ----------
    activities : mapping of int to Activity
        By rank.
    epoch : int
        Of the world; activities of another one are of the past.
    running : collection of int
        Ranks that still run the cell.
    gone : collection of int
        Ranks that live, and have ended the cell or were not asked to run it.
    splits : mapping of int to collection of int
        The ranks of each split, by its number. A rank that is in a split that is not listed is
        left alone: its supervisor has yet to hear of it.
    """
    waiting: dict[tuple[int, int, str], list[int]] = {}
    for rank in sorted(running):
        now = activities[rank]
        for number, its in now.groups.items():
            if now.epoch == epoch and its.op:
                waiting.setdefault((number, its.seq, its.op), []).append(rank)
    for (number, seq, op), ranks in sorted(waiting.items()):
        members = gone if number == WORLD else set(gone) & set(splits.get(number, ()))
        for rank in sorted(members):
            if _never_comes(activities[rank], number, seq, epoch):
                return Hopeless(tuple(ranks), rank, op, seq)
    return None


def _never_comes(there: Activity, number: int, seq: int, epoch: int) -> bool:
    its = there.groups.get(number)
    if its is None:
        # Who has closed a split is found by its peers themselves, where they miss it.
        return number == WORLD
    if its.queued or (its.op and its.seq >= seq):
        return False
    return (its.done if there.epoch == epoch else 0) < seq
