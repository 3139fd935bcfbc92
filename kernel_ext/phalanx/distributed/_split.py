"""Splitting a group: the ranks agree on who comes together and where, then form the new groups.

It is an operation of the parent: everything that ranks tell each other goes through its engine.
What holds the result it does not know.
"""

from __future__ import annotations

import operator
import random
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from phalanx import _native
from phalanx.errors import CollectiveTimeout, DistributedError

from ._connect import connect_links
from ._family import Family
from ._handshake import Identity, Lane
from ._rendezvous import Rendezvous
from ._world import WorldSpec, abort_error, link_peers

__all__ = [
    "CONNECT_LIMIT_S",
    "GroupRendezvous",
    "Part",
    "abort_check",
    "form_part",
    "spec_of",
    "split_group",
]

CONNECT_LIMIT_S = 30.0  # as for joining a world
_NO_COLOR = -1
_FIELDS = 5
_WORD = 8
# While two threads of a rank split two groups, one of them asks again: ranks may have chosen
# differently, so each waits a little, by chance, to let the other go first.
_RETRY_S = 0.002


class GroupRendezvous:
    """A `Rendezvous` of ranks that have a group already; in error texts it is called split."""

    def __init__(self, engine: _native.Group) -> None:
        self._engine = engine

    @property
    def rank(self) -> int:
        """This process's rank in the group."""
        return self._engine.rank

    @property
    def size(self) -> int:
        """How many ranks meet."""
        return self._engine.size

    def all_gather(self, data: bytes, *, timeout: float | None) -> list[bytes]:
        """As `Rendezvous.all_gather`; a timeout ends the group's epoch."""
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
        """Give a row of numbers, get those of all ranks."""
        mine = np.ascontiguousarray(row, np.int64)
        rows = np.empty((self.size, mine.size), np.int64)
        self._engine.split(mine, rows.reshape(-1), timeout)
        return rows


@dataclass(frozen=True)
class Part:
    """One of the groups to be: ranks of the parent in their new order."""

    ranks: tuple[int, ...]
    channel: int | None
    number: int
    is_busy: bool = False  # one of them has offered nothing, as another thread of it splits, too


def check_color(color: object, key: object) -> tuple[int, int]:
    """Return color (-1: none) and key (-1: none) as numbers that fit on the wire."""
    numbers = []
    for name, value in (("color", _NO_COLOR if color is None else color), ("key", key)):
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            wanted = "an int or None" if name == "color" else "an int"
            msg = f"{name} must be {wanted}, not {type(value).__name__}"
            raise TypeError(msg) from None
        if number >= 1 << 63:
            msg = f"{name} must be less than 2**63, not {number}"
            raise ValueError(msg)
        numbers.append(max(number, -1))
    return numbers[0], numbers[1]


