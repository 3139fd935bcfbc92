"""Links of several connections: one for each address and more, and what a dead path does to them."""

from __future__ import annotations

import contextlib
import socket

import pytest
from distributed.farm.meeting import answer, identity, talk
from support.promise import PATIENCE_S

from phalanx.distributed.connect.endpoints import AGAIN_S, FIRST_S, PathHealth, StripeOptions
from phalanx.distributed.connect.handshake import LinkPurpose, Stripe

HOME = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]


def formed(meet, ways, addresses):
    """The links of ranks that differ in both, by rank; all for collectives."""
    meeting = meet(len(ways))
    futures = [
        meeting.start(rank, striping=StripeOptions(*way), addresses=own)
        for rank, (way, own) in enumerate(zip(ways, addresses, strict=True))
    ]
    return [future.result(PATIENCE_S)[LinkPurpose.COLLECTIVE] for future in futures]


def ends(links):
    """(own address, the peer's) of each connection; closes them."""
    found = [(sock.getsockname()[0], sock.getpeername()[0]) for sock in links]
    for sock in links:
        sock.close()
    return found


def test_each_address_has_its_connections_between_the_same_places_of_both(meet):
    low, high = formed(meet, [(2, 2), (2, 2)], [HOME[:2], HOME[1:]])
    for number, (one, two) in enumerate(zip(low[1], high[0], strict=True)):
        one.sendall(bytes([number]))
        two.setblocking(True)
        assert two.recv(9) == bytes([number])
    pairs = [("127.0.0.1", "127.0.0.2"), ("127.0.0.2", "127.0.0.3")]
    assert ends(low[1]) == [*pairs, *pairs]
    assert ends(high[0]) == [pair[::-1] for pair in (*pairs, *pairs)]


def test_a_link_has_as_many_connections_as_both_of_its_ends_allow(meet):
    made = formed(meet, [(3, 2), (2, 3), (1, 1)], [HOME, HOME[:2], HOME])
    assert [{peer: len(s) for peer, s in links.items()} for links in made] == [
        {1: 4, 2: 1},
        {0: 4, 2: 1},
        {0: 1, 1: 1},
    ]
    for links in made:
        for stripes in links.values():
            ends(stripes)


def test_messages_have_one_connection_and_the_other_addresses_stand_in(meet):
    meeting = meet(2)
    futures = [
        meeting.start(
            r, peers={LinkPurpose.PAIR: [1 - r]}, striping=StripeOptions(2), addresses=HOME[:2]
        )
        for r in range(2)
    ]
    for future in futures:
        assert len(ends(future.result(PATIENCE_S)[LinkPurpose.PAIR].popitem()[1])) == 1


def test_an_address_that_is_not_ours_is_left_to_the_system(meet, caplog):
    """As behind a translation of addresses: its connection still goes to the right place."""
    low, high = formed(meet, [(2,), (2,)], [HOME[:2], [HOME[2], "192.0.2.7"]])
    assert [there for _, there in ends(high[0])] == HOME[:2]
    ends(low[1])
    assert "slower" not in caplog.text


def test_a_path_that_is_out_is_gone_around_and_told(meet, caplog):
    meeting = meet(2)
    with socket.create_server(("127.0.0.2", 0)) as gone:
        port = gone.getsockname()[1]
    theirs = meeting.start(1, striping=StripeOptions(2), addresses=HOME[:2])
    with socket.create_server(("127.0.0.1", 0)) as server:
        share = meeting.stand_in(0, port=server.getsockname()[1], gone=("127.0.0.2", port))
        assert share[1].at_once == 2
        accepted = [server.accept()[0] for _ in range(2)]
        met = [answer(sock) for sock in accepted]
    assert sorted(met) == [Stripe(0, 2), Stripe(1, 2)]
    assert len(ends(theirs.result(PATIENCE_S)[LinkPurpose.COLLECTIVE][0])) == 2
    assert "rank 1: a path to rank 0 cannot be used (127.0.0.2 port" in caplog.text
    assert "goes over 127.0.0.1 as well, and is slower" in caplog.text
    for sock in accepted:
        sock.close()


@contextlib.contextmanager
def silence(address):
    """A port that neither lets anybody in nor refuses, as a host behind a cable that is out."""
    with contextlib.ExitStack() as undo:
        full = undo.enter_context(socket.create_server((address, 0), backlog=0))
        for _ in range(3):  # more than it holds; what comes then is dropped
            knock = undo.enter_context(socket.socket())
            knock.setblocking(False)
            knock.connect_ex(full.getsockname())
        yield full.getsockname()[1]


def past_silence(meeting, port, outages):
    """Form rank 1's link of two connections, one of which gets no answer."""
    theirs = meeting.start(1, striping=StripeOptions(2), addresses=HOME[:2], path_health=outages)
    with socket.create_server(("127.0.0.1", 0)) as server:
        meeting.stand_in(0, port=server.getsockname()[1], gone=("127.0.0.2", port))
        accepted = [server.accept()[0] for _ in range(2)]
        assert sorted(map(answer, accepted)) == [Stripe(0, 2), Stripe(1, 2)]
        ends(theirs.result(PATIENCE_S)[LinkPurpose.COLLECTIVE][0])
        for sock in accepted:
            sock.close()


def test_a_path_without_an_answer_is_not_waited_for_again_and_again(meet, caplog):
    """Each way has its bound at first (it was 2 s and 5 s once); then hardly any, and it is told once."""
    caplog.set_level("DEBUG", "phalanx.distributed")
    outages = PathHealth()
    told = "rank 1: a path to rank 0 cannot be used (127.0.0.2 port {} from 127.0.0.2: no answer "
    with silence("127.0.0.2") as port:
        for limit_s, is_told in ((FIRST_S, True), (AGAIN_S, False)):
            caplog.clear()
            past_silence(meet(2), port, outages)
            for source in (" from 127.0.0.2", ""):
                tried = f"127.0.0.2 port {port}{source}: no answer within {limit_s:g} s"
                assert f"rank 1: {tried}" in caplog.messages
            assert (told.format(port) in caplog.text) is is_told


def test_a_path_that_answers_again_is_as_good_as_before():
    outages = PathHealth()
    fresh_s = outages.patience_s("10.0.1.1", "")
    outages.note("10.0.1.1", "")
    assert (
        outages.patience_s("10.0.1.1", "") < fresh_s == outages.patience_s("10.0.1.1", "10.0.1.2")
    )
    outages.forget("10.0.1.1", "")
    assert outages.patience_s("10.0.1.1", "") == fresh_s


def test_a_connection_that_is_not_of_this_link_is_not_let_in(meet, knock):
    meeting = meet(2)
    first = meeting.start(0, striping=StripeOptions(2), addresses=HOME[:2])
    shares = meeting.stand_in(1, at_once=2)
    for stripe in (Stripe(2, 3), Stripe(0, 1), Stripe(2, 2)):
        with pytest.raises(ConnectionError):
            talk(knock(shares[0]), identity(1), stripe)
    for number in range(2):
        talk(knock(shares[0]), identity(1), Stripe(number, 2)).sendall(bytes([number]))
    for number, sock in enumerate(first.result(PATIENCE_S)[LinkPurpose.COLLECTIVE][1]):
        sock.setblocking(True)
        assert sock.recv(9) == bytes([number])
        sock.close()
