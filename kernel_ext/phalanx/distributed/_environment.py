"""Joining the world that MLX's own launcher describes: `MLX_RANK` and `MLX_HOSTFILE`.

Nobody hands out a key in such a world: ranks meet at rank 0's first address, on loopback and among
processes of one user only, and get a key there; from then on all is as in any other world.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from phalanx.errors import CollectiveTimeout, DistributedError

from ._deadline import Deadline
from ._epoch import is_over, next_epoch
from ._group import Group, group_of_one
from ._listen import open_socket
from ._meeting_point import Guest, Host, MeetingRendezvous
from ._world import HostMemory, WorldSpec

__all__ = ["INSECURE_VARIABLE", "RingEnvironment", "join_ring", "ring_environment"]

INSECURE_VARIABLE = "PHALANX_INSECURE"
_RANK, _HOSTFILE = "MLX_RANK", "MLX_HOSTFILE"
_RETRY_S = 0.05  # rank 0 may start later than we: a connection to nobody costs microseconds


@dataclass(frozen=True)
class RingEnvironment:
    """A world as the variables tell it: each rank's first address."""

    rank: int
    addresses: tuple[tuple[str, int], ...]
    is_insecure: bool = False

    @property
    def size(self) -> int:
        """How many ranks; MLX writes an empty file for one."""
        return max(1, len(self.addresses))

    def digest(self) -> bytes:
        """Tell jobs apart: ranks of one job have read the same file."""
        return hashlib.sha256(json.dumps(self.addresses).encode()).digest()


class _Stand(msgspec.Struct, frozen=True, array_like=True):
    """What a rank says of itself when it comes: 0 is no epoch yet."""

    epoch: int
    is_over: bool


def ring_environment(env: Mapping[str, str]) -> RingEnvironment | None:
    """Read the variables; None where they are not set.

    Raises
    ------
    DistributedError
        They are set and make no sense, or name addresses that others can reach.

    Examples
    --------
    >>> ring_environment({}) is None
    True
    """
    if _RANK not in env or _HOSTFILE not in env:
        return None
    where = f"{_RANK}={env[_RANK]!r}, {_HOSTFILE}={env[_HOSTFILE]!r}"
    try:
        text = Path(env[_HOSTFILE]).read_text(encoding="utf-8")
        hosts = json.loads(text) if text.strip() else []
        addresses = tuple(_address(of_rank[0]) for of_rank in hosts)
        rank = int(env[_RANK])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        msg = f"{where}: not a ring as mlx.launch describes it ({error})"
        raise DistributedError(msg) from error
    ring = RingEnvironment(rank, addresses, env.get(INSECURE_VARIABLE) == "1")
    if not 0 <= rank < ring.size:
        msg = f"{where}: there is no rank {rank} among {ring.size}"
        raise DistributedError(msg)
    far = [host for host, _ in addresses if not ipaddress.ip_address(host).is_loopback]
    if far and not ring.is_insecure:
        msg = (
            f"{where}: ranks of a bare environment have no key, and {far[0]} can be reached by "
            f"others; use phalanx launch, or say {INSECURE_VARIABLE}=1 where that is no danger"
        )
        raise DistributedError(msg)
    return ring


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    ipaddress.ip_address(host)  # ValueError for a name, as in MLX
    return host, int(port)


def join_ring(ring: RingEnvironment, timeout: float | None, group: Group | None = None) -> Group:
    """Meet the other ranks and form the group of all; ``group``: form it anew if it is over.

    Ranks tell each other which epoch they are in: the next one is after all of these. Where all
    have the same, and it is good everywhere, the group is left as it is.

    Raises
    ------
    CollectiveTimeout
        Not all ranks came in time.
    DistributedError
        The place to meet cannot be used, or the group cannot be formed.
    """
    if ring.size == 1:
        return group_of_one() if group is None or is_over(group) else group
    deadline = Deadline(timeout)
    try:
        meeting = _meet(ring, deadline)
    except TimeoutError as error:
        raise CollectiveTimeout(str(error)) from error
    with meeting:
        mine = _Stand(0 if group is None else group._spec.epoch, is_over(group))
        stands = _swap(meeting, mine, deadline)
        if group is not None and stands == {_Stand(mine.epoch, is_over=False)}:
            return group
        names = sorted({host for host, _ in ring.addresses})
        spec = WorldSpec(
            rank=ring.rank,
            size=ring.size,
            epoch=1 + max(stand.epoch for stand in stands),
            workspace="mlx",
            key=meeting.key,
            hosts=tuple(names.index(host) for host, _ in ring.addresses),
            slots=tuple(range(ring.size)),
            host_names=tuple(names),
            addresses=(ring.addresses[ring.rank][0],),
            transport="tcp",
        )
        return next_epoch(spec, meeting, HostMemory(spec), group, deadline=deadline)


def _swap(meeting: MeetingRendezvous, mine: _Stand, deadline: Deadline) -> set[_Stand]:
    """Tell the others where this rank stands; where all of them do."""
    try:
        parts = meeting.all_gather(msgspec.msgpack.encode(mine), timeout=deadline.remaining())
    except TimeoutError as error:
        raise CollectiveTimeout(str(error)) from error
    return {msgspec.msgpack.decode(part, type=_Stand) for part in parts}


def _meet(ring: RingEnvironment, deadline: Deadline) -> MeetingRendezvous:
    host, port = ring.addresses[0]
    hello = ring.digest()
    if ring.rank == 0:
        listener, full = open_socket(host, port, passive=True)
        with listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(full)
                listener.listen(ring.size + 16)
            except OSError as error:
                msg = f"rank 0 cannot listen on {host} port {port}: {error.strerror}"
                raise DistributedError(msg) from error
            key = secrets.token_bytes(32)
            place = Host(listener, hello, ring.size, is_insecure=ring.is_insecure)
            return MeetingRendezvous(0, ring.size, place.wait(key, deadline), key)
    why = "nobody listens"
    while not deadline.is_over():
        try:
            guest = Guest(host, port, hello, ring.rank, is_insecure=ring.is_insecure)
            key = guest.enter(deadline)
        except OSError as error:
            why = error.strerror or str(error)
            left = deadline.remaining()
            time.sleep(_RETRY_S if left is None else min(_RETRY_S, left))
            continue
        return MeetingRendezvous(ring.rank, ring.size, {0: guest.sock}, key)
    msg = f"rank 0 was not met at {host} port {port} within {deadline} ({why})"
    raise TimeoutError(msg)
