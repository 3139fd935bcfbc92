"""Find ranks that wait for each other in a cycle.

`find_deadlock` is a pure function of the ranks' activities. A wait for a rank that has ended its
part of the cell is found by `waits`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.protocol import Operation, UserWait, name_ranks

from .waits import WORLD, Activities, say_operation

MOST_WAITS = 4  # waits named in the text: the text on the control page has 500 bytes
_USER = -1  # stands for the thread that runs the user's code


class _Thread(NamedTuple):
    """Identify a thread that calls operations: the user's or a group's queue."""

    rank: int
    group: int = _USER


class _ThreadWait(NamedTuple):
    """Identify one wait of a thread; ``number`` differs for each wait."""

    thread: _Thread
    number: int


@dataclass(frozen=True)
class Deadlock:
    """Describe ranks that wait for each other.

    ``cycle`` are ranks that wait for each other. ``waiting`` are all blocked ranks, also those that
    wait for the cycle. ``said`` has each wait in words, with the ranks in it. ``sends``: one of the
    ranks waits to send. ``acting`` are ranks with other threads that may end the wait.
    """

    cycle: tuple[int, ...]
    waiting: tuple[int, ...]
    said: tuple[tuple[tuple[int, ...], str], ...]
    sends: bool
    acting: tuple[int, ...]
    waits: frozenset[_ThreadWait]

    def __str__(self) -> str:
        """Return the ranks that wait, each wait, and the remedy.

        Examples
        --------
        >>> said = ((0,), "all_sum #1 in the split of ranks 0-1 at a.py:3"), ((1,), "barrier #2")
        >>> str(Deadlock((0, 1), (0, 1), said, False, (), frozenset()))
        'ranks 0-1 wait for each other: rank 0 in all_sum #1 in the split of ranks 0-1 at a.py:3, \
rank 1 in barrier #2; call operations of all groups, and messages, in one order on every rank'
        """
        parts = [f"{name_ranks(ranks)} in {what}" for ranks, what in self.said[:MOST_WAITS]]
        if len(self.said) > MOST_WAITS:
            parts.append("others elsewhere")
        advice = "call operations of all groups, and messages, in one order on every rank"
        if self.sends:
            advice = "a large send ends when it is received: let one side receive first"
        return f"{name_ranks(self.cycle)} wait for each other: {', '.join(parts)}; {advice}"


def find_deadlock(
    seen: Activities, *, running: Collection[int], with_threads: bool = False
) -> Deadlock | None:
    """Return the waits that cannot end, unless another user thread ends one.

    A thread counts as able to go on unless it is seen to wait. An operation can end if every
    missing rank has a thread that can go on. The remaining threads wait only for each other.
    Activities read at different moments may mislead, so `DeadlockSearch` polls repeatedly.
    Ranks that are not ``running`` user code may do anything. ``with_threads``: ignore that other
    threads of a rank may act for the rank.

    Each round over the waits removes at least one wait, or is the last. Mostly there are two
    rounds. A round checks each member of each operation in which a rank waits, once.
    """
    graph = _Graph(seen, running, with_threads)
    graph.reduce()
    return graph.deadlock()


class _Graph:
    """Build the graph of waits; `reduce` removes threads that can go on."""

    def __init__(self, seen: Activities, running: Collection[int], with_threads: bool) -> None:
        self._seen = seen
        self._waits: dict[int, UserWait] = {}
        self._blocked: set[_Thread] = set()
        for rank in sorted(seen.by_rank):
            if (now := seen.now(rank)) is None:
                continue
            wait = now.wait if rank in running else None
            if wait is not None and (with_threads or not wait.has_threads):
                self._waits[rank] = wait
                self._blocked.add(_Thread(rank))
            for number, its in now.groups.items():
                if its.queued and its.op:
                    self._blocked.add(_Thread(rank, number))
        self._absent: dict[Operation, tuple[_Thread, ...]] = {}  # cache of one round

    def reduce(self) -> None:
        """Remove threads that can go on, then threads waiting for those."""
        has_changed = len(self._waits) > 1  # a single waiting rank is in no cycle
        if not has_changed:
            self._blocked.clear()
        while has_changed:
            self._absent.clear()
            can_go_on = {thread for thread in self._blocked if not any(self._awaited(thread))}
            self._blocked -= can_go_on
            has_changed = bool(can_go_on)

    def _awaited(self, thread: _Thread) -> Iterator[_Thread]:
        """Yield the blocked threads for which this thread waits.

        This thread cannot go on before all of them have gone on.
        """
        rank, number = thread
        if number != _USER:
            yield from self._missing(self._in_queue(thread))
            return
        wait = self._waits[rank]
        queue = _Thread(rank, wait.group)
        if wait.op == "work":
            now = self._seen.by_rank[rank].groups.get(wait.group)
            if now is not None and now.queued > wait.seq and queue in self._blocked:
                yield queue
            return
        operation = Operation(wait.group, wait.seq, wait.op, rank, wait.peer)
        if wait.peer < 0:
            yield from self._missing(operation._replace(rank=-1))
        elif self._is_awaited(wait.peer, operation):
            yield _Thread(wait.peer)

    def _in_queue(self, thread: _Thread) -> Operation:
        its = self._seen.by_rank[thread.rank].groups[thread.group]
        return Operation(thread.group, its.seq, its.op)

    def _missing(self, operation: Operation) -> tuple[_Thread, ...]:
        """Return the members that have not entered an operation and cannot.

        The user's code of these members is blocked.
        """
        if operation not in self._absent:
            self._absent[operation] = tuple(
                _Thread(member)
                for member in self._seen.members(operation.group)
                if self._is_awaited(member, operation)
            )
        return self._absent[operation]

    def _is_awaited(self, member: int, operation: Operation) -> bool:
        """Whether a member has not come to an operation, and cannot.

        False for a member that has closed the group: waiting peers find out by themselves.
        """
        seen, group, its = self._seen, operation.group, self._waits.get(member)
        now = seen.now(member)
        if its is None or now is None or group not in now.groups:
            return False
        queue = _Thread(member, group)
        if operation.peer < 0:
            may_come = now.groups[group].queued > 0 and queue not in self._blocked
        else:
            # A long message passes in pieces. For each piece its two ranks may wait or not.
            other_end = (group, "send" if operation.op == "recv" else "recv", operation.seq)
            may_come = (its.group, its.op, its.seq, its.peer) == (*other_end, operation.rank)
        has_come = seen.has_done(member, operation) or seen.is_in(member, operation)
        return not (has_come or may_come) and _Thread(member) in self._blocked

    def deadlock(self) -> Deadlock | None:
        """Describe the remaining waits; None if there are none."""
        waiting = sorted(thread.rank for thread in self._blocked if thread.group == _USER)
        if not waiting:
            return None
        cycle = self._cycle(waiting[0])
        said: dict[str, list[int]] = {}
        for rank in (*cycle, *(rank for rank in waiting if rank not in cycle)):
            said.setdefault(self._words(rank), []).append(rank)
        return Deadlock(
            cycle=tuple(sorted(cycle)),
            waiting=tuple(waiting),
            said=tuple((tuple(ranks), what) for what, ranks in said.items()),
            sends=any(self._waits[rank].op == "send" for rank in waiting),
            acting=tuple(rank for rank in waiting if self._waits[rank].has_threads),
            waits=frozenset(_ThreadWait(thread, self._number(thread)) for thread in self._blocked),
        )

    def _cycle(self, rank: int) -> tuple[int, ...]:
        """Follow the waits from a rank's user thread; return the cycle."""
        path = [_Thread(rank)]
        while (following := next(self._awaited(path[-1]))) not in path:
            path.append(following)
        # A rank's queue and the user's code that waits for the queue count as one.
        return tuple(dict.fromkeys(thread.rank for thread in path[path.index(following) :]))

    def _number(self, thread: _Thread) -> int:
        if thread.group == _USER:
            return self._waits[thread.rank].number
        return self._in_queue(thread).seq

    def _words(self, rank: int) -> str:
        wait = self._waits[rank]
        op, seq = wait.op, wait.seq
        if op == "work":
            _, seq, op, *_ = self._in_queue(_Thread(rank, wait.group))
        split = () if wait.group == WORLD else self._seen.members(wait.group)
        return say_operation(op, seq, wait.peer, split) + (f" at {wait.site}" if wait.site else "")


