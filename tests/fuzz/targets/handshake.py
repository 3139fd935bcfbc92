"""What a stranger, or one in the middle, may say while ranks meet: nobody gets in without the key.

Any bytes, cut anywhere, also those that were overheard. Only the exceptions that are meant for it
come out, a stranger gets no answer, and whatever is accepted is what an owner of the key has said.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

from fuzz.quiet import quiet
from fuzz.supply import Supply

import phalanx
from phalanx.distributed.connect.connector import Attempt
from phalanx.distributed.connect.handshake import (
    Acceptor,
    HandshakeRejected,
    Identity,
    Initiator,
    LinkPurpose,
)

__all__ = ["one"]

_KEY = os.urandom(32)  # the fuzzer must not learn it
_OTHER_KEY = os.urandom(32)


def _me(rank: int, key: bytes = _KEY) -> Identity:
    return Identity("fuzz", 7, rank, key)


def _overheard() -> tuple[bytes, bytes, bytes, bytes]:
    """All that two true ranks say to each other, as somebody who listens has it."""
    one, two = Initiator(_me(1), peer=0), Acceptor(_me(0), lambda *link: True)
    said = [one.take()]
    two.receive(said[0])
    for here, there in ((two, one), (one, two), (two, one)):
        said.append(here.take())
        there.receive(said[-1])
    return tuple(said)  # type: ignore[return-value]


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
    return Initiator(
        _me(supply.below(4), key), peer=supply.below(2), purpose=supply.below(3)
    ).take()  # type: ignore[arg-type]


def _stranger(supply: Supply) -> None:
    """Somebody without the key at one end of a connection, listening or connecting."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for sock in (ours, theirs):
            sock.setblocking(False)
        is_acceptor = supply.below(2) == 0
        wanted = supply.below(4)
        machine: Any = (
            Acceptor(_me(0), lambda rank, purpose, stripe: rank == wanted)
            if is_acceptor
            else Initiator(_me(1), peer=0, purpose=LinkPurpose(supply.below(2)))
        )
        attempt = Attempt(ours, machine, 10.0)
        has_replayed = False
        for _ in range(6):
            data = _said(supply)
            has_replayed |= data == _TAPE[0] or _TAPE[0].startswith(data)
            with contextlib.suppress(BlockingIOError):
                theirs.send(data)
            if supply.below(8) == 7:
                theirs.shutdown(socket.SHUT_WR)
            try:
                assert not attempt.advance(), "a stranger is in"
            except (HandshakeRejected, OSError):
                break
        if is_acceptor and not attempt.knows_key:
            with contextlib.suppress(BlockingIOError):
                assert not theirs.recv(1), "a stranger has got an answer"
        assert machine.needs > 0


def _between(supply: Supply) -> None:
    """Two true ends, and somebody who changes, swaps or replays what they say."""
    one = Initiator(_me(1), peer=0, purpose=LinkPurpose(supply.below(2)))
    two = Acceptor(_me(0), lambda *link: True)
    twin, mirror = Initiator(_me(2), peer=0), Acceptor(_me(0), lambda *link: True)
    mirror.receive(said := twin.take())
    others = [said, mirror.take(), *_TAPE]
    is_true = True
    for here, there in ((one, two), (two, one), (one, two), (two, one)):
        truth = here.take()
        how = supply.below(4)
        said = truth
        if how == 1:
            said = supply.edited(truth)
        elif how == 2:
            said = supply.choice(others)
        said = said.ljust(there.needs, b"\0")[: there.needs]
        others.append(truth)
        is_true &= said == truth
        try:
            there.receive(said)
        except HandshakeRejected:
            assert not is_true, "the truth was not believed"
            assert not there.outgoing
            return
        if not there.needs:
            assert is_true, "it is believed, and was changed on its way"
        if not there.outgoing and there.needs:
            return


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
