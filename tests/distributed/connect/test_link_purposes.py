"""One connection for each purpose: what collectives use is not what messages use."""

from __future__ import annotations

import pytest
from distributed.farm.meeting import Links, check_links
from support.promise import PATIENCE_S

from phalanx.distributed.connect.handshake import LinkPurpose
from phalanx.errors import DistributedError


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
    check_first_byte(results)
    for purpose in LinkPurpose:
        check_links([links[purpose] for links in results])


def check_first_byte(results: list[dict[LinkPurpose, Links]]) -> None:
    for links in results:
        for purpose, mark in [(LinkPurpose.COLLECTIVE, 7), (LinkPurpose.PAIR, 8)]:
            assert all(sock.recv(1) == bytes([mark]) for sock in links[purpose].values())


def test_ranks_that_disagree_about_one_lane_all_say_so(meet):
    meeting = meet(2)
    first = {LinkPurpose.COLLECTIVE: [1], LinkPurpose.PAIR: [1]}
    futures = [meeting.start(0, peers=first), meeting.start(1, peers={LinkPurpose.COLLECTIVE: [0]})]
    for future in futures:
        with pytest.raises(DistributedError, match="rank 0 wants a link with rank 1"):
            future.result(PATIENCE_S)
