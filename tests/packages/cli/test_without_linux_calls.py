"""Worlds on a system that lacks Linux's own calls: they run, end, and leave nothing behind."""

from __future__ import annotations

import os
import shutil

import pytest
from support.places import TESTS
from support.programs.launching import PATIENT
from support.programs.leftovers import Family
from support.promise import BOUND_S

pytestmark = [pytest.mark.slow, pytest.mark.promise]

SCRIPT = """
import os, sys
import numpy as np, phalanx as px
assert not hasattr(os, "pidfd_open")
group = px.init(strict=True)
print(group.rank(), px.all_sum(np.ones(3)).sum(), flush=True)
if sys.argv[1:] == ["stay"]:
    import time
    time.sleep(60)
group.barrier()
sys.exit(group.rank() * 3)
"""

CLIENT = """
import contextlib, os
import phalanx as px
from phalanx.workspace import Workspace
assert not hasattr(os, "pidfd_open")
with Workspace.start(n=2) as ws:
    print([r.value for r in ws.run("px.all_sum(rank + 1)")])
    ws.run("import os; kept = rank")
    with contextlib.suppress(px.RankFailure):
        ws.run("os._exit(3)", ranks=[1])
    print(ws.topology().ranks[1].state)
    ws.restart([1])
    print([r.value for r in ws.run("(globals().get('kept'), px.all_sum(1))")])
"""


@pytest.fixture
def elsewhere(tmp_path):
    """What a program's environment needs."""
    site = tmp_path / "site"
    site.mkdir()
    shutil.copy(TESTS / "support/programs/elsewhere.py", site / "sitecustomize.py")
    return {
        "PYTHONPATH": os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    }


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def test_a_launch_ends_as_its_ranks_do(tmp_path, elsewhere, script):
    with Family(tmp_path, *PATIENT, "-n", "2", "--label", "none", script, **elsewhere) as family:
        said, _ = family.popen.communicate(timeout=100)
        assert sorted(said.decode().split("\n")) == ["", "0 6.0", "1 6.0"]
        assert family.popen.returncode == 3
        assert family.left(BOUND_S) == []


def test_ranks_end_with_a_launch_that_was_killed(tmp_path, elsewhere, script):
    words = [*PATIENT, "-n", "2", "--label", "none", script, "stay"]
    with Family(tmp_path, *words, **elsewhere) as family:
        family.wait_line("0 6.0")
        family.popen.kill()
        family.popen.communicate(timeout=100)
        assert family.left(BOUND_S) == []


def test_a_workspace_runs_and_replaces_a_rank(tmp_path, elsewhere):
    with Family(tmp_path, python=CLIENT, **elsewhere) as family:
        said, _ = family.popen.communicate(timeout=100)
        assert said.decode().split("\n") == ["['3', '3']", "dead", "['(0, 2)', '(None, 2)']", ""]
        assert family.popen.returncode == 0
        assert family.left(BOUND_S) == []
