"""Still pictures: well-formed, escaped, complete, and told in words as well."""

from __future__ import annotations

import csv
import io
import json
import re
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.ranks.worlds import NASTY, make_sweep, make_trace, make_world

from phalanx.distributed.bench import unknown_limit
from phalanx.protocol import (
    HostInfo,
    HostPlan,
    Limit,
    LinkInfo,
    Measurement,
    RankInfo,
    SweepRun,
    WorldTopology,
)
from phalanx.widgets import (
    HEADER,
    Observations,
    StillPicture,
    bandwidth,
    format_measurement,
    format_size,
    monitor,
    planned,
    sweep_csv,
    sweep_json,
    table,
    topology,
)
from phalanx.widgets.text.operations import UseFrame
from phalanx.widgets.text.world import arenas

_SVG = "{http://www.w3.org/2000/svg}"


def _texts(picture: StillPicture) -> list[str]:
    return [t.text or "" for t in ET.fromstring(picture.svg).iter(f"{_SVG}text")]


@pytest.mark.parametrize(
    ("n_hosts", "n_ranks"), [(1, 1), (1, 2), (1, 7), (1, 9), (1, 64), (2, 8), (3, 4), (16, 4)]
)
def test_every_host_and_rank_is_on_the_picture_and_nothing_outside(n_hosts, n_ranks):
    world = make_world(n_hosts, n_ranks)
    picture = topology(world)
    texts = _texts(picture)
    assert {host.name for host in world.hosts} <= set(texts)
    for rank in world.ranks:
        assert f"pid {rank.pid}" in texts
        assert f"pid {rank.pid}" in picture.text
    root = ET.fromstring(picture.svg)
    width, height = (float(n) for n in root.attrib["viewBox"].split()[2:])
    boxes = [box.attrib for box in root.iter(f"{_SVG}rect")]
    for box in boxes:
        x, y, w, h = (float(box[k]) for k in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height
    tiles = [(box["x"], box["y"]) for box in boxes if box["class"] == "px-tile"]
    assert len(set(tiles)) == len(tiles) == len(world.ranks)  # none over another


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_no_picture_is_cut_where_it_is_shown_as_wide_as_it_says(hosts):
    for picture in (topology(make_world(hosts, 8)), bandwidth(make_sweep("all_sum", 8))):
        root = ET.fromstring(picture.svg)
        assert float(root.attrib["width"]) <= 776


def test_states_in_words_and_colours():
    picture = topology(make_world(1, 5, states=("starting", "idle", "busy", "input", "dead")))
    texts = _texts(picture)
    assert {"starting", "idle", "busy", "needs input", "dead"} <= set(texts)
    assert any("killed by signal 9" in t for t in texts)
    assert "killed by signal 9" in picture.text


def test_arena_and_tcp_are_told_apart():
    shared, wired, far = (
        topology(make_world(*of, tcp=tcp))
        for of, tcp in (((1, 4), False), ((1, 4), True), ((3, 2), False))
    )
    assert "arena: memory that ranks 0-3 share" in _texts(shared)
    assert "arena" not in wired.text
    assert "tcp: 6 links" in _texts(wired)
    assert "node0 - node1, 1 link" in far.text
    assert "3 tcp links" in _texts(far)


def test_a_host_is_drawn_with_its_network_card():
    hosts = tuple(HostInfo(i, f"n{i}", f"10.0.0.{i}", 2, f"eth{i}") for i in range(2))
    ranks = tuple(RankInfo(i, i, 7, "idle") for i in range(2))
    picture = topology(WorldTopology("w", 1, hosts, ranks, ()))
    assert "10.0.0.1 on eth1 · 2 cores" in _texts(picture)
    assert "10.0.0.0 on eth0, 2 cores" in picture.text


def test_a_plan_is_drawn_before_anything_is_started():
    hosts = [HostPlan("alpha", 2, ("10.0.0.1",)), HostPlan("me@beta", 1)]
    picture = topology(planned(hosts, name="hosts.json"))
    texts = _texts(picture)
    for words in ("alpha", "me@beta", "10.0.0.1", "3 ranks on 2 hosts, planned, not started"):
        assert words in texts
    assert texts.count("planned") == 3
    assert not any("pid" in words for words in texts)
    assert "rank 2   planned" in picture.text
    assert "tcp: alpha - me@beta, 2 links" in picture.text


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


def test_the_words_have_memory_and_the_running_cell():
    ranks = (
        RankInfo(0, 0, 70, "busy", "", "in all_sum #3", 61 << 20, "train(\x00)", 75.4),
        RankInfo(1, 0, 71, "busy", "", "", 2000 << 20, "", 0.4),
        RankInfo(2, 0, 72, "dead", "", "killed by signal 9 (SIGKILL)"),
    )
    world = WorldTopology("w", 1, (HostInfo(0, "here", "127.0.0.1", 2),), ranks, ())
    assert topology(world).text.splitlines()[2:] == [
        "    rank 0   pid 70         61 MiB  busy for 1 min 15 s: `train(\ufffd)`  in all_sum #3",
        "    rank 1   pid 71       2000 MiB  busy",
        "    rank 2   pid 72                 dead  killed by signal 9 (SIGKILL)",
    ]


def test_an_empty_world_can_be_drawn():
    assert "0 ranks on 0 hosts" in topology(WorldTopology("w", 0, (), (), ())).text


def test_outside_text_is_escaped():
    world = make_world(1, 2, name=NASTY)
    dead = RankInfo(0, 0, 1, "dead", detail=NASTY)
    world = WorldTopology(NASTY, 1, world.hosts, (dead, world.ranks[1]), world.links)
    uses = (UseFrame(NASTY, NASTY, 8, 8, is_split=False, is_now=True),)
    (m,) = make_sweep(NASTY, 1)
    for picture in (
        topology(world, Observations(uses=uses)),
        bandwidth([m], title=NASTY),
        monitor(make_trace(2), world),
    ):
        root = ET.fromstring(picture.svg)
        assert not list(root.iter(f"{_SVG}script"))
        assert "<script" not in picture.svg
        assert "\x1b" not in picture.text


def test_names_for_those_who_cannot_see():
    root = ET.fromstring(topology(make_world(1, 2)).svg)
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"]
    assert root.find(f"{_SVG}title") is not None
    assert "rank 0" in root.find(f"{_SVG}desc").text


def test_one_line_per_operation_and_path():
    sweep = make_sweep("all_sum", 12) + make_sweep("all_sum", 12, transport="tcp")
    texts = _texts(bandwidth(sweep, title="here"))
    assert {"all_sum · arena · float32 · 4 ranks", "all_sum · tcp · float32 · 4 ranks"} <= set(
        texts
    )
    assert "here" in texts


def test_wrong_elements_are_loud():
    (m,) = make_sweep("all_sum", 1, n_wrong=3)
    picture = bandwidth([m])
    assert any("3 wrong elements" in t for t in _texts(picture))
    assert "3 wrong elements" in picture.text


COPY = Limit("memory copy", "arena", 25.0, 1 << 30, 0.2, "one core, <b>median</b>")


def _changing():
    sweep = make_sweep("all_sum", 12)
    return [replace(m, algorithm="inline" if m.nbytes < 5000 else m.algorithm) for m in sweep]


def test_limit_model_and_changes_stand_beside_the_curve():
    picture = bandwidth(_changing(), limits=[COPY])
    texts = _texts(picture)
    assert "memory copy 25 GB/s" in texts
    assert texts.count("inline → staged") == 2  # in both panels
    for said in (
        "limit: memory copy 25 GB/s (one core, <b>median</b>)",
        "time: 3 µs + bytes / 8 GB/s (off by 0 %)",
        "half of its best bandwidth at 23.4 KiB",
        "algorithm: inline up to 2 KiB, staged from 8 KiB",
    ):
        assert said in texts
        assert f"# {said}" in picture.text
    assert "<b>" not in picture.svg


def test_a_limit_that_is_not_known_is_said_and_not_drawn():
    unknown = unknown_limit("a", "b")
    picture = bandwidth(_changing(), limits=[unknown])
    said = f"limit: wire between hosts not known ({unknown.how})"
    assert f"# {said}" in picture.text
    assert "came through from a to b" in said
    assert [text for text in _texts(picture) if "wire between hosts" in text] == [said]


def test_earlier_sweeps_are_laid_over():
    runs = [
        SweepRun("all_sum", "float32", 4, "done", f"2026-11-21T10:0{i}:00+00:00",
                 tuple(make_sweep("all_sum", 12, transport="tcp")))
        for i in range(6)
    ]  # fmt: skip
    texts = _texts(bandwidth(_changing(), earlier=runs))
    names = [t for t in texts if t.startswith("all_sum · tcp")]
    assert names == [f"all_sum · tcp · float32 · 4 ranks · 10:0{i}:00" for i in range(2, 6)]


@given(
    st.lists(
        st.tuples(st.integers(1, 1 << 50), st.floats(1e-3, 1e12), st.sampled_from("ab")),
        max_size=12,
    ),
    st.floats(1e-6, 1e6),
)
def test_any_sweep_is_drawn_inside_its_panels(points, gbs):
    sweep = [
        Measurement("all_sum", algorithm, "arena", "float32", 4, n, n, t, t, n / t / 1e3,
                    1.5 * n / t / 1e3, 0, 20)
        for n, t, algorithm in points
    ]  # fmt: skip
    root = ET.fromstring(bandwidth(sweep, limits=[replace(COPY, gbs=gbs)]).svg)
    width, height = (float(n) for n in root.attrib["viewBox"].split()[2:])
    for path in root.iter(f"{_SVG}path"):
        for x, y in re.findall(r"[ML](\S+) (\S+)", path.attrib["d"]):
            assert 0 <= float(x) <= width
            assert 0 <= float(y) <= height


def test_a_sweep_as_csv_and_json():
    run = SweepRun("all_sum", "float32", 4, "done", "2026", tuple(_changing()), (COPY,))
    rows = list(csv.DictReader(io.StringIO(sweep_csv(run.points))))
    assert [int(row["nbytes"]) for row in rows] == [m.nbytes for m in run.points]
    assert [float(row["busbw_gbs"]) for row in rows] == [m.busbw_gbs for m in run.points]
    told = json.loads(sweep_json(run))
    model = told.pop("model")
    assert msgspec.convert(told, SweepRun) == run
    assert model["fit"]["alpha_us"] == pytest.approx(3)
    assert model["changes"] == [
        {"below": 2048, "above": 8192, "before": "inline", "after": "staged"}
    ]


def test_few_measurements_can_be_drawn():
    barrier = Measurement("barrier", "", "arena", "float32", 4, 0, 0, 1.25, 3.5, 0.0, 0.0, 0, 20)
    assert any("1.25 µs" in t for t in _texts(bandwidth([barrier])))
    assert "no measurements yet" in _texts(bandwidth([]))
    alone = Measurement("all_sum", "", "self", "float32", 1, 2, 8, 1.0, 1.0, 8e-3, 0.0, 0, 20)
    for few in (make_sweep("all_sum", 1), [alone]):
        assert ET.fromstring(bandwidth(few).svg) is not None


def test_mime_bundle_and_files(tmp_path):
    picture = topology(make_world(1, 2))
    assert picture._repr_mimebundle_() == {"image/svg+xml": picture.svg, "text/plain": picture.text}
    assert set(picture._repr_mimebundle_(include={"text/plain"})) == {"text/plain"}
    assert picture.save(tmp_path / "w.svg").read_text(encoding="utf-8") == picture.svg
    with pytest.raises(ValueError, match=r"\.svg or \.txt"):
        picture.save(tmp_path / "w.png")


def test_table_has_nccl_tests_columns():
    lines = table(make_sweep("all_sum", 3)).splitlines()
    columns = "# size count type op transport algorithm time p99 algbw busbw #wrong"
    assert " ".join(lines[0].split()) == columns
    assert len({len(line) for line in lines[2:]}) == 1
    assert HEADER.splitlines()[0] == lines[0]


def test_columns_never_run_together():
    m = Measurement("all_sum", "", "arena+tcp+more", "float32", 4, 1 << 60, 1 << 62, 1e12, 1e12, 0.1, 0.1, 0, 1)  # fmt: skip
    assert len(format_measurement(m).split()) == 11


def test_the_table_shows_where_the_algorithm_changes():
    column = HEADER.splitlines()[0].split().index("algorithm") - 1  # less the "#"
    rows = [format_measurement(m).split()[column] for m in _changing()]
    assert set(rows) == {"inline", "staged"}
    assert rows == sorted(rows)
    assert format_measurement(replace(_changing()[0], algorithm="")).split()[column] == "-"


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (1 << 50, "1024 TiB")],
)
def test_format_size(nbytes, words):
    assert format_size(nbytes) == words
