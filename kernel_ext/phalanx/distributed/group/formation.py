"""Form groups: connect the ranks, then make the native groups.

Used for the world of an epoch, for its splits that are formed again, and for new splits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import TypeVar

import msgspec

from phalanx import _native
from phalanx.errors import DistributedError

from ..connect.connector import Links, connect_links
from ..connect.handshake import Identity, LinkPurpose
from ..connect.rendezvous import Rendezvous
from ..world_spec import WorldSpec
from .registry import GroupRegistry

CONNECT_LIMIT_S = 30.0  # as for joining a world
Formed = tuple[_native.Group, WorldSpec]
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
    parent: _native.Group | None,
    timeout: float | None,
) -> Formed | None:
    """Connect the ranks of each part; form this rank's part.

    Every rank of the group that ``spec`` describes must call this with the same parts, which share
    no rank. Only ranks that share no arena are connected; if no part has such ranks, the ranks do
    not meet. A failure of ``parent`` or of the epoch ends the call.
    """
    own = part_of(spec.rank, parts)
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
    return None if new is None else (registry.make(new, links), new)


def try_part(
    meeting: Rendezvous,
    spec: WorldSpec,
    parts: Collection[Part],
    registry: GroupRegistry,
    parent: _native.Group,
    timeout: float | None,
) -> tuple[dict[int, Formed], dict[int, str]]:
    """Do as `form_part`; return this rank's part or its problem, by number.

    Raises if the parent has failed. All ranks must call `gather_problems` next, so that none waits
    for a rank with a problem.
    """
    own = part_of(spec.rank, parts)
    try:
        made = form_part(meeting, spec, parts, registry, parent, timeout)
    except (DistributedError, OSError, ValueError) as error:
        if parent.failure is not None:
            raise
        return {}, {} if own is None else {own.number: str(error)}
    return ({}, {}) if own is None or made is None else ({own.number: made}, {})


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


def part_of(rank: int, parts: Collection[Part]) -> Part | None:
    """Return the part that a rank is in."""
    return next((part for part in parts if rank in part.ranks), None)


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
