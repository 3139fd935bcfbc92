"""Ranks that are a few lines of Python, for what a supervisor concludes from their pages.

Programs are made from one list of events that could be done in that order, so a rank that stands
still for good does so because another one left its program early, and for no other reason.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from phalanx.supervisor._hopeless import WORLD, Activity, Passed, Standing


@dataclass(frozen=True)
class Event:
    """An operation of a group (``is_async`` says which ranks only submit it), or a message."""

    group: int
    sender: int = -1
    receiver: int = -1
    is_large: bool = False
    asyncs: frozenset[int] = frozenset()

    @property
    def is_message(self) -> bool:
        return self.sender >= 0


@dataclass
class Rank:
    """What a rank has still to do, and what its page says."""

    program: list[Event]
    is_gone: bool = False
    queues: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))
    inside: dict[int, int] = field(default_factory=dict)  # group -> seq
    done: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    sent: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    received: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    sends: set[tuple[int, int]] = field(default_factory=set)
    receives: set[tuple[int, int]] = field(default_factory=set)


class Simulator:
    """Steps the threads of ranks, one small step at a time, in whatever order it is told."""

    def __init__(self, groups: dict[int, tuple[int, ...]], programs: list[list[Event]]) -> None:
        self.groups = groups
        self.ranks = [Rank(list(program)) for program in programs]
        self._lying: dict[tuple[int, int, int], int] = defaultdict(int)  # small ones, unread

    @property
    def running(self) -> set[int]:
        return {number for number, rank in enumerate(self.ranks) if not rank.is_gone}

    @property
    def gone(self) -> set[int]:
        return {number for number, rank in enumerate(self.ranks) if rank.is_gone}

    def threads(self) -> list[tuple[int, int]]:
        """The threads there are: (rank, -1) runs the program, (rank, group) that group's queue."""
        return [
            (number, thread)
            for number in range(len(self.ranks))
            for thread in (-1, *sorted(self.groups))
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
        if rank.is_gone:
            return False
        if not rank.program:
            rank.is_gone = True
            return True
        event = rank.program[0]
        has_moved, is_over = self._begin(number, event)
        if is_over:
            rank.program.pop(0)
        return has_moved

    def _begin(self, number: int, event: Event) -> tuple[bool, bool]:
        rank, group = self.ranks[number], event.group
        if event.is_message:
            return self._pass(number, event)
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
            group: Standing(
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
        return Activity(1, groups, messages=messages)

    @property
    def splits(self) -> dict[int, tuple[int, ...]]:
        return {group: members for group, members in self.groups.items() if group != WORLD}
