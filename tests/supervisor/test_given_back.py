"""A dead rank's shared memory goes back to the system at once, and harms no survivor."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from phalanx.errors import CellError, RankFailure
from phalanx.workspace import Workspace

pytestmark = pytest.mark.slow

BOUND_S = 2.0  # design.md section 5: on one machine
MUCH, LITTLE = 1 << 18, 1 << 16


def memory_of_ranks(root: int) -> list[int]:
    """Bytes that the region of each slot takes."""
    folder = Path(f"/proc/{root}/fd")
    regions = []
    for fd in sorted(int(file.name) for file in folder.iterdir()):
        with contextlib.suppress(FileNotFoundError):  # it opens and closes others meanwhile
            if "phalanx-region" in str((folder / str(fd)).readlink()):
                regions.append((folder / str(fd)).stat().st_blocks * 512)
    return regions


@pytest.mark.parametrize("phase", ["idle", "collective"])
def test_a_dead_ranks_memory_is_given_back(phase):
    with Workspace.start(n=3) as ws:
        (pid,) = (int(r.value) for r in ws.run("import os\nos.getpid()", ranks=[1]))
        ws.run("x = np.ones(1 << 20)\nfor _ in range(3): px.all_sum(x)")
        root = ws._root.pid
        assert min(memory_of_ranks(root)) > MUCH
        if phase == "idle":
            os.kill(pid, signal.SIGKILL)
        else:
            threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
            with pytest.raises(RankFailure):
                ws.run("while True: px.all_sum(x)")
        deadline_s = time.monotonic() + BOUND_S
        while memory_of_ranks(root)[1] > LITTLE:
            assert time.monotonic() < deadline_s
        mine, _, theirs = memory_of_ranks(root)
        assert min(mine, theirs) > MUCH


@pytest.mark.parametrize("number", [1 << 10, 1 << 20])
def test_survivors_that_read_there_raise_and_believe_nothing(number):
    with Workspace.start(n=3) as ws:
        (pid,) = (int(r.value) for r in ws.run("import os\nos.getpid()", ranks=[1]))
        threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
        with pytest.raises(RankFailure):
            ws.run(
                f"x = np.ones({number})\nwrong = 0\n"
                "try:\n"
                "    while True: wrong += (px.all_sum(x) != 3).any()\n"
                "except px.RankFailure as error: said = str(error)"
            )
        assert ws.pull("wrong", ranks=[0, 2]) == [0, 0]
        assert all("rank 1" in said and "SIGKILL" in said for said in ws.pull("said", ranks=[0, 2]))
        with pytest.raises(CellError, match="RankFailure: rank 1"):
            ws.run("px.all_sum(1)")
