"""The handshake's two ends, without a socket: who is let in, and what a stranger learns."""

from __future__ import annotations

import pytest
from distributed.farm.meeting import KEY, TO_RANK_0, hello, identity

from phalanx.distributed.connect.handshake import (
    HandshakeRejected,
    Identity,
    LinkPart,
    LinkPurpose,
    accept,
    initiate,
)


class End:
    """One end of a handshake: what it says next, and what it waits for."""

    def __init__(self, handshake):
        self._handshake = handshake
        self.said, self.needs = next(handshake)
        self.proven = None

    def take(self):
        said, self.said = self.said, b""
        return said

    def receive(self, message):
        try:
            self.said, self.needs = self._handshake.send(message)
            if not self.needs:
                self._handshake.send(b"")
        except StopIteration as done:
            self.proven, self.needs = done.value, 0


def ends(*, wanted=(1,), part=TO_RANK_0):
    return (
        End(initiate(identity(1), part)),
        End(accept(identity(0), lambda it: it.peer in wanted and it[1:] == part[1:])),
    )


def test_both_ends_are_proven_with_messages_of_exactly_the_announced_size():
    one, two = ends()
    messages = []
    for sender, receiver in [(one, two), (two, one), (one, two), (two, one)]:
        message = sender.take()
        assert len(message) == receiver.needs
        receiver.receive(message)
        messages.append(message)
    assert (one.proven, two.proven) == (TO_RANK_0, LinkPart(1))
    assert KEY not in b"".join(messages)


def with_version(number):
    said = hello(identity(1))
    return said[:8] + number.to_bytes(4, "little") + said[12:]


@pytest.mark.parametrize(
    ("say", "why"),
    [
        (lambda: hello(identity(1, workspace="other")), "another workspace"),
        (lambda: hello(identity(1, epoch=2)), "epoch 2, this is 3"),
        (lambda: hello(identity(5)), "rank 5, but its collective link is not awaited"),
        (lambda: hello(identity(1, key=bytes(32))), "to be rank 1 with another key"),
        (lambda: hello(identity(1), LinkPart(3)), "looks for rank 3"),
        (lambda: hello(identity(1), LinkPart(0, LinkPurpose.PAIR)), "pair link is not awaited"),
        (lambda: hello(identity(1), LinkPart(0, 5)), "kind 5"),
        (lambda: hello(identity(1), LinkPart(0, stripe=1, n_stripes=2)), "link .*is not awaited"),
        (lambda: with_version(9), "protocol version 9"),
        (lambda: b"GET / HTTP/1.1\r\n".ljust(len(hello(identity(1))), b"x"), "not a rank"),
    ],
)
def test_a_hello_of_someone_else_is_refused_without_an_answer(say, why):
    _, two = ends()
    with pytest.raises(HandshakeRejected, match=why):
        two.receive(say())
    assert two.take() == b""


def test_an_overheard_hello_proves_nothing():
    _, two = ends()
    two.receive(hello(identity(1)))
    assert len(two.take()) == 32
    with pytest.raises(HandshakeRejected, match="rank 1 without proof"):
        two.receive(bytes(two.needs))
    assert two.take() == b""


def test_a_listener_without_the_key_is_refused_by_the_initiator():
    one, _ = ends()
    one.take()
    one.receive(bytes(one.needs))
    one.take()
    with pytest.raises(HandshakeRejected, match="could not prove itself"):
        one.receive(bytes(one.needs))


def test_a_replayed_conversation_is_refused():
    one, two = ends()
    said = one.take()
    two.receive(said)
    one.receive(two.take())
    proof = one.take()
    two.receive(proof)
    _, later = ends()
    later.receive(said)
    with pytest.raises(HandshakeRejected, match="without proof"):
        later.receive(proof)


def test_a_reflected_proof_is_refused():
    one, two = ends()
    two.receive(one.take())
    one.receive(two.take())
    with pytest.raises(HandshakeRejected, match="could not prove itself"):
        one.receive(one.take())


def test_a_second_claimant_is_refused_at_the_end_too():
    wanted = {1}
    one, two = ends(wanted=wanted)
    two.receive(one.take())
    one.receive(two.take())
    wanted.clear()
    with pytest.raises(HandshakeRejected, match="connected already"):
        two.receive(one.take())
    assert two.take() == b""


def test_every_bit_of_a_hello_is_proven():
    """A man in the middle cannot say that it is for another purpose, rank or epoch."""
    said = hello(identity(1))
    for place in range(8 * len(said)):
        changed = bytearray(said)
        changed[place // 8] ^= 1 << place % 8
        _, two = ends()
        with pytest.raises(HandshakeRejected):
            two.receive(bytes(changed))
        assert two.take() == b""


def test_which_connection_of_how_many_is_said_and_proven():
    second = LinkPart(0, stripe=1, n_stripes=3)
    one, two = ends(part=second)
    for sender, receiver in [(one, two), (two, one), (one, two), (two, one)]:
        receiver.receive(sender.take())
    assert two.proven == second._replace(peer=1)


def test_a_short_key_is_refused_and_no_key_is_ever_shown():
    with pytest.raises(ValueError, match="5 bytes; at least 16"):
        Identity("lab", 7, 0, b"short")
    assert repr(KEY) not in repr(Identity("lab", 7, 0, KEY))
