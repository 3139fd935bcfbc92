"""Find operations that last long, and the ranks that are missing.

Pure: callers pass in the ranks' activities and the time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.protocol import Activity, say_message

from .impossible_waits import WORLD, Activities


@dataclass(frozen=True)
class LongWait:
    """Describe a long wait of ranks ``waiting`` in operation ``what``.

    ``missing`` are the ranks that have not come. ``last`` says which operation of the group each
    missing rank completed last.
    """

    waiting: tuple[int, ...]
    what: str
    missing: tuple[int, ...]
    last: Mapping[int, str]


class _OperationWait(NamedTuple):
    """Identify an operation: a collective of group ``number``, or a message.

    A message is between ``rank`` and ``peer`` in channel ``number``.
    """

    epoch: int
    number: int
    op: str
    seq: int
    rank: int = -1
    peer: int = -1

    @property
    def what(self) -> str:
        if self.peer < 0:
            return f"{self.op} #{self.seq}"
        return say_message(self.op, self.peer)


def _waits_of(rank: int, activity: Activity) -> Iterator[_OperationWait]:
    for number, its in activity.groups.items():
        if its.op:
            yield _OperationWait(activity.epoch, number, its.op, its.seq)
    channel, op, peer, seq = activity.pair
    if op:
        yield _OperationWait(activity.epoch, channel, op, seq, rank, peer)


class SlowOperationDetector:
    """Report each operation that lasts ``limit_s``, once.

    `look` is called periodically. An operation that begins and ends between two calls is not slow.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since_s: dict[tuple[int, _OperationWait], float] = {}
        self._reported: set[tuple[int, _OperationWait]] = set()

    def look(self, activities: Activities, *, now_s: float) -> list[LongWait]:
        """Take the current activities of all live ranks; return new slow waits."""
        inside = _inside(activities)
        seen = {(rank, wait) for wait, ranks in inside.items() for rank in ranks}
        self._since_s = {key: self._since_s.get(key, now_s) for key in seen}
        self._reported &= seen
        found = []
        for wait, ranks in inside.items():
            since_s = [self._since_s[rank, wait] for rank in ranks]
            missing, last = _missing(wait, ranks, activities)
            # If no rank is missing, the time counts from the arrival of the last rank.
            begin_s = min(since_s) if missing else max(since_s)
            if now_s - begin_s < self._limit_s or any((r, wait) in self._reported for r in ranks):
                continue
            self._reported.update((rank, wait) for rank in ranks)
            found.append(LongWait(tuple(ranks), wait.what, missing, last))
        return _merged(found)


def waits_now(activities: Activities) -> list[LongWait]:
    """Return the operations that miss a rank, of any duration."""
    found = []
    for wait, ranks in _inside(activities).items():
        missing, last = _missing(wait, ranks, activities)
        if missing:
            found.append(LongWait(tuple(ranks), wait.what, missing, last))
    return _merged(found)


def _inside(activities: Activities) -> dict[_OperationWait, list[int]]:
    inside: dict[_OperationWait, list[int]] = {}
    for rank, activity in sorted(activities.by_rank.items()):
        for wait in _waits_of(rank, activity):
            if wait.epoch == activities.epoch:
                inside.setdefault(wait, []).append(rank)
    return inside


def _missing(
    wait: _OperationWait, ranks: Collection[int], activities: Activities
) -> tuple[tuple[int, ...], dict[int, str]]:
    by_rank = activities.by_rank
    if wait.peer >= 0:
        there = by_rank.get(wait.peer)
        # The peer is in the other half of the message, which is in transit.
        is_there = there is not None and there.pair[2] == wait.rank and there.pair[1] != wait.op
        return ((), {}) if is_there else ((wait.peer,), {})
    members = by_rank if wait.number == WORLD else activities.splits.get(wait.number, ())
    last = {}
    for rank in sorted(set(members).difference(ranks) & by_rank.keys()):
        its = by_rank[rank].groups.get(wait.number)
        done = its.done if its is not None and by_rank[rank].epoch == wait.epoch else 0
        if done < wait.seq and not (its is not None and its.op and its.seq >= wait.seq):
            last[rank] = f"last completed #{done}" if done else "has completed none"
    return tuple(last), last


def _merged(found: list[LongWait]) -> list[LongWait]:
    """Merge the waits of several ranks for the same peer."""
    merged: dict[tuple[str, tuple[int, ...]], LongWait] = {}
    for wait in found:
        before = merged.get((wait.what, wait.missing))
        ranks = wait.waiting if before is None else tuple(sorted({*before.waiting, *wait.waiting}))
        merged[wait.what, wait.missing] = LongWait(ranks, wait.what, wait.missing, wait.last)
    return list(merged.values())
