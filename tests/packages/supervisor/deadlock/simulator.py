"""Ranks that are a few lines of Python, for what a supervisor concludes from their pages.

Where programs are made from one list of events that could be done in that order, a rank that stands
still for good does so because another one left its program early, and for no other reason.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random

from phalanx.protocol import Activity, GroupProgress, Passed, UserWait
from phalanx.supervisor.health.waits import WORLD

_MAIN, _OTHER = -1, -2  # threads of a rank that are no group's


@dataclass(frozen=True)
class Event:
    """An operation of a group (``asyncs`` only submit it), a message, or a wait for works.

    That ends when at most ``left`` operations are queued in the group.
    """

    group: int
    sender: int = -1
    receiver: int = -1
    is_large: bool = False
    asyncs: frozenset[int] = frozenset()
    left: int = -1

    @property
    def is_message(self) -> bool:
        return self.sender >= 0


@dataclass
class Rank:
    """What a rank has still to do, ``other`` in a second thread, and what its page says."""

    program: list[Event]
    other: list[Event] = field(default_factory=list)
    is_gone: bool = False
    queues: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))
    inside: dict[int, int] = field(default_factory=dict)  # group -> seq
    done: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    sent: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    received: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    sends: set[tuple[int, int]] = field(default_factory=set)
    receives: set[tuple[int, int]] = field(default_factory=set)
    wait: UserWait | None = None
    n_waits: int = 0


class Simulator:
    """Steps the threads of ranks, one small step at a time, in whatever order it is told."""

    def __init__(
        self,
        groups: dict[int, tuple[int, ...]],
        programs: list[list[Event]],
        others: dict[int, list[Event]] | None = None,
    ) -> None:
        self.groups = groups
        self.ranks = [
            Rank(list(program), list((others or {}).get(number, ())))
            for number, program in enumerate(programs)
        ]
        self._lying: dict[tuple[int, int, int], int] = defaultdict(int)  # small ones, unread

    @property
    def running(self) -> set[int]:
        return {number for number, rank in enumerate(self.ranks) if not rank.is_gone}

    @property
    def gone(self) -> set[int]:
        return {n for n, rank in enumerate(self.ranks) if rank.is_gone and not rank.other}

    def threads(self) -> list[tuple[int, int]]:
        """The threads there are: (rank, -1) runs the program, (rank, group) that group's queue."""
        return [
            (number, thread)
            for number, rank in enumerate(self.ranks)
            for thread in (_MAIN, *((_OTHER,) if rank.other else ()), *sorted(self.groups))
        ]

    def step(self, thread: tuple[int, int]) -> bool:
        """Let a thread do one small step; False if it cannot."""
        number, group = thread
        rank = self.ranks[number]
        if group >= 0:
            if not rank.queues[group] or not self._operate(number, group):
                return False
            if group not in rank.inside:
                rank.queues[group].pop(0)
            return True
        program = rank.program if group == _MAIN else rank.other
        if not program:
            has_ended = group == _MAIN and not rank.is_gone
            rank.is_gone |= has_ended
            return has_ended
        event = program[0]
        has_moved, is_over = self._begin(number, event)
        if is_over:
            program.pop(0)
        if group == _MAIN:
            self._show_wait(number, event, has_moved=has_moved)
        return has_moved

    def _show_wait(self, number: int, event: Event, *, has_moved: bool) -> None:
        """Say what the program waits in, and that it has looked in vain once more."""
        rank = self.ranks[number]
        if has_moved:
            rank.wait = None
            return
        if rank.wait is None:
            rank.n_waits += 1
            rank.wait = UserWait(rank.n_waits, event.group, *self._waited_for(number, event))
        has_threads = bool(rank.other)
        rank.wait = rank.wait._replace(looks=rank.wait.looks + 1, has_threads=has_threads)

    def _waited_for(self, number: int, event: Event) -> tuple[str, int, int]:
        """The operation, its number and the peer."""
        rank, group = self.ranks[number], event.group
        if event.is_message:
            is_sender = number == event.sender
            peer = event.receiver if is_sender else event.sender
            passed = rank.sent if is_sender else rank.received
            return "send" if is_sender else "recv", passed[group, peer] + 1, peer
        if event.left >= 0 or rank.queues[group]:
            return "work", max(event.left, 0), -1
        return "all_sum", rank.inside[group], -1

    def _begin(self, number: int, event: Event) -> tuple[bool, bool]:
        rank, group = self.ranks[number], event.group
        if event.is_message:
            return self._pass(number, event)
        if event.left >= 0:
            is_over = len(rank.queues[group]) <= event.left
            return is_over, is_over
        if number in event.asyncs:
            rank.queues[group].append(event)
            return True, True
        if rank.queues[group]:
            return False, False  # behind what was submitted before
        has_moved = self._operate(number, group)
        return has_moved, has_moved and group not in rank.inside

    def _operate(self, number: int, group: int) -> bool:
        """Enter the next operation of a group; once all members have, leave it."""
        rank = self.ranks[number]
        if group not in rank.inside:
            rank.inside[group] = rank.done[group] + 1
            return True
        seq = rank.inside[group]
        others = (self.ranks[member] for member in self.groups[group])
        if any(max(it.inside.get(group, 0), it.done[group]) < seq for it in others):
            return False
        rank.done[group] = seq
        del rank.inside[group]
        return True

    def _pass(self, number: int, event: Event) -> tuple[bool, bool]:
        rank, is_sender = self.ranks[number], number == event.sender
        peer = event.receiver if is_sender else event.sender
        key, there = (event.group, peer), (event.group, number)
        lying = (event.group, event.sender, event.receiver)
        if is_sender:
            is_taken = self.ranks[peer].received[there] > rank.sent[key]
            if not is_taken and not event.is_large and not self._lying[lying]:
                self._lying[lying] += 1
                is_taken = True
            return self._wait_or_count(rank.sends, rank.sent, key, is_ready=is_taken)
        is_lying = self._lying[lying] > 0
        has_come = is_lying or there in self.ranks[peer].sends
        # A large message passes while its sender is in it; one is passed before the next.
        if has_come and not is_lying:
            has_come = self.ranks[peer].sent[there] == rank.received[key]
        moved, is_over = self._wait_or_count(rank.receives, rank.received, key, is_ready=has_come)
        self._lying[lying] -= is_over and is_lying
        return moved, is_over

    @staticmethod
    def _wait_or_count(waits, counts, key, *, is_ready: bool) -> tuple[bool, bool]:
        if is_ready:
            waits.discard(key)
            counts[key] += 1
            return True, True
        has_moved = key not in waits
        waits.add(key)
        return has_moved, False

    def activity(self, number: int) -> Activity:
        """What the page of a rank says."""
        rank = self.ranks[number]
        groups = {
            group: GroupProgress(
                "all_sum" if group in rank.inside else "",
                rank.inside.get(group, 0),
                rank.done[group],
                len(rank.queues[group]),
            )
            for group, members in self.groups.items()
            if number in members
        }
        keys = {*rank.sent, *rank.received, *rank.sends, *rank.receives}
        messages = {
            key: Passed(rank.sent[key], rank.received[key], key in rank.sends, key in rank.receives)
            for key in keys
        }
        return Activity(1, groups, messages=messages, wait=rank.wait)

    @property
    def splits(self) -> dict[int, tuple[int, ...]]:
        return {group: members for group, members in self.groups.items() if group != WORLD}


def settle(simulator: Simulator, random: Random) -> None:
    """Let every thread do what it can, in a random order, and each look in vain at the end."""
    threads = simulator.threads()
    has_moved = True
    while has_moved:
        random.shuffle(threads)
        has_moved = any(simulator.step(thread) for thread in threads)
