"""What a stranger, or one in the middle, may say while ranks meet: nobody gets in without the key.

Any bytes, cut anywhere, also those that were overheard. Only the exceptions that are meant for it
come out, a stranger gets no answer, and whatever is accepted is what an owner of the key has said.
"""

from __future__ import annotations

import contextlib
import os
import socket

from fuzz.quiet import quiet
from fuzz.supply import Supply

import phalanx
from phalanx.distributed.connect.connector import converse
from phalanx.distributed.connect.handshake import (
    Handshake,
    HandshakeRejected,
    Identity,
    LinkPart,
    LinkPurpose,
    accept,
    initiate,
)

_KEY = os.urandom(32)  # the fuzzer must not learn it
_OTHER_KEY = os.urandom(32)
_TO_RANK_0 = LinkPart(0)


def _me(rank: int, key: bytes = _KEY) -> Identity:
    return Identity("fuzz", 7, rank, key)


def _ends(part: LinkPart = _TO_RANK_0) -> tuple[Handshake, Handshake]:
    return initiate(_me(1), part), accept(_me(0), lambda part: True)


def _overheard() -> tuple[bytes, bytes, bytes, bytes]:
    """All that two true ranks say to each other, as somebody who listens has it."""
    one, two = _ends()
    hello, _ = next(one)
    next(two)
    challenge, _ = two.send(hello)
    proof, _ = one.send(challenge)
    return hello, challenge, proof, two.send(proof)[0]


_TAPE = _overheard()


def _said(supply: Supply) -> bytes:
    how = supply.below(4)
    if how == 0:
        return supply.piece()
    if how == 1:
        return supply.choice(_TAPE)
    if how == 2:
        return supply.edited(supply.choice(_TAPE))
    key = supply.choice((_OTHER_KEY, bytes(32)))
    part = LinkPart(supply.below(2), supply.below(3))  # type: ignore[arg-type]
    return next(initiate(_me(supply.below(4), key), part))[0]


def _stranger(supply: Supply) -> None:
    """Somebody without the key at one end of a connection, listening or connecting."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for sock in (ours, theirs):
            sock.setblocking(False)
        is_acceptor = supply.below(2) == 0
        wanted = supply.below(4)
        asked = []

        def is_wanted(part: LinkPart) -> bool:
            asked.append(part)
            return part.peer == wanted

        handshake = (
            accept(_me(0), is_wanted)
            if is_acceptor
            else initiate(_me(1), LinkPart(0, LinkPurpose(supply.below(2))))
        )
        steps = converse(ours, handshake)
        for _ in range(6):
            with contextlib.suppress(BlockingIOError):
                theirs.send(_said(supply))
            if supply.below(8) == 7:
                theirs.shutdown(socket.SHUT_WR)
            try:
                next(steps)
            except StopIteration:
                msg = "a stranger is in"
                raise AssertionError(msg) from None
            except (HandshakeRejected, OSError):
                break
        if is_acceptor and not asked:
            with contextlib.suppress(BlockingIOError):
                assert not theirs.recv(1), "a stranger has got an answer"


def _between(supply: Supply) -> None:
    """Two true ends, and somebody who changes, swaps or replays what they say."""
    one, two = _ends(LinkPart(0, LinkPurpose(supply.below(2))))
    mirror = accept(_me(0), lambda part: True)
    twin, _ = next(initiate(_me(2), LinkPart(0)))
    next(mirror)
    others = [twin, mirror.send(twin)[0], *_TAPE]
    is_true = True
    truth, needs_next = next(one)
    _, needs = next(two)
    for receiver in (two, one, two, one):
        how = supply.below(4)
        said = truth
        if how == 1:
            said = supply.edited(truth)
        elif how == 2:
            said = supply.choice(others)
        said = said.ljust(needs, b"\0")[:needs]
        others.append(truth)
        is_true &= said == truth
        needs = needs_next
        try:
            truth, needs_next = receiver.send(said)
        except HandshakeRejected:
            assert not is_true, "the truth was not believed"
            return
        except StopIteration:
            assert is_true, "it is believed, and was changed on its way"
            return
        if not needs_next:  # the acceptor believes the initiator
            assert is_true, "it is believed, and was changed on its way"


# Their places in this tuple give the seeds their meaning.
_KINDS = (
    *(_stranger, _between, _stranger, _between),
    *(_stranger, _between, _stranger, _stranger),
)


def one(data: bytes) -> None:
    """Run one input."""
    assert phalanx.__version__
    supply = Supply(data)
    with quiet():
        supply.choice(_KINDS)(supply)
