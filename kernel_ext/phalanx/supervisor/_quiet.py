"""Operations that last long: who waits in what since when, and who is missing.

Pure: what ranks do and the time in, each long wait out, once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ._hopeless import WORLD, Activity, say_message

__all__ = ["LongWait", "QuietWatch", "waits_now"]


@dataclass(frozen=True)
class LongWait:
    """Ranks ``waiting`` have been in ``what`` for long, and ``missing`` have not come.

    ``last`` says of missing ranks which operation of the group they completed last.
    """

    waiting: tuple[int, ...]
    what: str
    missing: tuple[int, ...]
    last: Mapping[int, str]


class _Wait(NamedTuple):
    """An operation as the ranks in it see it: a collective of group ``number``.

    Or a message between ``rank`` and ``peer`` in channel ``number``.
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


def _waits_of(rank: int, activity: Activity) -> Iterator[_Wait]:
    for number, its in activity.groups.items():
        if its.op:
            yield _Wait(activity.epoch, number, its.op, its.seq)
    channel, op, peer, seq = activity.pair
    if op:
        yield _Wait(activity.epoch, channel, op, seq, rank, peer)


class QuietWatch:
    """Tells of each operation that a rank has been in for ``limit_s``, once.

    Looked at from time to time; what comes and goes between two looks was not long.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since_s: dict[tuple[int, _Wait], float] = {}
        self._told: set[tuple[int, _Wait]] = set()

    def look(
        self,
        activities: Mapping[int, Activity],
        *,
        epoch: int,
        splits: Mapping[int, Collection[int]],
        now_s: float,
    ) -> list[LongWait]:
        """Take what all living ranks do as of now; the waits to tell of."""
        inside = _inside(activities, epoch)
        seen = {(rank, wait) for wait, ranks in inside.items() for rank in ranks}
        self._since_s = {key: self._since_s.get(key, now_s) for key in seen}
        self._told &= seen
        found = []
        for wait, ranks in inside.items():
            since_s = [self._since_s[rank, wait] for rank in ranks]
            missing, last = _missing(wait, ranks, activities, splits)
            # Where all are there, nobody waits for anybody before all have been there for long.
            begin_s = min(since_s) if missing else max(since_s)
            if now_s - begin_s < self._limit_s or any((r, wait) in self._told for r in ranks):
                continue
            self._told.update((rank, wait) for rank in ranks)
            found.append(LongWait(tuple(ranks), wait.what, missing, last))
        return _merged(found)


def waits_now(
    activities: Mapping[int, Activity], *, epoch: int, splits: Mapping[int, Collection[int]]
) -> list[LongWait]:
    """Return the operations that somebody is missing in, however short they have lasted."""
    found = []
    for wait, ranks in _inside(activities, epoch).items():
        missing, last = _missing(wait, ranks, activities, splits)
        if missing:
            found.append(LongWait(tuple(ranks), wait.what, missing, last))
    return _merged(found)


def _inside(activities: Mapping[int, Activity], epoch: int) -> dict[_Wait, list[int]]:
    """Return which ranks are in what."""
    inside: dict[_Wait, list[int]] = {}
    for rank, activity in sorted(activities.items()):
        for wait in _waits_of(rank, activity):
            if wait.epoch == epoch:
                inside.setdefault(wait, []).append(rank)
    return inside


def _missing(
    wait: _Wait,
    ranks: Collection[int],
    activities: Mapping[int, Activity],
    splits: Mapping[int, Collection[int]],
) -> tuple[tuple[int, ...], dict[int, str]]:
    if wait.peer >= 0:
        there = activities.get(wait.peer)
        # It is in the other half of it: the message is on its way.
        is_there = there is not None and there.pair[2] == wait.rank and there.pair[1] != wait.op
        return ((), {}) if is_there else ((wait.peer,), {})
    members = activities.keys() if wait.number == WORLD else splits.get(wait.number, ())
    last = {}
    for rank in sorted(set(members).difference(ranks) & activities.keys()):
        its = activities[rank].groups.get(wait.number)
        done = its.done if its is not None and activities[rank].epoch == wait.epoch else 0
        if done < wait.seq and not (its is not None and its.op and its.seq >= wait.seq):
            last[rank] = f"last completed #{done}" if done else "has completed none"
    return tuple(last), last


def _merged(found: list[LongWait]) -> list[LongWait]:
    """Many ranks that wait for one and the same peer are told of together."""
    merged: dict[tuple[str, tuple[int, ...]], LongWait] = {}
    for wait in found:
        before = merged.get((wait.what, wait.missing))
        ranks = wait.waiting if before is None else tuple(sorted({*before.waiting, *wait.waiting}))
        merged[wait.what, wait.missing] = LongWait(ranks, wait.what, wait.missing, wait.last)
    return list(merged.values())
