"""The proof both ends of a new connection give before one byte of it is used.

Mutual HMAC-SHA256 challenge and response, as two machines that are fed messages of fixed
size: they know no socket, no clock and no rank but the two of the link.

The connecting end proves itself first: its first message is sealed with the key, so a stranger
that knocks learns nothing and is told from a rank at once; one that replays a rank's message
learns one random number. Each proof covers role, protocol version, workspace, epoch, both ranks, the
lane, which connection of how many it is, and both nonces: none can be reflected, replayed, or
carried to another link. What it does not do is hide or seal the bytes that follow.

    initiator                                acceptor
      hello: magic, version, workspace,
             epoch, from, to, lane,
             stripe, of how many, nonce,
             HMAC("hello", all of it)  ->    compares; checks that it waits for this very link
                                       <-    nonce
      HMAC("initiator", hello, nonce)  ->    compares; the link stands here
    compares; the link stands here     <-    HMAC("acceptor", hello, nonce)
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

__all__ = ["ONLY", "Acceptor", "HandshakeRejected", "Identity", "Initiator", "Lane", "Stripe"]

VERSION = 5  # of this handshake and of the bytes that the engine puts behind it
KEY_MIN_NBYTES = 16  # 128 bits: out of reach of guessing
_MAGIC = b"phalanx\x00"
_NONCE_NBYTES = 32
_PROOF_NBYTES = hashlib.sha256().digest_size
_HELLO = struct.Struct("<8sI32sQIIIHH32s")  # and its seal


class Lane(IntEnum):
    """What a connection is for; on the wire: append only."""

    COLLECTIVE = 0  # operations of the whole group
    PAIR = 1  # messages from one rank to another


class Stripe(NamedTuple):
    """Which of a link's connections: ``number`` ``of`` so many, counted from 0."""

    number: int
    of: int


ONLY = Stripe(0, 1)


