"""Workspaces of real processes."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest
from support.runs.gates import Gate

from phalanx.errors import DistributedError
from phalanx.workspace import Workspace


@pytest.fixture(scope="module")
def ws():
    """Three ranks that the tests of a file share."""
    with Workspace.start(n=3) as workspace:
        yield workspace


@pytest.fixture
def own():
    """Two ranks of a test's own, to break."""
    with Workspace.start(n=2) as workspace:
        yield workspace


@pytest.fixture
def breakable(ws):
    """The ranks of a file, for a test that kills or stops some: replaced or continued after it."""
    yield ws
    for info in ws.topology().ranks:
        if info.state != "dead":
            with contextlib.suppress(ProcessLookupError):
                os.kill(info.pid, signal.SIGCONT)
    with contextlib.suppress(DistributedError):
        ws.interrupt()
    if any(info.state == "dead" for info in ws.topology().ranks):
        ws.restart()


@pytest.fixture
def gate(tmp_path):
    """A gate that holds ranks until the test opens it."""
    with Gate(tmp_path) as gate:
        yield gate
