"""Finding an operation that no one can complete any more.

Pure: what each rank does, and who takes part, in; the verdict out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

__all__ = ["Activity", "Hopeless", "find_hopeless"]

WORLD_CHANNEL = 0


@dataclass(frozen=True)
class Activity:
    """What a rank is in the middle of, as its page says (`_native.AbortPage.activity`)."""

    epoch: int
    channel: int
    op: str
    seq: int
    done: tuple[int, ...]
    pair: tuple[int, str, int, int] = (-1, "", -1, 0)  # the message it waits for


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
) -> Hopeless | None:
    """Return the operation of the world that waits for a rank whose part of the cell is over.

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
    """
    waiting: dict[tuple[int, str], list[int]] = {}
    for rank in sorted(running):
        now = activities[rank]
        if now.epoch == epoch and now.channel == WORLD_CHANNEL:
            waiting.setdefault((now.seq, now.op), []).append(rank)
    for (seq, op), ranks in sorted(waiting.items()):
        for rank in sorted(gone):
            there = activities[rank]
            is_inside = there.channel == WORLD_CHANNEL and there.seq >= seq
            done = there.done[WORLD_CHANNEL] if there.epoch == epoch else 0
            if done < seq and not is_inside:
                return Hopeless(tuple(ranks), rank, op, seq)
    return None
