"""Form groups: connect the ranks, then make the native groups.

The world of an epoch, its splits that are formed again, and new splits are formed alike. A split is
an operation of the parent group: ranks exchange all messages through the parent's engine.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Collection, Mapping
from functools import partial
from typing import TypeVar, cast

import msgspec
import numpy as np

from phalanx import _native
from phalanx.errors import DistributedError

from ..connect.connector import Links, connect_links
from ..connect.handshake import Identity, LinkPurpose
from ..connect.rendezvous import GroupRendezvous, Rendezvous
from ..world_spec import WorldSpec, check_color
from .registry import FIRST_NUMBER, GroupRegistry, Membership
from .work import Engine

CONNECT_LIMIT_S = 30.0  # as for joining a world
# If two threads of a rank split two groups, one thread must retry. Ranks may choose different
# threads, so each thread waits for a random time to let the other go first.
_RETRY_S = 0.002
_T = TypeVar("_T")


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Some ranks of a group that form a group of their own.

    ``number`` and ``channel`` are 0 for all ranks of the world. ``ranks`` are ranks of the group
    that has this part, in their new order.
    """

    number: int
    channel: int
    ranks: tuple[int, ...]


def form_part(
    meeting: Rendezvous,
    spec: WorldSpec,
    parts: Collection[Part],
    registry: GroupRegistry,
    parent: Engine | None,
    timeout: float | None,
) -> dict[int, Membership]:
    """Connect the ranks of each part; return this rank's part.

    Every rank of the group that ``spec`` describes must call this with the same parts, which share
    no rank. Only ranks that share no arena are connected; if no part has such ranks, the ranks do
    not meet. A failure of ``parent`` or of the epoch ends the call. The result is by number, and
    empty if this rank is in no part.
    """
    own = next((part for part in parts if spec.rank in part.ranks), None)
    new = None if own is None else spec.part(own.ranks, own.channel, own.number)
    links: Links = {}
    hosts = spec.native_hosts
    if any(len({hosts[rank] for rank in part.ranks}) > 1 for part in parts):
        name = spec.workspace
        peers: dict[LinkPurpose, tuple[int, ...]] = dict.fromkeys(LinkPurpose, ())
        if own is not None and new is not None:
            wanted = link_peers(new)
            peers = {p: tuple(own.ranks[peer] for peer in wanted[p]) for p in LinkPurpose}
            if own.number:
                # The identity is part of the proof: a socket of one split can never become one of
                # another.
                name += f", split {own.number:x} in channel {own.channel}"
        made = connect_links(
            Identity(name, spec.epoch, spec.rank, spec.key),
            peers,
            spec.addresses,
            meeting,
            timeout=timeout,
            host_names=spec.rank_host_names(),
            check=partial(registry.check, parent),
            names=spec.members,
            striping=spec.striping,
        )
        if own is not None:
            links = {
                part._replace(peer=own.ranks.index(part.peer)): sock for part, sock in made.items()
            }
    return {} if new is None else {new.number: registry.make(new, links)}


def try_part(
    meeting: Rendezvous,
    spec: WorldSpec,
    parts: Collection[Part],
    registry: GroupRegistry,
    parent: Engine,
    timeout: float | None,
) -> tuple[dict[int, Membership], dict[int, str]]:
    """Do as `form_part`; return this rank's part or its problem, by number.

    Raises if the parent has failed. All ranks must call `gather_problems` next, so that none waits
    for a rank with a problem.
    """
    try:
        return form_part(meeting, spec, parts, registry, parent, timeout), {}
    except (DistributedError, OSError, ValueError) as error:
        if parent.failure is not None:
            raise
        return {}, {part.number: str(error) for part in parts if spec.rank in part.ranks}


def exchange(meeting: Rendezvous, mine: _T, kind: type[_T], timeout: float | None) -> list[_T]:
    """Exchange values of one type; return those of all ranks."""
    packed = meeting.all_gather(msgspec.msgpack.encode(mine), timeout=timeout)
    return [msgspec.msgpack.decode(data, type=kind) for data in packed]


def gather_problems(
    meeting: Rendezvous, spec: WorldSpec, problems: Mapping[int, str], timeout: float | None
) -> dict[int, str]:
    """Exchange the ranks' problems; return the first of each part, by number."""
    found: dict[int, str] = {}
    shares = exchange(meeting, dict(problems), dict[int, str], timeout)
    for member, its in zip(spec.members, shares, strict=True):
        for number, why in its.items():
            who = f"rank {member}: "
            found.setdefault(number, who + why.removeprefix(who))
    return found


def link_peers(spec: WorldSpec) -> dict[LinkPurpose, tuple[int, ...]]:
    """Return the ranks that this rank needs links to.

    For messages: all ranks of other hosts. For collectives: the first rank of each host needs links
    to the first ranks of the other hosts.

    Examples
    --------
    >>> spec = WorldSpec(rank=0, members=(0, 1, 2, 3), epoch=1, workspace="lab", key=bytes(32),
    ...                  hosts=(0, 0, 1, 1), slots=(0, 1, 0, 1), host_names=(), region_fds=(5, 6))
    >>> peers = link_peers(spec)
    >>> peers[LinkPurpose.COLLECTIVE], peers[LinkPurpose.PAIR]
    ((2,), (2, 3))
    >>> from dataclasses import replace
    >>> link_peers(replace(spec, rank=1))[LinkPurpose.COLLECTIVE]
    ()
    """
    hosts = spec.native_hosts
    here = hosts[spec.rank]
    others = tuple(peer for peer in range(spec.size) if hosts[peer] != here)
    is_leader = hosts.index(here) == spec.rank
    leaders = tuple(peer for peer in others if is_leader and hosts.index(hosts[peer]) == peer)
    return {LinkPurpose.COLLECTIVE: leaders, LinkPurpose.PAIR: others}


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
    parent: Membership, registry: GroupRegistry, color: int | None, key: int, number: int = 0
) -> Membership | None:
    """Form this rank's part of a group; every rank must call this.

    ``number`` is the number of the new group; 0: a random one. Returns None for a rank that gave no
    color. If no channel is free or a part could not be formed, every rank raises the same
    `DistributedError` and the parent stays usable. Any other error is a failure of the parent.
    """
    new_color, new_key = check_color(color, key)
    engine, spec = cast("_native.Group", parent.engine), parent.spec
    meeting = GroupRendezvous(engine)
    part: Part | None = None
    made: dict[int, Membership] = {}
    try:
        number = number or secrets.randbits(62) + FIRST_NUMBER
        parts = _agree(meeting, registry, new_color, new_key, number)
        part = parts.get(new_color)
        made, problems = try_part(meeting, spec, parts.values(), registry, engine, CONNECT_LIMIT_S)
        for why in gather_problems(meeting, spec, problems, None).values():
            msg = f"the group could not be split: {why}"
            raise DistributedError(msg)  # noqa: TRY301
    except BaseException as error:
        if not isinstance(error, DistributedError):  # a DistributedError is raised on all ranks
            kind, what = _native.ABORT_ERROR, f"failed in split: {error}"
            if isinstance(error, KeyboardInterrupt):
                kind, what = _native.ABORT_INTERRUPTED, "was interrupted in split"
            engine.abort(kind, spec.me, f"rank {spec.me} {what}")
        for formed in made.values():
            formed.engine.close()
            registry.leave(formed)
        if part is not None and not made:
            registry.settle_back(part.channel)
        raise
    return None if part is None else made[part.number]
