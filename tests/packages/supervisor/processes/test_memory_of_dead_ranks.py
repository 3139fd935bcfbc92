"""A dead rank's shared memory goes back to the system at once, and harms no survivor."""

from __future__ import annotations

import contextlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.inside import root_pid
from support.promise import within
from support.waiting import wait_until

from phalanx.errors import CellError, RankFailure
from phalanx.workspace import Workspace

pytestmark = pytest.mark.slow

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


@pytest.fixture(scope="module")
def workspace():
    with Workspace.start(n=3) as ws:
        yield ws


@pytest.fixture
def ws(workspace):
    """A workspace whose ranks all live; a test may kill rank 1."""
    if any(rank.state == "dead" for rank in workspace.topology().ranks):
        workspace.restart(ranks=[1], force=True)
    return workspace


def pid_of(ws, rank):
    (result,) = ws.run("import os\nos.getpid()", ranks=[rank])
    return int(result.value)


def check_given_back(ws, rank):
    """Hold the memory of a rank that was killed just now to the time in which it goes back."""
    with within():
        wait_until(lambda: memory_of_ranks(root_pid(ws))[rank] <= LITTLE, "its memory back")
    memory = memory_of_ranks(root_pid(ws))
    assert all(nbytes > MUCH for at, nbytes in enumerate(memory) if at != rank)


@pytest.mark.promise
def test_a_dead_ranks_memory_is_given_back(ws):
    pid = pid_of(ws, 1)
    ws.run("x = np.ones(1 << 20)\nfor _ in range(3): px.all_sum(x)")
    assert min(memory_of_ranks(root_pid(ws))) > MUCH
    os.kill(pid, signal.SIGKILL)
    check_given_back(ws, 1)


@pytest.mark.promise
@pytest.mark.parametrize("number", [1 << 10, 1 << 20])
def test_survivors_that_read_there_raise_and_believe_nothing(ws, tmp_path, number):
    begun = tmp_path / "begun"

    def kill_when_begun(pid):
        wait_until(begun.exists, "operations of all ranks")
        os.kill(pid, signal.SIGKILL)

    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill_when_begun, pid_of(ws, 1))
        with pytest.raises(RankFailure):
            ws.run(
                f"x = np.ones({number})\nwrong = n = 0\n"
                "try:\n"
                "    while True:\n"
                "        wrong += (px.all_sum(x) != 3).any()\n"
                "        n += 1\n"
                f"        if n == 10 and rank == 0: open({str(begun)!r}, 'w').close()\n"
                "except px.RankFailure as error: said = str(error)"
            )
        killed.result()
    if number * 8 > MUCH:
        check_given_back(ws, 1)
    assert ws.pull("wrong", ranks=[0, 2]) == [0, 0]
    assert all("rank 1" in said and "SIGKILL" in said for said in ws.pull("said", ranks=[0, 2]))
    with pytest.raises(CellError, match="RankFailure: rank 1"):
        ws.run("px.all_sum(1)")
