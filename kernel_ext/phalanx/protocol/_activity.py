"""What a rank is in the middle of, as the page of its host says.

Pure records and words: read beside the rank, and reported from host to host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Activity", "Passed", "Standing", "say_message"]


class Standing(NamedTuple):
    """Where a rank stands in one group: the operation it is in, the last that it has completed.

    ``queued`` operations are still to come from the group's own thread, whatever its cell does.
    """

    op: str
    seq: int
    done: int
    queued: int = 0


class Passed(NamedTuple):
    """Messages that have passed between a rank and one peer, in one group.

    ``sends``, ``receives``: it waits for the next one to be taken, or to come.
    """

    sent: int
    received: int
    sends: bool = False
    receives: bool = False


@dataclass(frozen=True)
class Activity:
    """What a rank is in the middle of, as its page says (`_native.AbortPage.activity`)."""

    epoch: int
    groups: Mapping[int, Standing]
    pair: tuple[int, str, int, int] = (-1, "", -1, 0)  # the message it waits for
    messages: Mapping[tuple[int, int], Passed] = field(default_factory=dict)  # by group and peer

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


def say_message(op: str, peer: int, seq: int = 0) -> str:
    """Words for a message that a rank waits to send or to receive."""
    number = f" #{seq}" if seq else ""
    return f"{op}{number} {'from' if op == 'recv' else 'to'} rank {peer}"
