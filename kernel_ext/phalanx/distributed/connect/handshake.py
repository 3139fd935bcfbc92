"""Prove identity at both ends of a new connection before its use.

Mutual HMAC-SHA256 challenge and response. `initiate` and `accept` are generators without input and
output: they yield the bytes to send and how many bytes to receive after that; their caller sends
them the received bytes.

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
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeAlias

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


class LinkPart(NamedTuple):
    """Connection of a link with a peer: ``stripe``, from 0, of ``n_stripes``."""

    peer: int
    purpose: LinkPurpose = LinkPurpose.COLLECTIVE
    stripe: int = 0
    n_stripes: int = 1


Handshake: TypeAlias = Generator[tuple[bytes, int], bytes, LinkPart]


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

    def prove(self, role: bytes, hello: bytes, challenge: bytes = b"") -> bytes:
        """Compute the proof that ``role`` must give in this exchange."""
        return hmac.digest(self.key, b"phalanx link " + role + b"\0" + hello + challenge, "sha256")


def initiate(me: Identity, part: LinkPart) -> Handshake:
    """Prove this rank and the peer that it connects to.

    Raises `HandshakeRejected`, as `accept`.

    Examples
    --------
    >>> key = bytes(32)
    >>> one = initiate(Identity("lab", 1, 2, key), LinkPart(0))
    >>> two = accept(Identity("lab", 1, 0, key), lambda part: part.peer == 2)
    >>> hello, _ = next(one)
    >>> _, needs = next(two)
    >>> needs == len(hello)
    True
    >>> challenge, _ = two.send(hello)
    >>> proof, _ = one.send(challenge)
    >>> proof, needs = two.send(proof)  # and no more is needed
    >>> needs
    0
    """
    link = (me.epoch, me.rank, *part)
    hello = _HELLO.pack(_MAGIC, VERSION, me.digest(), *link, os.urandom(_NONCE_NBYTES))
    hello += me.prove(b"hello", hello)
    challenge = yield hello, _NONCE_NBYTES
    proof = yield me.prove(b"initiator", hello, challenge), _PROOF_NBYTES
    if not hmac.compare_digest(proof, me.prove(b"acceptor", hello, challenge)):
        msg = f"what listens at the address of rank {part.peer} could not prove itself"
        raise HandshakeRejected(msg)
    return part


def accept(me: Identity, is_wanted: Callable[[LinkPart], bool]) -> Handshake:
    """Have a connecting rank prove itself, then prove this rank.

    ``is_wanted`` tells whether a connection is still missing. It is asked only about a hello with a
    valid HMAC, perhaps a replayed one.
    """
    hello = yield b"", _HELLO.size + _PROOF_NBYTES
    part = _read_hello(me, hello, is_wanted)
    challenge = os.urandom(_NONCE_NBYTES)
    proof = yield challenge, _PROOF_NBYTES
    if not hmac.compare_digest(proof, me.prove(b"initiator", hello, challenge)):
        msg = f"a claim to be rank {part.peer} without proof"
        raise HandshakeRejected(msg)
    # Check again: another connection may have proved the same rank meanwhile.
    if not is_wanted(part):
        msg = f"rank {part.peer} is connected already"
        raise HandshakeRejected(msg)
    yield me.prove(b"acceptor", hello, challenge), 0
    return part


def _read_hello(me: Identity, message: bytes, is_wanted: Callable[[LinkPart], bool]) -> LinkPart:
    hello, seal = message[: _HELLO.size], message[_HELLO.size :]
    fields = _HELLO.unpack(hello)
    magic, version, digest, epoch, source, target, purpose, stripe, n_stripes, _nonce = fields
    if magic != _MAGIC:
        wrong = "not a rank"
    elif version != VERSION:
        wrong = f"protocol version {version}, this is {VERSION}"
    elif digest != me.digest():
        wrong = "a rank of another workspace"
    elif not hmac.compare_digest(seal, me.prove(b"hello", hello)):
        wrong = f"a claim to be rank {source} with another key"
    elif epoch != me.epoch:
        wrong = f"a rank of epoch {epoch}, this is {me.epoch}"
    elif target != me.rank:
        wrong = f"a rank that looks for rank {target}, this is {me.rank}"
    elif purpose not in tuple(LinkPurpose):
        wrong = f"rank {source} with a connection of kind {purpose}, which is not known"
    else:
        part = LinkPart(source, LinkPurpose(purpose), stripe, n_stripes)
        if is_wanted(part):
            return part
        name = f"{part.purpose.name.lower()} link"
        if (stripe, n_stripes) != (0, 1):
            name += f" {stripe + 1} of {n_stripes}"
        wrong = f"rank {source}, but its {name} is not awaited"
    raise HandshakeRejected(wrong)
