"""Sign pickles that cross a network.

The handshake of a link authenticates the peer. The bytes that follow are neither signed nor
encrypted, and their checksum has no key: an attacker who alters packets can alter an array. An
altered pickle would run the attacker's code. So pickles are sealed, and each seal is checked before
the pickle is loaded.

A seal is the HMAC-SHA256 of epoch, group, sender, sequence number and bytes. Each exchange has its
own key, derived from the workspace key (which the handshake proves) and a random nonce of each
rank. So a message of another exchange is refused, even if one key serves many runs
(``PHALANX_KEY_FILE``), and ranks need no common counter that an interrupt could desynchronize.
Ranks that share memory need no seals.
"""

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from phalanx import _native
from phalanx.errors import DistributedError, NotSupported

from ..world_spec import WorldSpec
from .point_to_point import recv, send
from .run_collective import group_or_world

if TYPE_CHECKING:
    from ..group.registry import Membership

SEAL_NBYTES = 32
NONCE_NBYTES = 16  # 128 bits: two exchanges never draw the same nonce
_EXCHANGE = struct.Struct("<QQ")  # epoch, group
_MESSAGE = struct.Struct("<QQQ")  # sender, sequence number, bytes
_HEAD = struct.Struct(f"<Q{SEAL_NBYTES}s")


def sealing_key(spec: WorldSpec, op: str, ranks: Iterable[int]) -> bytes | None:
    """Return the key for sealing pickles; None if these ranks share memory.

    Raises `NotSupported` if they do not share memory and have no secret key.
    """
    hosts = spec.native_hosts
    if len({hosts[rank] for rank in ranks}) == 1:
        return None
    if not spec.key:
        msg = (
            f"{op}: these ranks have no key that proves who has sent a pickle; start them with "
            "phalanx launch, or give all ranks of mpirun one PHALANX_KEY_FILE (see Security in the "
            "guide)"
        )
        raise NotSupported(msg)
    return spec.key


class Seals:
    """The seals of one exchange between ranks of a group.

    ``key`` is a secret of the group's ranks. ``fresh`` has the random nonces of all ranks that
    check seals, the same bytes on all of them.

    Examples
    --------
    >>> from phalanx.distributed.group.epoch import group_of_one
    >>> spec = group_of_one()._current.spec
    >>> seals = Seals(bytes(32), spec, b"of each rank")
    >>> seal = seals.make(3, 0, b"data")
    >>> seals.is_right(3, 0, b"data", seal), seals.is_right(2, 0, b"data", seal)
    (True, False)
    """

    def __init__(self, key: bytes, spec: WorldSpec, fresh: bytes) -> None:
        said = b"phalanx seals\0" + _EXCHANGE.pack(spec.epoch, spec.number) + fresh
        self._key = hmac.digest(key, said, "sha256")

    def make(self, sender: int, number: int, data: Any) -> bytes:
        """Return the seal of a message with this sender and sequence number."""
        memory = memoryview(data)
        seal = hmac.new(self._key, _MESSAGE.pack(sender, number, memory.nbytes), "sha256")
        seal.update(memory)
        return seal.digest()

    def is_right(self, sender: int, number: int, data: Any, seal: Any) -> bool:
        """Whether the seal matches the sender, number and data."""
        return hmac.compare_digest(self.make(sender, number, data), bytes(seal))


def refuse(current: Membership, op: str, rank: int) -> NoReturn:
    """End the epoch because a message of a rank was altered.

    Raises `DistributedError` on every rank, as after any damaged transfer.
    """
    spec = current.spec
    me = spec.me
    msg = (
        f"rank {me}: {op}: what came from rank {spec.members[rank]} was altered on the way (or "
        "while it was sent), or sealed with another key; it was not unpickled"
    )
    current.engine.abort(_native.ABORT_ERROR, me, msg)
    current.tell_failure()
    raise DistributedError(msg)


class SealedPair:
    """Exchange checked messages between this rank and one other rank.

    Both ranks construct their end at the same time; then each may send to the other. ``op`` names
    the purpose in error texts. A message costs two `send` calls, the first of 40 bytes; between
    hosts also an HMAC on each side. Raises `NotSupported` if the ranks share neither memory nor a
    key.
    """

    def __init__(self, peer: int, op: str) -> None:
        self._group = group = group_or_world(None)
        self._current = group._current
        self._peer = peer
        self._op = op
        self._n_sent = self._n_received = 0
        self._seals: Seals | None = None
        spec = self._current.spec
        me = spec.rank
        key = sealing_key(spec, op, (me, peer))
        if key is not None:
            mine = np.frombuffer(os.urandom(NONCE_NBYTES), np.uint8)
            send(mine, peer, group=group)
            fresh = {me: mine, peer: recv((NONCE_NBYTES,), np.uint8, peer, group=group)}
            both = b"".join(fresh[rank].tobytes() for rank in sorted(fresh))
            self._seals = Seals(key, spec, both)

    def send(self, data: Any) -> None:
        """Send bytes, or the memory of an array, of any length."""
        memory = memoryview(data)
        seal = b""
        if self._seals is not None:
            seal = self._seals.make(self._current.spec.rank, self._n_sent, memory)
        self._n_sent += 1
        head = np.frombuffer(_HEAD.pack(memory.nbytes, seal), np.uint8)
        send(head, self._peer, group=self._group)
        if memory.nbytes:
            send(np.frombuffer(memory, np.uint8), self._peer, group=self._group)

    def recv(self) -> memoryview:
        """Receive the next message of the peer into new, writable memory.

        Raises `DistributedError`: the message was altered in transit; the epoch is over.
        """
        head = recv((_HEAD.size,), np.uint8, self._peer, group=self._group)
        nbytes, seal = _HEAD.unpack(head)
        data = np.empty(0, np.uint8)
        if nbytes:
            data = recv((nbytes,), np.uint8, self._peer, group=self._group)
        number, self._n_received = self._n_received, self._n_received + 1
        if self._seals is not None and not self._seals.is_right(self._peer, number, data, seal):
            refuse(self._current, self._op, self._peer)
        return data.data
