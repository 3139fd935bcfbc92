"""Links that are measured: how far it is, and forgotten where a rank is another process.

A measurement is stopped in widgets/live/test_live.py.
"""

from __future__ import annotations

import re

import pytest
from support.inside import kept_progress
from support.programs.restarting import values

from phalanx.workspace import Workspace


@pytest.fixture(scope="module")
def ws():
    with Workspace.start(n=4, linger=0, silence=60) as workspace:
        yield workspace


def _pairs(links):
    return [(link.a, link.b) for link in links]


def test_of_a_rank_that_was_replaced_nothing_is_known(ws):
    assert ws.measured_links == ()
    found = ws.measure_links()
    assert ws.measured_links == found
    assert _pairs(found) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    ws.restart(2, force=True)
    assert _pairs(ws.measured_links) == [(0, 1), (0, 3), (1, 3)]
    assert len(ws.measure_links()) == 6
    assert len(ws.measured_links) == 6


def test_how_far_it_is_is_told(ws, monkeypatch):
    ws.run(
        "from phalanx.distributed.bench import measure_links\n"
        "said = []\nfound = measure_links(progress=said.append)"
    )
    assert values(ws, "(said, len(found))") == ["([0, 1, 2, 3, 4, 5], 6)"] * 4
    # Each is told, not four a second, and all of them are kept.
    ws.run(
        "import phalanx.rank.tasks\n"
        "told_s, phalanx.rank.tasks._TELL_S = phalanx.rank.tasks._TELL_S, 0.0"
    )
    kept = kept_progress(monkeypatch, ws)
    ws.measure_links()
    assert [its.n_done for its in kept] == [0, 0, 1, 2, 3, 4, 5]
    assert {its.n_links for its in kept} == {6}
    assert re.match(r"5 of 6 links, (less than|about) \d+ s left", kept[-1].text)
    assert ws.links_progress is None
    ws.run("phalanx.rank.tasks._TELL_S = told_s")