class DeadlockSearch:
    """Poll the ranks until a deadlock between them is certain.

    If two polls see the same waits, the waits lasted from the end of the first poll to the begin of
    the second. No counter by which the ranks wait for each other has changed meanwhile. That proves
    a deadlock of operations and receives. A send waits for buffer space, which is not counted. So
    each rank must have checked for space again, in vain, after the second poll: no rank has made
    space in between. Space that the network frees by itself, late, is waited for during ``send_s``:
    so long must the waits have been the same if a rank waits to send.
    """

    def __init__(self, send_s: float) -> None:
        self._send_s = send_s
        self._waits: frozenset[_ThreadWait] = frozenset()
        self._since_s = 0.0
        self._looks: dict[int, int] | None = None  # the ranks' counts of checks, at the second poll

    @property
    def is_suspicious(self) -> bool:
        """Whether the last poll has found waits that seem endless."""
        return bool(self._waits)

    def look(self, seen: Activities, *, now_s: float, running: Collection[int]) -> Deadlock | None:
        """Return what `find_deadlock` finds, once it is certain."""
        found = find_deadlock(seen, running=running)
        waits = frozenset() if found is None else found.waits
        if found is None or not self._waits or not self._waits <= waits:
            self._waits, self._since_s, self._looks = waits, now_s, None
            return None
        looks = {
            rank: wait.looks
            for (rank, group), _ in self._waits
            if group == _USER and (wait := seen.by_rank[rank].wait) is not None
        }
        if self._looks is None:
            self._looks = looks
            return None
        if any(looks[rank] < before + 2 for rank, before in self._looks.items()):
            return None
        is_long = now_s - self._since_s >= self._send_s
        return found if is_long or not found.sends else None
