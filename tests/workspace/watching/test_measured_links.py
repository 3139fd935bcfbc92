"""Links that are measured: how far it is, stopped, and forgotten where a rank is another process."""

from __future__ import annotations

import re
import signal
import threading

import psutil
import pytest
from support.programs.restarting import pids, values
from support.promise import PATIENCE_S
from support.waiting import wait_until

from phalanx.errors import CellError
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


def test_how_far_it_is_is_told(ws):
    ws.run(
        "from phalanx.distributed.bench import measure_links\n"
        "said = []\nfound = measure_links(progress=said.append)"
    )
    assert values(ws, "(said, len(found))") == ["([0, 1, 2, 3, 4, 5], 6)"] * 4
    # Each is told, not four a second, and all of them are kept.
    ws.run(
        "import phalanx.rank.requests\n"
        "told_s, phalanx.rank.requests._TELL_S = phalanx.rank.requests._TELL_S, 0.0"
    )
    kept, keep = [], ws._links._note
    ws._links._note = lambda progress: (kept.append(progress), keep(progress))
    ws.measure_links()
    assert [its.n_done for its in kept] == [0, 0, 1, 2, 3, 4, 5]
    assert {its.n_links for its in kept} == {6}
    assert re.match(r"5 of 6 links, (less than 1|\d+) s left", kept[-1].text)
    assert ws.links_progress is None
    ws._links._note = keep
    ws.run("phalanx.rank.requests._TELL_S = told_s")


def test_it_is_stopped_from_another_thread(ws):
    errors: list[BaseException] = []
    before = ws.measured_links

    def measure():
        try:
            ws.measure_links()
        except (CellError, KeyboardInterrupt) as error:
            errors.append(error)

    frozen = psutil.Process(pids(ws)[3])
    frozen.send_signal(signal.SIGSTOP)  # or it would be over before anybody could stop it
    thread = threading.Thread(target=measure)
    thread.start()
    try:
        wait_until(lambda: ws.links_progress is not None, "the measuring has begun")
        assert ws.links_progress.text == "0 of 6 links"
        ws.interrupt()
    finally:
        frozen.send_signal(signal.SIGCONT)
    thread.join(PATIENCE_S)
    assert len(errors) == 1
    assert (ws.links_progress, ws.measured_links) == (None, before)
    assert len(ws.measure_links()) == 6
