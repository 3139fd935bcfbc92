"""One connection for each purpose: what collectives use is not what messages use."""

from __future__ import annotations

import pytest
from distributed.meeting import Links, check_links
from support.promise import PATIENCE_S

from phalanx.distributed._handshake import Lane
from phalanx.errors import DistributedError


@pytest.mark.parametrize("size", [2, 8])
def test_each_lane_gets_links_of_its_own(meet, size):
    """All pairs have one for messages, the even ranks one more for collectives."""
    meeting = meet(size)
    even = set(range(0, size, 2))
    wanted = [
        {
            Lane.COLLECTIVE: sorted(even - {rank}) if rank in even else [],
            Lane.PAIR: [p for p in range(size) if p != rank],
        }
        for rank in range(size)
    ]
    futures = [meeting.start(rank, peers=wanted[rank]) for rank in range(size)]
    results = [future.result(PATIENCE_S) for future in futures]
    for links, lanes in zip(results, wanted, strict=True):
        assert {lane: sorted(links[lane]) for lane in lanes} == lanes
    for lane, mark in [(Lane.COLLECTIVE, 7), (Lane.PAIR, 8)]:
        for links in results:
            for sock in links[lane].values():
                sock.setblocking(True)
                sock.sendall(bytes([mark]))
    check_first_byte(results)
    for lane in Lane:
        check_links([links[lane] for links in results])


def check_first_byte(results: list[dict[Lane, Links]]) -> None:
    for links in results:
        for lane, mark in [(Lane.COLLECTIVE, 7), (Lane.PAIR, 8)]:
            assert all(sock.recv(1) == bytes([mark]) for sock in links[lane].values())


def test_ranks_that_disagree_about_one_lane_all_say_so(meet):
    meeting = meet(2)
    first = {Lane.COLLECTIVE: [1], Lane.PAIR: [1]}
    futures = [meeting.start(0, peers=first), meeting.start(1, peers={Lane.COLLECTIVE: [0]})]
    for future in futures:
        with pytest.raises(DistributedError, match="rank 0 wants a link with rank 1"):
            future.result(PATIENCE_S)
