"""What a stranger, or one in the middle, may say while ranks meet: nobody gets in without the key.

Any bytes, cut anywhere, also those that were overheard. Only the exceptions that are meant for it
come out, a stranger gets no answer, and whatever is accepted is what an owner of the key has said.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from typing import Any

import msgspec
from fuzz.quiet import quiet
from fuzz.supply import Supply
from support.promise import PATIENCE_S

import phalanx
from phalanx.distributed._attempt import Attempt
from phalanx.distributed._deadline import Deadline
from phalanx.distributed._guest import HELLO, MAGIC, Guest, MeetingRefused, World
from phalanx.distributed._handshake import Acceptor, HandshakeRejected, Identity, Initiator, Lane
from phalanx.distributed._launched_by import NOBODY
from phalanx.distributed._listen import Share
from phalanx.distributed._meeting import MeetingRendezvous
from phalanx.distributed._meeting_point import Host
from phalanx.errors import DistributedError

__all__ = ["one"]

_KEY = os.urandom(32)  # the fuzzer must not learn it
_OTHER_KEY = os.urandom(32)
_SIZE = 4
_DIGEST = bytes(range(32))
_CLAIM_NBYTES = HELLO.size - 16  # what is left are numbers of its launcher
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closed at once, and no port is held for a minute


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
    return Initiator(_me(supply.below(4), key), peer=supply.below(2), lane=supply.below(3)).take()  # type: ignore[arg-type]


def _stranger(supply: Supply) -> None:
    """Somebody without the key at one end of a connection, listening or connecting."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for sock in (ours, theirs):
            sock.setblocking(False)
        is_acceptor = supply.below(2) == 0
        wanted = supply.below(4)
        machine: Any = (
            Acceptor(_me(0), lambda rank, lane, stripe: rank == wanted)
            if is_acceptor
            else Initiator(_me(1), peer=0, lane=Lane(supply.below(2)))
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
    one = Initiator(_me(1), peer=0, lane=Lane(supply.below(2)))
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


def _hello(supply: Supply, world: World) -> bytes:
    how = supply.below(4)
    if how == 0:
        return supply.piece()
    rank = supply.below(_SIZE + 2)
    true = HELLO.pack(MAGIC, world.version.encode(), world.digest, rank, 0, 0)
    return true if how < 3 else supply.edited(true)


def _host(supply: Supply) -> None:
    """Connections to the place where ranks without a supervisor meet."""
    key = _KEY if supply.below(2) else None
    world = World(_DIGEST, _SIZE, NOBODY, is_insecure=supply.below(2) == 1, key=key)
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        listener.setblocking(False)
        host = Host(listener, world)
        stack.callback(host._selector.close)
        host._selector.register(listener, 1)
        said: set[bytes] = set()
        for _ in range(supply.below(4) + 1):
            sock = stack.enter_context(socket.create_connection(listener.getsockname()))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            parts = _said(supply) if key else b""
            parts += _hello(supply, world)
            said.add(parts[: HELLO.size])
            with contextlib.suppress(OSError):
                sock.sendall(parts)
                if supply.below(4) < 3:
                    sock.shutdown(socket.SHUT_WR)  # else it would be waited for after a refusal
            try:
                for _ in range(3):
                    host._step(Deadline(0.0))
            except DistributedError:
                assert key is None, "a stranger has ended the meeting"
                break
        for rank in host._guests:
            assert key is None, "a stranger is let in"
            assert 0 < rank < _SIZE
            assert any(hello.startswith(world.hello(rank)[:_CLAIM_NBYTES]) for hello in said)
        for sock in [*host._guests.values(), *host._knocks]:
            sock.close()


def _guest(supply: Supply) -> None:
    """What listens where rank 0 should be."""
    key = _KEY if supply.below(2) else None
    world = World(_DIGEST, _SIZE, NOBODY, key=key)
    answer = supply.rest()

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as sock:
            sock.sendall(answer)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        guest = Guest(*listener.getsockname(), world, 1)
        try:
            came = guest.enter(Deadline(PATIENCE_S))
        except TimeoutError as error:
            msg = "it waits for one that is gone"
            raise AssertionError(msg) from error
        except (OSError, HandshakeRejected, MeetingRefused):
            pass
        else:
            assert key is None, "rank 0 was believed without the key"
            assert len(came) == 32
            assert answer.startswith(b"WK" + came)
        finally:
            guest.sock.close()
            server.join()


def _meeting(supply: Supply) -> None:
    """Ranks that have met, and what the others say of themselves."""
    rank = supply.below(2)
    n_others = 1 if rank else _SIZE - 1
    pairs = [socket.socketpair() for _ in range(n_others)]
    try:
        for _, theirs in pairs:
            share = Share(((1,), ()), (), "") if supply.below(2) else supply.record(Share)
            data = msgspec.msgpack.encode(share)
            if rank:
                data = msgspec.msgpack.encode([data] * (_SIZE if supply.below(4) else 2))
            data = supply.edited(len(data).to_bytes(4, "little") + data)
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)
        others = {at if rank else at + 1: ours for at, (ours, _) in enumerate(pairs)}
        with MeetingRendezvous(rank, _SIZE, others, _KEY) as meeting:
            try:
                parts = meeting.all_gather(b"mine", timeout=5.0)
            except (TimeoutError, DistributedError):
                return
            assert len(parts) == _SIZE
    finally:
        for ours, theirs in pairs:
            ours.close()
            theirs.close()


_KINDS = (_stranger, _between, _host, _guest, _meeting, _between, _stranger, _stranger)


def one(data: bytes) -> None:
    """Run one input."""
    assert phalanx.__version__
    supply = Supply(data)
    with quiet():
        supply.choice(_KINDS)(supply)
