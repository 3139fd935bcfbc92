"""Links form between real sockets, while strangers try to connect; ranks are threads of this process."""

from __future__ import annotations

import socket
from concurrent.futures import Future
from pathlib import Path

import psutil
import pytest
from distributed.farm.meeting import Links, check_links, identity, talk
from support.promise import PATIENCE_S

from phalanx.distributed.connect.handshake import LinkPart, LinkPurpose, accept
from phalanx.errors import CollectiveTimeout, DistributedError, RankFailure

HAS_IPV6 = socket.has_ipv6 and "::1" in {
    a.address for addresses in psutil.net_if_addrs().values() for a in addresses
}


def open_descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


@pytest.mark.parametrize("size", [2, 8])
def test_each_lane_gets_links_of_its_own(meet, size):
    """All pairs have one for messages, the even ranks one more for collectives."""
    meeting = meet(size)
    even = set(range(0, size, 2))
    wanted = [
        {
            LinkPurpose.COLLECTIVE: sorted(even - {rank}) if rank in even else [],
            LinkPurpose.PAIR: [p for p in range(size) if p != rank],
        }
        for rank in range(size)
    ]
    futures = [meeting.start(rank, peers=wanted[rank]) for rank in range(size)]
    results = [future.result(PATIENCE_S) for future in futures]
    for links, purposes in zip(results, wanted, strict=True):
        assert {purpose: sorted(links[purpose]) for purpose in purposes} == purposes
    for purpose, mark in [(LinkPurpose.COLLECTIVE, 7), (LinkPurpose.PAIR, 8)]:
        for links in results:
            for sock in links[purpose].values():
                sock.setblocking(True)
                sock.sendall(bytes([mark]))
        for links in results:
            assert all(sock.recv(1) == bytes([mark]) for sock in links[purpose].values())
    for purpose in LinkPurpose:
        check_links([links[purpose] for links in results])


@pytest.mark.parametrize("of_rank_1", [{}, {LinkPurpose.COLLECTIVE: [0]}])
def test_ranks_that_disagree_about_their_links_all_say_so(meet, of_rank_1):
    meeting = meet(2)
    of_rank_0 = {LinkPurpose.COLLECTIVE: [1], LinkPurpose.PAIR: [1]}
    futures = [meeting.start(0, peers=of_rank_0), meeting.start(1, peers=of_rank_1)]
    for future in futures:
        with pytest.raises(DistributedError, match="rank 0 wants a link with rank 1"):
            future.result(PATIENCE_S)


@pytest.mark.skipif(not HAS_IPV6, reason="this machine has no ::1")
@pytest.mark.parametrize("addresses", [["::1"], ["::1", "127.0.0.1"]])
def test_ipv6(meet, addresses):
    meeting = meet(2)
    futures = [meeting.start(rank, addresses=addresses) for rank in range(2)]
    results = [future.result(PATIENCE_S) for future in futures]
    assert results[0][1].family == socket.AF_INET6
    check_links(results)


def test_an_address_of_another_machine_is_skipped_while_one_is_left(meet):
    meeting = meet(2)
    futures = [meeting.start(r, addresses=["192.0.2.1", "127.0.0.1"]) for r in range(2)]
    check_links([future.result(PATIENCE_S) for future in futures])


def test_no_usable_address_is_told_to_all_at_once(meet):
    meeting = meet(2)
    futures = [meeting.start(0, addresses=["192.0.2.1"]), meeting.start(1)]
    for future in futures:
        with pytest.raises(DistributedError, match=r"rank 0: .*no address to listen.*192\.0\.2\.1"):
            future.result(PATIENCE_S)


def test_it_listens_on_the_given_address_only(meet, clock):
    meeting = meet(2)
    first = meeting.start(0)
    endpoint = meeting.stand_in(1)[0].endpoints[0]
    bound = [
        c.laddr for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN
    ]
    assert (endpoint.host, endpoint.port) in bound
    assert all(address.ip == "127.0.0.1" for address in bound)
    clock.jump(PATIENCE_S)
    with pytest.raises(CollectiveTimeout):
        first.result(PATIENCE_S)


def test_the_missing_are_named_with_host_and_everything_is_closed(meet):
    meeting = meet(4)
    before = open_descriptors()
    names = ("h0", "h0", "h1", "h1")
    # Long enough for the two that are there to connect, on a machine that has much else to do.
    futures = [meeting.start(r, timeout=3.0, host_names=names) for r in (0, 1)]
    meeting.stand_in(2, 3)
    for rank, future in enumerate(futures):
        with pytest.raises(CollectiveTimeout) as caught:
            future.result(PATIENCE_S)
        assert f"rank {rank}: ranks 2, 3 did not connect within 3 s" in str(caught.value)
        assert "rank 3 runs on h1" in str(caught.value)
    assert open_descriptors() <= before


def test_a_lower_rank_that_is_gone_is_named_with_the_cause(meet):
    meeting = meet(2)
    second = meeting.start(1, timeout=2.0)  # which at least one attempt takes
    meeting.stand_in(0)
    with pytest.raises(CollectiveTimeout, match=r"rank 0 did not .* port 1: Connection refused"):
        second.result(PATIENCE_S)


def test_an_abort_ends_the_wait(meet):
    def check() -> None:
        raise RankFailure(1, "h0", "killed by signal 9 (SIGKILL)")

    meeting = meet(2)
    first = meeting.start(0, check=check)
    meeting.stand_in(1)
    with pytest.raises(RankFailure, match="rank 1 on h0: killed"):
        first.result(PATIENCE_S)


def test_a_second_claimant_of_a_connected_rank_is_dropped(meet, knock):
    meeting = meet(3)
    first = meeting.start(0)
    shares = meeting.stand_in(1, 2)
    honest = talk(knock(shares[0]))
    for claim in (1, 0, 9):  # 9 is no rank, though it knows the key
        with pytest.raises(ConnectionError):
            talk(knock(shares[0]), identity(claim))
    talk(knock(shares[0]), identity(2))
    honest.sendall(b"still here")
    assert heard(first, 1) == b"still here"


def test_a_rank_that_comes_again_after_its_connection_broke_is_let_in(meet, knock):
    meeting = meet(3)
    first = meeting.start(0)
    shares = meeting.stand_in(1, 2)
    talk(knock(shares[0])).close()
    again = talk(knock(shares[0]))
    talk(knock(shares[0]), identity(2))
    again.sendall(b"again")
    assert heard(first, 1) == b"again"


def test_bytes_right_behind_the_proof_are_left_for_the_engine(meet):
    meeting = meet(2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        second = meeting.start(1)
        meeting.stand_in(0, port=server.getsockname()[1])
        sock, _ = server.accept()
        with sock:
            two = accept(identity(0), lambda part: part == LinkPart(1))
            _, needs = next(two)
            while needs:
                said, needs = two.send(sock.recv(needs, socket.MSG_WAITALL))
                sock.sendall(said + (b"" if needs else b"first of the engine"))
            assert heard(second, 0) == b"first of the engine"


def heard(future: Future[Links], peer: int) -> bytes:
    links = future.result(PATIENCE_S)
    links[peer].setblocking(True)
    data = links[peer].recv(64)
    for sock in links.values():
        sock.close()
    return data
