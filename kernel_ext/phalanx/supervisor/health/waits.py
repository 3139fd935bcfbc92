"""Find waits for ranks that have gone, and long waits.

Pure: callers pass in the ranks' activities and the time. Ranks that wait for each other are found by
`deadlock`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.protocol import Activity, GroupProgress, Operation, Passed, name_ranks, say_message

WORLD = 0  # group number of the world
# A sender that waits for space in a queue goes on within microseconds of the peer's last read, or
# after a few scheduler turns on a machine with more ranks than cores.
CONFIRM_S = 0.05

_NOTHING = GroupProgress("", 0, 0)
_NONE = Passed(0, 0)


class Activities(NamedTuple):
    """Activities of ranks, in an epoch of the world with these splits.

    Activities of other epochs are out of date. ``splits`` has the ranks of each split, by its
    number. Waits in unlisted splits are ignored: the supervisor has not received those yet.
    """

    by_rank: Mapping[int, Activity]
    epoch: int
    splits: Mapping[int, Collection[int]]

    def now(self, rank: int) -> Activity | None:
        """Return what a rank does in this epoch; None: nothing."""
        its = self.by_rank.get(rank)
        return its if its is not None and its.epoch == self.epoch else None

    def members(self, group: int) -> Collection[int]:
        return self.by_rank.keys() if group == WORLD else self.splits.get(group, ())

    def operations(self, ranks: Collection[int]) -> dict[Operation, list[int]]:
        """Return the operations in which these ranks are, with those ranks."""
        found: dict[Operation, list[int]] = {}
        for rank in sorted(ranks):
            now = self.now(rank)
            for operation in now.operations(rank) if now is not None else ():
                found.setdefault(operation, []).append(rank)
        return {its: found[its] for its in sorted(found)}

    def missing(self, operation: Operation) -> list[int]:
        """Return the ranks that have not come to an operation."""
        awaited = {operation.peer}
        if operation.peer < 0:
            awaited = self.by_rank.keys() & self.members(operation.group)
        return [
            rank
            for rank in sorted(awaited)
            if not (self.has_done(rank, operation) or self.is_in(rank, operation))
        ]

    def has_done(self, rank: int, operation: Operation) -> bool:
        """Whether a rank has done its part of an operation."""
        return self._progress(rank, operation)[0] >= operation.seq

    def is_in(self, rank: int, operation: Operation) -> bool:
        """Whether a rank is in an operation, or in a later one."""
        done, entered = self._progress(rank, operation)
        return entered >= operation.seq > done

    def _progress(self, rank: int, operation: Operation) -> tuple[int, int]:
        """Return the last operation that a rank has done, and has entered."""
        now = self.now(rank)
        if now is None:
            return 0, 0
        if operation.peer < 0:
            its = now.groups.get(operation.group, _NOTHING)
            return its.done, its.seq if its.op else its.done
        passed = now.messages.get((operation.group, operation.rank), _NONE)
        if operation.op == "recv":
            return passed.sent, passed.sent + passed.sends
        return passed.received, passed.received + passed.receives


# -- operations that wait for a rank that has gone ------------------------------------------------


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
        what = say_operation(self.op, self.seq, self.missing, self.split)
        wait = "waits" if len(self.waiting) == 1 else "wait"
        return f"{what}, in which {name_ranks(self.waiting)} {wait}, can never complete"


def say_operation(op: str, seq: int, peer: int, split: Collection[int] = ()) -> str:
    """Describe an operation with its number and split."""
    what = say_message(op, peer, seq) if op in ("send", "recv") else f"{op} #{seq}"
    return what + (f" in the split of {name_ranks(split)}" if split else "")


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
    for operation, waiting in seen.operations(running if gone else ()).items():
        group, seq, op, _, peer = operation
        members = seen.members(group)
        for rank in sorted(set(gone).intersection(members if peer < 0 else (peer,))):
            now = seen.now(rank)
            # A rank that has joined the epoch but lacks the group has closed it.
            if not members or (now is not None and group not in now.groups):
                continue
            is_queued = now is not None and peer < 0 and now.groups[group].queued > 0
            may_come = rank not in ended and (seen.is_in(rank, operation) or is_queued)
            if not (may_come or seen.has_done(rank, operation)):
                split = () if group == WORLD else tuple(members)
                return ImpossibleWait(tuple(waiting), rank, op, seq, split)
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


# -- operations that last long --------------------------------------------------------------------


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


class SlowOperationDetector:
    """Report each operation that lasts ``limit_s``, once.

    `look` is called periodically. An operation that begins and ends between two calls is not slow.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since_s: dict[tuple[int, int, Operation], float] = {}  # by epoch and rank
        self._reported: set[tuple[int, int, Operation]] = set()

    def look(self, seen: Activities, *, now_s: float) -> list[LongWait]:
        """Take the current activities of all live ranks; return new slow waits."""
        found, since_s = [], self._since_s
        self._since_s = {}
        for operation, ranks in seen.operations(seen.by_rank).items():
            keys = [(seen.epoch, rank, operation) for rank in ranks]
            times = [since_s.get(key, now_s) for key in keys]
            self._since_s.update(zip(keys, times, strict=True))
            wait = _wait_of(operation, ranks, seen)
            # If no rank is missing, the time counts from the arrival of the last rank.
            begin_s = min(times) if wait.missing else max(times)
            if now_s - begin_s >= self._limit_s and self._reported.isdisjoint(keys):
                self._reported.update(keys)
                found.append(wait)
        self._reported &= self._since_s.keys()
        return _merged(found)


def waits_now(seen: Activities) -> list[LongWait]:
    """Return the operations that miss a rank, of any duration."""
    waits = [_wait_of(*its, seen) for its in seen.operations(seen.by_rank).items()]
    return _merged([wait for wait in waits if wait.missing])


def _wait_of(operation: Operation, ranks: Collection[int], seen: Activities) -> LongWait:
    missing, last = tuple(seen.missing(operation)), {}
    for rank in missing if operation.peer < 0 else ():
        now = seen.now(rank)
        done = now.groups.get(operation.group, _NOTHING).done if now is not None else 0
        last[rank] = f"last completed #{done}" if done else "has completed none"
    return LongWait(tuple(ranks), operation.name, missing, last)


def _merged(found: list[LongWait]) -> list[LongWait]:
    """Merge the waits of several ranks for the same peer."""
    merged: dict[tuple[str, tuple[int, ...]], LongWait] = {}
    for wait in found:
        before = merged.get((wait.what, wait.missing))
        ranks = wait.waiting if before is None else tuple(sorted({*before.waiting, *wait.waiting}))
        merged[wait.what, wait.missing] = LongWait(ranks, wait.what, wait.missing, wait.last)
    return list(merged.values())
