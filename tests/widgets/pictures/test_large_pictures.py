"""Still pictures of worlds that are large: their links are as many as pairs of ranks."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.ranks.worlds import make_world

from phalanx.protocol import HostPlan, LinkInfo
from phalanx.widgets import planned, topology
from phalanx.widgets.text.world import arenas


class CountedLinks(tuple):
    """Links that know how often they were gone through."""

    n_passes = 0

    def __iter__(self):
        self.n_passes += 1
        return super().__iter__()


@pytest.mark.parametrize("n_hosts", [1, 32])
def test_the_links_are_gone_through_as_often_however_many_hosts_there_are(n_hosts):
    world = make_world(n_hosts, 2)
    links = CountedLinks(world.links)
    text = topology(replace(world, links=links)).text
    assert text.count("share memory") == n_hosts
    assert 0 < links.n_passes <= 8


def test_arenas_are_closures_of_pairs_on_one_host():
    world = make_world(2, 4)
    pairs = [(3, 2), (0, 1), (6, 5), (5, 4), (2, 1), (3, 4), (0, 9)]
    links = tuple(LinkInfo(a, b, "arena") for a, b in pairs)
    found = arenas(replace(world, links=(*links, LinkInfo(6, 7, "tcp"))))
    assert found == {0: [{0, 1, 2, 3}], 1: [{4, 5, 6}]}
    apart = tuple(LinkInfo(a, b, "arena") for a, b in ((2, 3), (0, 1)))
    assert arenas(replace(world, links=apart))[0] == [{0, 1}, {2, 3}]


def test_of_very_many_pairs_of_hosts_the_first_are_named():
    picture = topology(planned([HostPlan(f"h{i}", 1) for i in range(64)]))
    assert picture.text.count("  tcp: h") == 128
    assert "  tcp: and 1888 more pairs of hosts, 2016 links in all" in picture.text
    assert "and 1888 more pairs" in picture.svg
    assert "more pairs" not in topology(planned([HostPlan(f"h{i}", 1) for i in range(16)])).text