def _plan(rows: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> dict[int, Part]:
    """Find the same parts on every rank, by color.

    Examples
    --------
    >>> rows = np.array([[7, -1, 0b1100, 0, 5], [7, 0, 0b0110, 0, 6], [-1, -1, 2, 0, 7]])
    >>> _plan(rows)
    {7: Part(ranks=(0, 1), channel=2, number=5, is_busy=False)}
    """
    parts = {}
    for color in sorted({int(color) for color in rows[:, 0] if color >= 0}):
        ranks = [rank for rank in range(len(rows)) if rows[rank, 0] == color]
        ranks.sort(key=lambda rank: (int(rows[rank, 1]) if rows[rank, 1] >= 0 else rank, rank))
        common = int(np.bitwise_and.reduce(rows[ranks, 2]))
        channel = (common & -common).bit_length() - 1 if common else None
        number = int(rows[min(ranks), 4])
        parts[color] = Part(tuple(ranks), channel, number, bool(rows[ranks, 3].any()))
    return parts


def _agree(meeting: GroupRendezvous, family: Family, color: int, key: int) -> dict[int, Part]:
    """Agree on the parts and their channels; this rank's channel is taken."""
    while True:
        offered = family.offer()
        taken = None
        try:
            mask = sum(1 << channel for channel in offered or ())
            number = secrets.randbits(62) + 1
            parts = _plan(meeting.exchange([color, key, mask, offered is None, number]))
            lacking = [part for part in parts.values() if part.channel is None]
            if not lacking and color >= 0:
                taken = parts[color].channel
        finally:
            if offered is not None:
                family.settle(taken)
        if not lacking:
            return parts
        if not any(part.is_busy for part in lacking):
            most = _native.Group.CHANNELS - 1
            msg = (
                "no channel is free on all ranks of a new group: a process can be in at most "
                f"{most} splits of a world at a time; close splits that are not needed any more"
            )
            raise DistributedError(msg)
        time.sleep(random.uniform(0, _RETRY_S))  # noqa: S311  # no secret: who goes first


def split_group(
    engine: _native.Group, spec: WorldSpec, family: Family, color: int | None, key: int
) -> tuple[_native.Group, WorldSpec] | None:
    """Form the part of a group that this rank is in; every rank of the group must call it.

    Returns
    -------
    native group and its spec, or None
        None for a rank that gave no color.

    Raises
    ------
    DistributedError
        The same on every rank, and the parent is as good as before: no channel is free, or a
        part could not be formed. Anything else is a failure of the parent.
    """
    new_color, new_key = check_color(color, key)
    meeting = GroupRendezvous(engine)
    part, new, made = None, None, None
    try:
        part = _agree(meeting, family, new_color, new_key).get(new_color)
        if part is not None:
            new = spec_of(spec, part)
        problem = b""
        try:
            check = abort_check(engine, family.world)
            made = form_part(meeting, spec, new, part, family, check=check, timeout=CONNECT_LIMIT_S)
        except (DistributedError, OSError, ValueError) as error:
            problem = str(error).encode()  # told to all, so that nobody waits for this rank
        said = meeting.all_gather(problem, timeout=None)
    except BaseException as error:
        if not isinstance(error, DistributedError):  # that one was everybody's
            me = spec.world_rank(spec.rank)
            if isinstance(error, KeyboardInterrupt):
                engine.abort(_native.ABORT_INTERRUPTED, me, f"rank {me} was interrupted in split")
            else:
                engine.abort(_native.ABORT_ERROR, me, f"rank {me} failed in split: {error}")
        _drop(family, new, made)
        raise
    found = {spec.world_rank(rank): text.decode() for rank, text in enumerate(said) if text}
    if found:
        _drop(family, new, made)
        rank, text = next(iter(found.items()))
        msg = f"the group could not be split: rank {rank}: {text}"
        raise DistributedError(msg)
    return None if made is None or new is None else (made, new)


def _drop(family: Family, new: WorldSpec | None, made: _native.Group | None) -> None:
    """Give back the channel of a part that does not come to be."""
    if new is None:
        return
    if made is None:
        family.settle_back(new.channel)
    else:
        made.close()
        family.leave(new, made)


def spec_of(spec: WorldSpec, part: Part) -> WorldSpec:
    """Describe a part of a group to one of its ranks."""
    ranks = part.ranks
    return replace(
        spec,
        rank=ranks.index(spec.rank),
        size=len(ranks),
        hosts=tuple(spec.hosts[rank] for rank in ranks),
        slots=tuple(spec.slots[rank] for rank in ranks),
        members=tuple(spec.world_rank(rank) for rank in ranks),
        channel=cast("int", part.channel),
        number=part.number,
        world_host_names=spec.world_host_names or spec.rank_host_names(),
    )


def form_part(
    meeting: Rendezvous,
    spec: WorldSpec,
    new: WorldSpec | None,
    part: Part | None,
    family: Family,
    *,
    check: Callable[[], None],
    timeout: float,
) -> _native.Group | None:
    """Connect the ranks of each part that share no arena, and make this rank's native group.

    Every rank of the group that ``spec`` describes calls it; ``part`` and ``new`` are of the one
    that this rank is in.
    """
    peers: dict[Lane, tuple[int, ...]] = dict.fromkeys(Lane, ())
    name = "none"
    if new is not None and part is not None:
        wanted = link_peers(new)
        peers = {lane: tuple(part.ranks[peer] for peer in wanted[lane]) for lane in Lane}
        name = f"{part.number:x} in channel {part.channel}"
    links = connect_links(
        # Part of the proof: a socket of one split can never become one of another.
        Identity(f"{spec.workspace}, split {name}", spec.epoch, spec.rank, spec.key),
        peers,
        spec.addresses,
        meeting,
        timeout=timeout,
        host_names=spec.rank_host_names(),
        check=check,
        names=spec.members,
        ways=spec.ways,
        outages=family.memory.outages,
    )
    if new is None or part is None:
        return None
    own = {
        lane: {part.ranks.index(peer): socks for peer, socks in links[lane].items()}
        for lane in Lane
    }
    return family.make(new, own)


def abort_check(engine: _native.Group, world: WorldSpec) -> Callable[[], None]:
    """Raise what a group has failed of, while others wait for it."""

    def check() -> None:
        failure = engine.failure
        if failure is not None:
            raise abort_error(world, *failure)

    return check
