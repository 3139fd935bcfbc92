"""Joining the world that MLX's own launcher describes: `MLX_RANK` and `MLX_HOSTFILE`.

Ranks meet at rank 0's first address and get a key there; from then on all is as in any other
world. Whoever holds `PHALANX_KEY_FILE` may come; without one, processes of our user on loopback.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import json
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from phalanx.errors import CollectiveTimeout, DistributedError
from phalanx.protocol import MOST_CONNECTIONS

from ._deadline import Deadline
from ._epoch import is_over, next_epoch
from ._group import Group
from ._guest import Guest, MeetingRefused, World
from ._handshake import HandshakeRejected
from ._key_file import KEY_FILE_VARIABLE, read_key
from ._launched_by import NOBODY, Launcher, launched_by
from ._listen import open_socket
from ._meeting import MeetingRendezvous
from ._meeting_point import Host
from ._one import group_of_one
from ._stripes import ONE_WAY, Ways
from ._world import HostMemory, WorldSpec

__all__ = ["INSECURE_VARIABLE", "RingEnvironment", "join_ring", "ring_environment"]

INSECURE_VARIABLE = "PHALANX_INSECURE"
_RANK, _HOSTFILE = "MLX_RANK", "MLX_HOSTFILE"
_HOSTFILE_MAX_NBYTES = 16 << 20
_ROOM_FOR_STRANGERS = 512
_RETRY_S = 0.05  # rank 0 may start later than we: a connection to nobody costs microseconds


@dataclass(frozen=True)
class RingEnvironment:
    """A world as the variables tell it: each rank's first address; all of ours in ``own``."""

    rank: int
    addresses: tuple[tuple[str, int], ...]
    is_insecure: bool = False
    key: bytes | None = field(default=None, repr=False)
    launcher: Launcher = NOBODY
    own: tuple[str, ...] = ()

    @property
    def ways(self) -> Ways:
        """All addresses at once; MLX repeats one with as many ports as it is to have connections."""
        at_once = min(max(1, len(set(self.own))), MOST_CONNECTIONS)
        return Ways(at_once, min(max(1, len(self.own) // at_once), MOST_CONNECTIONS))

    @property
    def size(self) -> int:
        """How many ranks; MLX writes an empty file for one."""
        return max(1, len(self.addresses))

    def world(self) -> World:
        """What the ranks tell each other when they meet: those of one job have read one file."""
        digest = hashlib.sha256(json.dumps(self.addresses).encode()).digest()
        return World(digest, self.size, self.launcher, self.is_insecure, self.key)


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
        with Path(env[_HOSTFILE]).open("rb") as file:
            text = file.read(_HOSTFILE_MAX_NBYTES).decode()
        hosts = json.loads(text) if text.strip() else []
        entries = [[_address(text) for text in of_rank] for of_rank in hosts]
        addresses = tuple(of_rank[0] for of_rank in entries)
        rank = int(env[_RANK])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        msg = f"{where}: not a ring as mlx.launch describes it ({_first_line(error)})"
        raise DistributedError(msg) from error
    ring = RingEnvironment(
        rank,
        addresses,
        env.get(INSECURE_VARIABLE) == "1",
        read_key(env[KEY_FILE_VARIABLE]) if KEY_FILE_VARIABLE in env else None,
        launched_by(_RANK),
        tuple(host for host, _ in entries[rank]) if 0 <= rank < len(entries) else (),
    )
    if not 0 <= rank < ring.size:
        msg = f"{where}: there is no rank {rank} among {ring.size}"
        raise DistributedError(msg)
    if len(set(addresses)) < len(addresses):
        twice = next(address for address in addresses if addresses.count(address) > 1)
        msg = f"{where}: two ranks have the address {twice[0]} port {twice[1]}"
        raise DistributedError(msg)
    every = [*(host for host, _ in addresses), *ring.own]
    far = [host for host in every if not ipaddress.ip_address(host).is_loopback]
    if far and ring.key is None and not ring.is_insecure:
        msg = (
            f"{where}: ranks of a bare environment have no key, and {far[0]} can be reached by "
            f"others; use phalanx launch, give all ranks one {KEY_FILE_VARIABLE}, or say "
            f"{INSECURE_VARIABLE}=1 where that is no danger"
        )
        raise DistributedError(msg)
    return ring


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    ipaddress.ip_address(host)  # ValueError for a name, as in MLX
    if not 0 < int(port) < 65536:
        msg = f"{text} has no port between 1 and 65535"
        raise ValueError(msg)
    return host, int(port)


def join_ring(
    ring: RingEnvironment,
    timeout: float | None,
    group: Group | None = None,
    *,
    addresses: tuple[str, ...] = (),
) -> Group:
    """Meet the other ranks and form the group of all; ``group``: form it anew if it is over.

    They meet at the file's first address; this rank's links are made at ``addresses``, by default
    those it had before, or all that the file says for it, which are used at once.

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
    except MeetingRefused as error:
        raise (CollectiveTimeout if error.is_late else DistributedError)(str(error)) from None
    with meeting:
        mine = _Stand(0 if group is None else group._spec.epoch, is_over(group))
        stands = _swap(meeting, mine, deadline)
        if group is not None and stands == {_Stand(mine.epoch, is_over=False)}:
            return group
        names = sorted({host for host, _ in ring.addresses})
        kept = () if group is None else group._spec.addresses
        spec = WorldSpec(
            rank=ring.rank,
            size=ring.size,
            epoch=1 + max(stand.epoch for stand in stands),
            workspace="mlx",
            key=meeting.key,
            hosts=tuple(names.index(host) for host, _ in ring.addresses),
            slots=tuple(range(ring.size)),
            host_names=tuple(names),
            addresses=addresses or kept or tuple(dict.fromkeys(ring.own)),
            transport="tcp",
            ways=ONE_WAY if addresses else ring.ways if group is None else group._spec.ways,
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
    if ring.rank == 0:
        with _listen(ring) as listener:
            said = secrets.token_bytes(32)
            guests = Host(listener, ring.world()).wait(said, deadline)
            return MeetingRendezvous(0, ring.size, guests, _key_of_run(ring, said))
    why = "nobody listens"
    while not deadline.is_over():
        try:
            guest = Guest(host, port, ring.world(), ring.rank)
            said = guest.enter(deadline)
        except (OSError, HandshakeRejected) as error:
            why = getattr(error, "strerror", None) or str(error)
            left = deadline.remaining()
            time.sleep(_RETRY_S if left is None else min(_RETRY_S, left))
            continue
        return MeetingRendezvous(ring.rank, ring.size, {0: guest.sock}, _key_of_run(ring, said))
    msg = f"rank 0 was not met at {host} port {port} within {deadline} ({why})"
    raise TimeoutError(msg)


def _listen(ring: RingEnvironment) -> socket.socket:
    host, port = ring.addresses[0]
    listener, full = open_socket(host, port, passive=True)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(full)
        listener.listen(ring.size + _ROOM_FOR_STRANGERS)
    except OSError as error:
        listener.close()
        # If it is the rank 0 of a job like ours, let it know: its ranks may be ours.
        with contextlib.suppress(OSError, HandshakeRejected, MeetingRefused):
            Guest(host, port, ring.world(), 0).enter(Deadline(1.0))
        msg = (
            f"rank 0 cannot listen on {host} port {port}: {error.strerror}; does another job "
            "use the same ports?"
        )
        raise DistributedError(msg) from error
    return listener


def _key_of_run(ring: RingEnvironment, said: bytes) -> bytes:
    """What rank 0 gave out is the key, where nobody could hear it; else one part of it."""
    return said if ring.key is None else hmac.digest(ring.key, b"phalanx run\0" + said, "sha256")
