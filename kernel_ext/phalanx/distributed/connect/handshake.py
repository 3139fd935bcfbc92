"""Prove identity at both ends of a new connection before its use.

Mutual HMAC-SHA256 challenge and response. `Initiator` and `Acceptor` are state machines without
input and output: the caller feeds them messages of fixed size.

The connecting end proves itself first. Its first message is authenticated with the key, so the
acceptor recognizes a foreign process at once and tells it nothing. A process that replays a rank's
first message learns one random number. Each proof covers role, protocol version, workspace, epoch,
both ranks, the link's purpose, the connection's number and the number of connections, and both
nonces. So a proof cannot be reflected, replayed, or used for another link. The handshake does not
encrypt or authenticate the bytes that follow.

    initiator                                acceptor
      hello, 100 bytes (`_HELLO`):
             magic, version, workspace,
             epoch, from, to, purpose,
             stripe, n_stripes, nonce;
      HMAC("hello", hello), 32 bytes   ->    compares; checks that it waits for this very link
                                       <-    challenge, 32 bytes
      HMAC("initiator", hello, HMAC,
           challenge), 32 bytes        ->    compares; the link is ready here
    compares; the link is ready here   <-    HMAC("acceptor", hello, HMAC, challenge), 32 bytes

The text of each HMAC begins with "phalanx link ", the quoted role and a zero byte.
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

VERSION = 5  # of this handshake and of the engine's bytes after it
KEY_MIN_NBYTES = 16  # 128 bits cannot be guessed
_MAGIC = b"phalanx\x00"
_NONCE_NBYTES = 32
_PROOF_NBYTES = hashlib.sha256().digest_size
_HELLO = struct.Struct("<8sI32sQIIIHH32s")  # an HMAC follows


class LinkPurpose(IntEnum):
    """Purpose of a connection; the numbers go on the wire: append only."""

    COLLECTIVE = 0  # operations of the whole group
    PAIR = 1  # messages from one rank to another


class Stripe(NamedTuple):
    """Number of a connection in its link, from 0; ``of``: their count."""

    number: int
    of: int


ONLY = Stripe(0, 1)


class HandshakeRejected(Exception):
    """Report a peer of the wrong identity; the text holds no secret."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a process: one rank of one epoch of one workspace."""

    workspace: str
    epoch: int
    rank: int
    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse a key that is short enough to guess."""
        if len(self.key) < KEY_MIN_NBYTES:
            msg = f"the workspace's key has {len(self.key)} bytes; at least {KEY_MIN_NBYTES} needed"
            raise ValueError(msg)

    def digest(self) -> bytes:
        """Return a hash of the workspace's name, for the hello."""
        return hashlib.sha256(self.workspace.encode()).digest()

    def prove(self, role: bytes, hello: bytes, challenge: bytes) -> bytes:
        """Compute the proof that ``role`` must give in this exchange."""
        return hmac.digest(self.key, b"phalanx link " + role + b"\0" + hello + challenge, "sha256")


class Initiator:
    """Connecting end: send ``outgoing``, feed ``needs`` bytes, repeat until done.

    Examples
    --------
    >>> key = bytes(32)
    >>> one = Initiator(Identity("lab", 1, 2, key), peer=0)
    >>> two = Acceptor(Identity("lab", 1, 0, key), lambda rank, purpose, stripe: rank == 2)
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
        purpose: LinkPurpose = LinkPurpose.COLLECTIVE,
        stripe: Stripe = ONLY,
    ) -> None:
        self._me = me
        self.peer = peer
        self.purpose = purpose
        self.stripe = stripe
        link = (me.epoch, me.rank, peer, purpose, *stripe)
        nonce = os.urandom(_NONCE_NBYTES)
        hello = _HELLO.pack(_MAGIC, VERSION, me.digest(), *link, nonce)
        self._hello = hello + me.prove(b"hello", hello, b"")
        self._challenge: bytes | None = None
        self.outgoing = self._hello
        self.needs = _NONCE_NBYTES

    def take(self) -> bytes:
        """Return the bytes to send now, and clear them."""
        taken, self.outgoing = self.outgoing, b""
        return taken

    def receive(self, message: bytes) -> None:
        """Process a message of ``needs`` bytes; raise `HandshakeRejected` if wrong."""
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
    """Listening end; ``is_wanted`` tells whether a connection is still missing."""

    def __init__(self, me: Identity, is_wanted: Callable[[int, LinkPurpose, Stripe], bool]) -> None:
        self._me = me
        self._is_wanted = is_wanted
        self._hello: bytes | None = None
        self._challenge = b""
        self.peer = -1
        self.purpose = LinkPurpose.COLLECTIVE
        self.stripe = ONLY
        self.outgoing = b""
        self.needs = _HELLO.size + _PROOF_NBYTES

    @property
    def knows_key(self) -> bool:
        """Whether the hello has a valid HMAC, perhaps a replayed one."""
        return self._hello is not None

    def take(self) -> bytes:
        """Return the bytes to send now, and clear them."""
        taken, self.outgoing = self.outgoing, b""
        return taken

    def receive(self, message: bytes) -> None:
        """Process a message of ``needs`` bytes; raise `HandshakeRejected` if wrong."""
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
        # Check again: another connection may have proved the same rank meanwhile.
        if not self._is_wanted(self.peer, self.purpose, self.stripe):
            msg = f"rank {self.peer} is connected already"
            raise HandshakeRejected(msg)
        self.outgoing = self._me.prove(b"acceptor", self._hello, self._challenge)
        self.needs = 0

    def _check_hello(self, message: bytes) -> None:
        hello, seal = message[: _HELLO.size], message[_HELLO.size :]
        magic, version, digest, epoch, source, target, purpose, *which, _nonce = _HELLO.unpack(
            hello
        )
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
        elif purpose not in tuple(LinkPurpose):
            wrong = f"rank {source} with a connection of kind {purpose}, which is not known"
        elif not self._is_wanted(source, LinkPurpose(purpose), stripe):
            name = f"{LinkPurpose(purpose).name.lower()} link"
            if stripe != ONLY:
                name += f" {stripe.number + 1} of {stripe.of}"
            wrong = f"rank {source}, but its {name} is not awaited"
        else:
            self.peer, self.purpose, self.stripe = source, LinkPurpose(purpose), stripe
            return
        raise HandshakeRejected(wrong)
