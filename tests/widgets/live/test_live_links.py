"""Links that are measured from a widget: how far it is, and stopped by the user."""

from __future__ import annotations

import signal
import threading

import msgspec
import psutil
import pytest
from support.programs.restarting import wait_for
from support.promise import PATIENCE_S
from support.ranks.cells import wait_idle

from phalanx.widgets import Topology as TopologyWidget
from phalanx.workspace import Workspace


@pytest.fixture
def widget():
    with Workspace.start(n=2, linger=0, silence=60) as ws:
        made = TopologyWidget(ws)
        yield made
        made.close()


def _measuring(widget):
    widget.tick()
    return msgspec.json.decode(widget.frame)["measuring"]


def test_a_measurement_tells_how_far_it_is_and_is_stopped(widget):
    assert widget.answer("stop_links", {}) == "no link is measured now"
    frozen = psutil.Process(widget.workspace.topology().ranks[1].pid)
    frozen.send_signal(signal.SIGSTOP)  # or it would be over before anybody could stop it
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(widget.answer("links", {})))
    thread.start()
    try:
        wait_for(lambda: _measuring(widget) == "0 of 1 link")
        assert widget.answer("stop_links", {}) == "the measurement was asked to stop"
        wait_idle(widget.workspace, 0)  # it was stopped: the other one cannot end the measurement
    finally:
        frozen.send_signal(signal.SIGCONT)
    thread.join(PATIENCE_S)
    assert said == ["stopped; what was measured until then is not kept"]
    assert _measuring(widget) == ""
    assert widget.answer("links", {}) == "1 link measured, none slow or broken"
    # On the still it is told as well, and forgotten with the process that it was measured of.
    assert "1 link measured, none slow or broken" in widget.still().text
    widget.workspace.restart(1, force=True)
    widget.tick()
    assert msgspec.json.decode(widget.world)["measured"] == []
    assert "measured" not in widget.still().text