class HandshakeRejected(Exception):
    """The other end is not who this link is for; the text never holds a secret."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this process is to its peers: one rank of one epoch of one workspace."""

    workspace: str
    epoch: int
    rank: int
    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse a key that could be guessed."""
        if len(self.key) < KEY_MIN_NBYTES:
            msg = f"the workspace's key has {len(self.key)} bytes; at least {KEY_MIN_NBYTES} needed"
            raise ValueError(msg)

    def digest(self) -> bytes:
        """Name the workspace in a hello, at a fixed size."""
        return hashlib.sha256(self.workspace.encode()).digest()

    def prove(self, role: bytes, hello: bytes, challenge: bytes) -> bytes:
        """Compute the proof that ``role`` must give in this exchange."""
        return hmac.digest(self.key, b"phalanx link " + role + b"\0" + hello + challenge, "sha256")


class Initiator:
    """The connecting end. Send ``outgoing``, then feed exactly ``needs`` bytes, until done.

    Examples
    --------
    >>> key = bytes(32)
    >>> one = Initiator(Identity("lab", 1, 2, key), peer=0)
    >>> two = Acceptor(Identity("lab", 1, 0, key), lambda rank, lane, stripe: rank == 2)
    >>> two.receive(one.take())
    >>> one.receive(two.take())
    >>> two.receive(one.take())
    >>> one.receive(two.take())
    >>> one.needs, two.needs, one.peer, two.peer
    (0, 0, 0, 2)
    """

    def __init__(
        self,
        me: Identity,
        *,
        peer: int,
        lane: Lane = Lane.COLLECTIVE,
        stripe: Stripe = ONLY,
    ) -> None:
        self._me = me
        self.peer = peer
        self.lane = lane
        self.stripe = stripe
        link = (me.epoch, me.rank, peer, lane, *stripe)
        nonce = os.urandom(_NONCE_NBYTES)
        hello = _HELLO.pack(_MAGIC, VERSION, me.digest(), *link, nonce)
        self._hello = hello + me.prove(b"hello", hello, b"")
        self._challenge: bytes | None = None
        self.outgoing = self._hello
        self.needs = _NONCE_NBYTES

    def take(self) -> bytes:
        """Return what is to be sent now, and forget it."""
        taken, self.outgoing = self.outgoing, b""
        return taken

    def receive(self, message: bytes) -> None:
        """Take the next message, of exactly ``needs`` bytes; `HandshakeRejected` if it is wrong."""
        if self._challenge is None:
            self._challenge = message
            self.outgoing = self._me.prove(b"initiator", self._hello, message)
            self.needs = _PROOF_NBYTES
            return
        proof = self._me.prove(b"acceptor", self._hello, self._challenge)
        if not hmac.compare_digest(proof, message):
            msg = f"what listens at the address of rank {self.peer} could not prove itself"
            raise HandshakeRejected(msg)
        self.needs = 0


class Acceptor:
    """The listening end; ``is_wanted`` says whether that connection of a rank is still missing."""

    def __init__(self, me: Identity, is_wanted: Callable[[int, Lane, Stripe], bool]) -> None:
        self._me = me
        self._is_wanted = is_wanted
        self._hello: bytes | None = None
        self._challenge = b""
        self.peer = -1
        self.lane = Lane.COLLECTIVE
        self.stripe = ONLY
        self.outgoing = b""
        self.needs = _HELLO.size + _PROOF_NBYTES

    @property
    def knows_key(self) -> bool:
        """Whether the other end has the key, or has overheard somebody who has."""
        return self._hello is not None

    def take(self) -> bytes:
        """Return what is to be sent now, and forget it."""
        taken, self.outgoing = self.outgoing, b""
        return taken

    def receive(self, message: bytes) -> None:
        """Take the next message, of exactly ``needs`` bytes; `HandshakeRejected` if it is wrong."""
        if self._hello is None:
            self._check_hello(message)
            self._hello = message
            self._challenge = self.outgoing = os.urandom(_NONCE_NBYTES)
            self.needs = _PROOF_NBYTES
            return
        proof = self._me.prove(b"initiator", self._hello, self._challenge)
        if not hmac.compare_digest(proof, message):
            msg = f"a claim to be rank {self.peer} without proof"
            raise HandshakeRejected(msg)
        # Asked again: another connection may have proved the same rank in the meantime.
        if not self._is_wanted(self.peer, self.lane, self.stripe):
            msg = f"rank {self.peer} is connected already"
            raise HandshakeRejected(msg)
        self.outgoing = self._me.prove(b"acceptor", self._hello, self._challenge)
        self.needs = 0

    def _check_hello(self, message: bytes) -> None:
        hello, seal = message[: _HELLO.size], message[_HELLO.size :]
        magic, version, digest, epoch, source, target, lane, *which, _nonce = _HELLO.unpack(hello)
        stripe = Stripe(*which)
        if magic != _MAGIC:
            wrong = "not a rank"
        elif version != VERSION:
            wrong = f"protocol version {version}, this is {VERSION}"
        elif digest != self._me.digest():
            wrong = "a rank of another workspace"
        elif not hmac.compare_digest(seal, self._me.prove(b"hello", hello, b"")):
            wrong = f"a claim to be rank {source} with another key"
        elif epoch != self._me.epoch:
            wrong = f"a rank of epoch {epoch}, this is {self._me.epoch}"
        elif target != self._me.rank:
            wrong = f"a rank that looks for rank {target}, this is {self._me.rank}"
        elif lane not in tuple(Lane):
            wrong = f"rank {source} with a connection of kind {lane}, which is not known"
        elif not self._is_wanted(source, Lane(lane), stripe):
            name = f"{Lane(lane).name.lower()} link"
            if stripe != ONLY:
                name += f" {stripe.number + 1} of {stripe.of}"
            wrong = f"rank {source}, to which no {name} is missing"
        else:
            self.peer, self.lane, self.stripe = source, Lane(lane), stripe
            return
        raise HandshakeRejected(wrong)
