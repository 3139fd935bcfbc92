"""Form groups: connect the ranks, then make the native groups."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import msgspec

from phalanx import _native

from ..connect.connector import Links, connect_links
from ..connect.handshake import Identity, LinkPurpose
from ..connect.rendezvous import Rendezvous
from ..world_spec import WorldSpec
from .registry import GroupRegistry

CONNECT_LIMIT_S = 30.0  # as for joining a world
Formed = tuple[_native.Group, WorldSpec]


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
    new = None
    if own is not None:
        new = spec.part(own.ranks, own.channel, own.number) if own.number else spec
    links: Links = {purpose: {} for purpose in LinkPurpose}
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
                purpose: {own.ranks.index(peer): socks for peer, socks in made[purpose].items()}
                for purpose in LinkPurpose
            }
    return None if new is None else (registry.make(new, links), new)


def part_of(rank: int, parts: Collection[Part]) -> Part | None:
    """Return the part that a rank is in."""
    return next((part for part in parts if rank in part.ranks), None)


def link_peers(spec: WorldSpec) -> dict[LinkPurpose, tuple[int, ...]]:
    """Return the ranks that this rank needs links to.

    For messages: all ranks of other hosts. For collectives: the first rank of each host needs links
    to the first ranks of the other hosts.

    Examples
    --------
    >>> spec = WorldSpec(rank=0, size=4, epoch=1, workspace="lab", key=bytes(32),
    ...                  hosts=(0, 0, 1, 1), slots=(0, 1, 0, 1), host_names=(), addresses=(),
    ...                  region_fds=(5, 6))
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
