"""The handshake's two ends, without a socket: who is let in, and what a stranger learns."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis.strategies import binary
from support.runs.tiers import examples

from phalanx.distributed.connect.handshake import (
    HandshakeRejected,
    Identity,
    LinkPart,
    LinkPurpose,
    accept,
    initiate,
)

KEY = bytes(range(32))
TO_RANK_0 = LinkPart(0)


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


def ends(*, low=None, high=None, wanted=(1,), part=TO_RANK_0):
    low = low or Identity("lab", 7, 0, KEY)
    high = high or Identity("lab", 7, 1, KEY)
    return (
        End(initiate(high, part)),
        End(accept(low, lambda it: it.peer in wanted and it[1:] == part[1:])),
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


@pytest.mark.parametrize(
    ("high", "why"),
    [
        (Identity("other", 7, 1, KEY), "another workspace"),
        (Identity("lab", 6, 1, KEY), "epoch 6, this is 7"),
        (Identity("lab", 7, 5, KEY), "rank 5, but its collective link is not awaited"),
    ],
)
def test_a_hello_of_someone_else_is_refused_without_an_answer(high, why):
    one, two = ends(high=high)
    with pytest.raises(HandshakeRejected, match=why):
        two.receive(one.take())
    assert two.take() == b""


def test_garbage_and_other_versions_and_targets_are_refused_without_an_answer():
    hello = ends()[0].take()
    wrong = [
        (b"GET / HTTP/1.1\r\n".ljust(len(hello), b"x"), "not a rank"),
        (hello[:8] + b"\x09\0\0\0" + hello[12:], "protocol version 9"),
        (ends(part=LinkPart(3))[0].take(), "looks for rank 3"),
    ]
    for message, why in wrong:
        _, two = ends()
        with pytest.raises(HandshakeRejected, match=why):
            two.receive(message)
        assert two.take() == b""


def test_a_wrong_key_is_refused_at_once_and_without_an_answer():
    one, two = ends(high=Identity("lab", 7, 1, bytes(32)))
    with pytest.raises(HandshakeRejected, match="to be rank 1 with another key"):
        two.receive(one.take())
    assert two.take() == b""


def test_an_overheard_hello_proves_nothing():
    hello = ends()[0].take()
    _, two = ends()
    two.receive(hello)
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
    hello = one.take()
    two.receive(hello)
    one.receive(two.take())
    proof = one.take()
    two.receive(proof)
    _, later = ends()
    later.receive(hello)
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
    hello = ends()[0].take()
    for place in range(8 * len(hello)):
        changed = bytearray(hello)
        changed[place // 8] ^= 1 << place % 8
        _, two = ends()
        with pytest.raises(HandshakeRejected):
            two.receive(bytes(changed))
        assert two.take() == b""


def test_a_lane_that_is_not_awaited_or_not_known_is_refused_without_an_answer():
    for purpose, why in [(LinkPurpose.PAIR, "pair link is not awaited"), (5, "kind 5")]:
        one, _ = ends(part=LinkPart(0, purpose))
        _, two = ends()
        with pytest.raises(HandshakeRejected, match=why):
            two.receive(one.take())
        assert two.take() == b""


def test_which_connection_of_how_many_is_said_and_proven():
    second = LinkPart(0, stripe=1, n_stripes=3)
    one, two = ends(part=second)
    for sender, receiver in [(one, two), (two, one), (one, two), (two, one)]:
        receiver.receive(sender.take())
    assert two.proven == second._replace(peer=1)
    for stripe, n in ((2, 3), (1, 2), (0, 1)):
        said = LinkPart(0, stripe=stripe, n_stripes=n)
        _, other = ends(part=second)
        with pytest.raises(HandshakeRejected, match="its collective link .*is not awaited"):
            other.receive(ends(part=said)[0].take())
        assert other.take() == b""


@settings(max_examples=examples(300), deadline=None)
@given(data=binary(max_size=400), seed=binary(min_size=0, max_size=136))
def test_no_bytes_of_a_stranger_get_an_answer(data, seed):
    """Any bytes at all, and any that begin as a true hello does."""
    hello = ends()[0].take()
    for said in (data, hello[: len(seed)] + data, hello[:-32] + data):
        _, two = ends()
        message = said.ljust(two.needs, b"\0")[: two.needs]
        if message == hello:
            continue
        with pytest.raises(HandshakeRejected):
            two.receive(message)
        assert two.take() == b""


def test_a_short_key_is_refused_and_no_key_is_ever_shown():
    with pytest.raises(ValueError, match="5 bytes; at least 16"):
        Identity("lab", 7, 0, b"short")
    assert repr(KEY) not in repr(Identity("lab", 7, 0, KEY))
