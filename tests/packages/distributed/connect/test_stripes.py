"""Links of several connections: one for each address and more, and what a dead path does to them."""

from __future__ import annotations

import contextlib
import socket

import pytest
from distributed.farm.meeting import answer, identity, talk
from support.promise import PATIENCE_S

from phalanx.distributed.connect import connector
from phalanx.distributed.connect.connector import STAGGER_S
from phalanx.distributed.connect.endpoints import StripeOptions
from phalanx.distributed.connect.handshake import LinkPart, LinkPurpose

HOME = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
TWO = [LinkPart(1, stripe=stripe, n_stripes=2) for stripe in range(2)]


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
    assert sorted(met) == TWO
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


def past_silence(meeting, port):
    """Form rank 1's link of two connections, one of which gets no answer."""
    theirs = meeting.start(1, striping=StripeOptions(2), addresses=HOME[:2])
    with socket.create_server(("127.0.0.1", 0)) as server:
        meeting.stand_in(0, port=server.getsockname()[1], gone=("127.0.0.2", port))
        accepted = [server.accept()[0] for _ in range(2)]
        assert sorted(map(answer, accepted)) == TWO
        ends(theirs.result(PATIENCE_S)[LinkPurpose.COLLECTIVE][0])
        for sock in accepted:
            sock.close()


def test_a_path_without_an_answer_is_gone_around_at_once_and_told(meet, caplog):
    """Each way costs the stagger, for every new group (it was 1.5 s once, and 5 s before that)."""
    caplog.set_level("DEBUG", "phalanx.distributed")
    with silence("127.0.0.2") as port:
        past_silence(meet(2), port)
    for source in (" from 127.0.0.2", ""):
        tried = f"127.0.0.2 port {port}{source}: no answer within {STAGGER_S:g} s"
        assert f"rank 1: {tried}" in caplog.messages
    told = (
        f"rank 1: a path to rank 0 cannot be used (127.0.0.2 port {port} from 127.0.0.2: no answer "
    )
    assert caplog.text.count(told) == 1


def test_a_route_that_answers_late_is_used_if_no_other_does(meet, caplog, monkeypatch):
    """The first that connects is used, and the others are given up."""
    monkeypatch.setattr(connector, "STAGGER_S", 0.0)
    low, high = formed(meet, [(2,), (2,)], [HOME[:2], HOME[:2]])
    assert [len(ends(links)) for links in (low[1], high[0])] == [2, 2]


def test_a_connection_that_is_not_of_this_link_is_not_let_in(meet, knock):
    meeting = meet(2)
    first = meeting.start(0, striping=StripeOptions(2), addresses=HOME[:2])
    shares = meeting.stand_in(1, at_once=2)
    for stripe, n in ((2, 3), (0, 1), (2, 2)):
        with pytest.raises(ConnectionError):
            talk(knock(shares[0]), identity(1), LinkPart(0, stripe=stripe, n_stripes=n))
    for number in range(2):
        part = LinkPart(0, stripe=number, n_stripes=2)
        talk(knock(shares[0]), identity(1), part).sendall(bytes([number]))
    for number, sock in enumerate(first.result(PATIENCE_S)[LinkPurpose.COLLECTIVE][1]):
        sock.setblocking(True)
        assert sock.recv(9) == bytes([number])
        sock.close()
