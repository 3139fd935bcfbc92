"""Describe what a rank does, in words for users."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


def format_ranks(ranks: Iterable[int]) -> str:
    """Write rank numbers in their short form.

    Examples
    --------
    >>> format_ranks([3, 0, 2]), format_ranks([5])
    ('0,2-3', '5')
    """
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def name_ranks(ranks: Iterable[int]) -> str:
    """Write rank numbers as part of a sentence.

    Examples
    --------
    >>> name_ranks([2]), name_ranks([0, 1])
    ('rank 2', 'ranks 0-1')
    """
    known = set(ranks)
    return f"rank{'' if len(known) == 1 else 's'} {format_ranks(known)}"


class GroupProgress(NamedTuple):
    """Progress of a rank in one group: present and last completed operation.

    ``op`` and ``seq`` are the present operation; ``done`` is the number of the last completed one.
    ``queued`` operations wait in the group's own thread, whatever the rank's cell does.
    """

    op: str
    seq: int
    done: int
    queued: int = 0


class Passed(NamedTuple):
    """Number of messages between a rank and one peer in one group.

    ``sends``: the rank waits until the peer takes its next message. ``receives``: the rank waits
    for the peer's next message.
    """

    sent: int
    received: int
    sends: bool = False
    receives: bool = False


class UserWait(NamedTuple):
    """Operation in which user code has waited for at least 50 ms.

    ``number`` is unique among the waits of the rank. ``op`` is operation ``seq`` of ``group``, or
    ``"send"`` or ``"recv"`` with rank ``peer``, or ``"work"``: a wait until at most ``seq``
    operations are queued in the group. ``looks`` counts the polls without success.
    ``has_threads``: other threads of the rank may act for the user. ``site`` is the caller's
    place, as in ``"train.py:31"``.
    """

    number: int
    group: int
    op: str
    seq: int
    peer: int = -1
    looks: int = 0
    has_threads: bool = True
    site: str = ""


class Operation(NamedTuple):
    """A collective of a group, or a message between ``rank`` and ``peer``."""

    group: int
    seq: int
    op: str
    rank: int = -1
    peer: int = -1

    @property
    def name(self) -> str:
        """Return the operation in words, a message without its number."""
        return f"{self.op} #{self.seq}" if self.peer < 0 else say_message(self.op, self.peer)


@dataclass(frozen=True)
class Activity:
    """Present operations of a rank, as on its page (`_native.ControlPage.activity`)."""

    epoch: int
    groups: Mapping[int, GroupProgress]
    messages: Mapping[tuple[int, int], Passed] = field(default_factory=dict)  # by group and peer
    wait: UserWait | None = None

    def operations(self, rank: int = -1) -> Iterator[Operation]:
        """Yield the operations and messages in which this rank is."""
        for group, its in sorted(self.groups.items()):
            if its.op:
                yield Operation(group, its.seq, its.op)
        for (group, peer), passed in self.messages.items():
            if passed.receives:
                yield Operation(group, passed.received + 1, "recv", rank, peer)
            if passed.sends:
                yield Operation(group, passed.sent + 1, "send", rank, peer)

    @property
    def doing(self) -> str:
        """Return the operation the rank is in as text, "" for none.

        Examples
        --------
        >>> Activity(1, {}, {(0, 2): Passed(0, 4, receives=True)}).doing
        'in recv from rank 2'
        """
        return next((f"in {its.name}" for its in self.operations()), "")

    def is_at(self, number: int, seq: int) -> bool:
        """Whether `doing` means operation or message ``seq`` of group ``number``."""
        its = next(self.operations(), None)
        return its is not None and (its.group, its.seq) == (number, seq)


def say_message(op: str, peer: int, seq: int = 0) -> str:
    """Describe a message that a rank waits to send or to receive."""
    number = f" #{seq}" if seq else ""
    return f"{op}{number} {'from' if op == 'recv' else 'to'} rank {peer}"
