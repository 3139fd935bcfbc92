"""Split a group.

A split is an operation of the parent group: ranks exchange all messages through the parent's
engine.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Mapping, Sequence

import numpy as np

from phalanx import _native
from phalanx.errors import CollectiveTimeout, DistributedError

from ..world_spec import WorldSpec, check_color
from .formation import CONNECT_LIMIT_S, Formed, Part, gather_problems, try_part
from .registry import FIRST_NUMBER, GroupRegistry

_WORD = 8
# If two threads of a rank split two groups, one thread must retry. Ranks may choose different
# threads, so each thread waits for a random time to let the other go first.
_RETRY_S = 0.002


class GroupRendezvous:
    """Rendezvous of ranks that have a group; error texts say split."""

    def __init__(self, engine: _native.Group) -> None:
        self._engine = engine

    def all_gather(self, data: bytes, *, timeout: float | None) -> list[bytes]:
        """Do as `Rendezvous.all_gather`; a timeout ends the group's epoch."""
        try:
            lengths = self.exchange([len(data)], timeout)[:, 0].tolist()
            width = -(-max(lengths) // _WORD)
            words = np.frombuffer(data.ljust(width * _WORD, b"\0"), np.int64)
            rows = self.exchange(words, timeout)
        except CollectiveTimeout as error:
            msg = f"not every rank came to the rendezvous: {error}"
            raise TimeoutError(msg) from error
        except DistributedError as error:
            if type(error) is not DistributedError:
                raise
            msg = f"the rendezvous can never be complete: {error}"
            raise DistributedError(msg) from error
        return [row.tobytes()[:length] for row, length in zip(rows, lengths, strict=True)]

    def exchange(
        self, row: Sequence[int] | np.ndarray, timeout: float | None = None
    ) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """Send a row of numbers and return the rows of all ranks."""
        mine = np.ascontiguousarray(row, np.int64)
        rows = np.empty((self._engine.size, mine.size), np.int64)
        self._engine.split(mine, rows.reshape(-1), timeout)
        return rows


def _plan(rows: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> dict[int, Part]:
    """Compute the parts by color, identically on every rank.

    A part without a free channel has channel 0.

    Examples
    --------
    >>> rows = np.array([[7, -1, 0b1100, 0, 5], [7, 0, 0b0110, 0, 6], [-1, -1, 2, 0, 7]])
    >>> _plan(rows)
    {7: Part(number=5, channel=2, ranks=(0, 1))}
    """
    parts = {}
    for color in sorted({int(color) for color in rows[:, 0] if color >= 0}):
        ranks = [rank for rank in range(len(rows)) if rows[rank, 0] == color]
        ranks.sort(key=lambda rank: (int(rows[rank, 1]) if rows[rank, 1] >= 0 else rank, rank))
        common = int(np.bitwise_and.reduce(rows[ranks, 2]))
        channel = max(0, (common & -common).bit_length() - 1)
        parts[color] = Part(int(rows[min(ranks), 4]), channel, tuple(ranks))
    return parts


def _agree(
    meeting: GroupRendezvous, registry: GroupRegistry, color: int, key: int, number: int
) -> dict[int, Part]:
    """Agree on the parts and their channels; take this rank's channel."""
    while True:
        offered = registry.offer()
        taken = 0
        try:
            mask = sum(1 << channel for channel in offered or ())
            rows = meeting.exchange([color, key, mask, offered is None, number])
            parts = _plan(rows)
            lacking = [part for part in parts.values() if not part.channel]
            if not lacking and color >= 0:
                taken = parts[color].channel
        finally:
            if offered is not None:
                registry.settle(taken)
        if not lacking:
            return parts
        # Another thread of such a rank offers the channels: it splits a group, too.
        if not any(rows[part.ranks, 3].any() for part in lacking):
            most = _native.Group.CHANNELS - 1
            msg = (
                "no channel is free on all ranks of a new group: a process can be in at most "
                f"{most} splits of a world at a time; close splits that are not needed any more"
            )
            raise DistributedError(msg)
        time.sleep(random.uniform(0, _RETRY_S))  # noqa: S311  # no secret: only who goes first


def split_group(
    engine: _native.Group,
    spec: WorldSpec,
    registry: GroupRegistry,
    color: int | None,
    key: int,
    number: int = 0,
) -> Formed | None:
    """Form this rank's part of a group; every rank must call this.

    ``number`` is the number of the new group; 0: a random one. Returns None for a rank that gave no
    color. If no channel is free or a part could not be formed, every rank raises the same
    `DistributedError` and the parent stays usable. Any other error is a failure of the parent.
    """
    new_color, new_key = check_color(color, key)
    meeting = GroupRendezvous(engine)
    part: Part | None = None
    made: dict[int, Formed] = {}
    try:
        number = number or secrets.randbits(62) + FIRST_NUMBER
        parts = _agree(meeting, registry, new_color, new_key, number)
        part = parts.get(new_color)
        made, problems = try_part(meeting, spec, parts.values(), registry, engine, CONNECT_LIMIT_S)
        _raise_first(gather_problems(meeting, spec, problems, None))
    except BaseException as error:
        if not isinstance(error, DistributedError):  # a DistributedError is raised on all ranks
            kind, what = _native.ABORT_ERROR, f"failed in split: {error}"
            if isinstance(error, KeyboardInterrupt):
                kind, what = _native.ABORT_INTERRUPTED, "was interrupted in split"
            engine.abort(kind, spec.me, f"rank {spec.me} {what}")
        for new_engine, new_spec in made.values():
            new_engine.close()
            registry.leave(new_spec, new_engine)
        if part is not None and not made:
            registry.settle_back(part.channel)
        raise
    return None if part is None else made[part.number]


def _raise_first(problems: Mapping[int, str]) -> None:
    for why in problems.values():
        msg = f"the group could not be split: {why}"
        raise DistributedError(msg)
