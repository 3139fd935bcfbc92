"""The picture of what joins hosts: well-formed whatever hosts are called, and it says what it shows."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
from hosts.macs import macs, mesh, plug, wired

from phalanx.hosts import Discovery, DiscoveryError, Host, Survey, read_survey
from phalanx.protocol import LinkMeasurement
from phalanx.widgets import cabling

_SVG = "{http://www.w3.org/2000/svg}"


def discovered(hosts):
    surveys = [read_survey(host.name, host.outputs()) for host in hosts]
    return Discovery([Host(host.name) for host in hosts], surveys)


def drawn(still):
    root = ET.fromstring(still.svg)
    return root, [title.text for title in root.iter(f"{_SVG}title")]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 13, 64])
def test_each_host_and_cable_is_there_once(n):
    pairs = [(i, (i + 1) % n) for i in range(n)] if n > 1 else []
    found = discovered(wired(n, pairs) if pairs else macs(1))
    root, titles = drawn(cabling(found, found.plan("any", "ring" if pairs else None)))
    assert sum(title.startswith("host mac") for title in titles) == n
    assert sum(title.startswith("chosen ") for title in titles) == len(pairs)
    boxes = [rect for rect in root.iter(f"{_SVG}rect") if rect.get("class") == "px-tile"]
    places = [tuple(float(box.get(key)) for key in ("x", "y", "width", "height")) for box in boxes]
    width, height = map(float, root.get("viewBox").split()[2:])
    for i, (x, y, w, h) in enumerate(places):
        assert 0 <= x <= width - w
        assert 0 <= y <= height - h
        for a, b, _, _ in places[:i]:
            assert abs(a - x) >= w or abs(b - y) >= h  # no box on another


def test_the_ring_stands_out_among_other_cables():
    found = discovered(wired(5, mesh(5)))
    _, titles = drawn(cabling(found, found.plan("thunderbolt", "ring")))
    assert sum(title.startswith("chosen ") for title in titles) == 5
    assert sum(title.startswith("spare ") for title in titles) == 5
    _, titles = drawn(cabling(found, found.plan("thunderbolt", "jaccl")))
    assert sum(title.startswith("chosen ") for title in titles) == 10


def test_missing_cables_are_shown_where_there_is_no_plan():
    found = discovered(wired(4, [(0, 1), (1, 2), (2, 3)]))
    with pytest.raises(DiscoveryError):
        found.plan("thunderbolt", "ring")
    still = cabling(found)
    assert "missing: mac0 - mac3" in still.text
    assert "mac0 and mac3 have one neighbour only" in still.text
    assert "stroke-dasharray" in still.svg


def test_parallel_cables_do_not_hide_each_other():
    found = discovered(wired(2, [(0, 1)] * 3))
    root, _ = drawn(cabling(found, found.plan("thunderbolt", "ring")))
    lines = {
        tuple(line.get(key) for key in ("x1", "y1", "x2", "y2"))
        for line in root.iter(f"{_SVG}line")
    }
    assert len(lines) == 3


def test_any_name_makes_a_picture():
    one, two = macs(2)
    one.name, two.name = '<b a="&">', "x" * 300 + "\0\x1b"
    plug(one, two)
    found = discovered([one, two])
    root, titles = drawn(cabling(found, None))
    assert any('<b a="&">' in title for title in titles)
    assert float(root.get("width")) < 1000


def test_hosts_of_which_nothing_is_known():
    found = Discovery([Host("a"), Host("b")], [Survey("a", "Linux"), Survey("b", "")])
    assert "a (Linux)" in cabling(found).text


def test_what_was_measured_stands_at_the_paths():
    found = discovered(macs(4))
    plan = found.plan("ethernet", "ring")
    times = [
        LinkMeasurement(a, b, 20.0, rate * (a + b), 1 << 20, 0, net)
        for net, rate in (("x", 0.5), ("y", 1.0))
        for a in range(4)
        for b in range(a + 1, 4)
    ]
    times.append(LinkMeasurement(0, 1, 0.0, 0.0, 0, 0, "z", "blocked"))
    still = cabling(found, plan, times)
    assert "chosen: mac0 - mac1: 1.00 GB/s, 20 us" in still.text
    assert "spare: mac1 - mac3: 4.00 GB/s, 20 us" in still.text
    assert still.text.count("GB/s") == 6
    assert "4.00 GB/s, 20 us" in [text.text for text in drawn(still)[0].iter(f"{_SVG}text")]
