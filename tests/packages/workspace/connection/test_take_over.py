"""Who comes to ranks that another client has left: what is told, kept, and formed anew."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading

import psutil
import pytest
from support.inside import ask_root, root_client
from support.programs.restarting import Notices, assert_sound, kill, pids, values
from support.promise import PATIENCE_S
from support.ranks.cells import BackgroundCell, wait_busy
from support.waiting import wait_until

from phalanx.errors import CellError, DistributedError
from phalanx.protocol import GetTopology, RankInfo
from phalanx.workspace import Workspace, list_workspaces, stop_workspace
from phalanx.workspace.cells.attach import AttachSync
from phalanx.workspace.cells.cell import Cell
from phalanx.workspace.cells.runner import CellRunner

pytestmark = pytest.mark.slow

OWNER = """
from phalanx.workspace import Workspace
import sys
ws = Workspace.start(n=2, name="ours", linger=30, auto_restart="auto" in sys.argv)
{then}
print(flush=True)
input()
"""
FAIL = "px.all_sum(np.ones(1 + rank))"  # it ends the epoch on all ranks


@contextlib.contextmanager
def only_in(folder):
    """Keep workspaces in a folder of their own, and stop those that are left there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        # Where those without that variable are: of other tests, which run at the same time.
        patch.setenv("TMPDIR", str(folder))
        patch.setattr("tempfile.tempdir", str(folder))
        yield
        for info in list_workspaces():
            stop_workspace(info.name)


@pytest.fixture
def _folder(tmp_path):
    with only_in(tmp_path):
        yield


class Taken:
    """A workspace that the tests of this file take over from each other."""

    def __init__(self):
        self.ws = Workspace.start(n=2, name="ours", linger=0)

    def fail(self):
        """Have the epoch end, and the next one begun for a cell that nobody sends."""
        with pytest.raises(CellError):
            self.ws.run(FAIL)
        assert root_client(self.ws).begin_cell("lost", (0, 1)).reform

    def attach(self):
        """Take the ranks over, as another client does."""
        before, self.ws = self.ws, Workspace.attach("ours", take=True)
        wait_until(lambda: before.why_lost, "the client before knows that it was taken over")
        before.stop()  # it is not its own any more: that ends its thread
        view = Notices()
        self.ws.make_view = lambda: view
        return self.ws


@pytest.fixture(scope="module")
def _shared(tmp_path_factory):
    with only_in(tmp_path_factory.mktemp("runtime")):
        taken = Taken()
        yield taken
        taken.ws.stop()


@pytest.fixture
def taken(_shared):
    """Two ranks that a test may take over."""
    return _shared


def left_by(then: str, *words: str) -> None:
    """A process has started two ranks named `ours`, has done something, and was killed."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER.format(then=then), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        said = process.stdout.readline()
        process.kill()
    assert said == b"\n"


def rank_1() -> RankInfo:
    """Return how rank 1 of a workspace without an owner is."""
    return ask_root("ours", GetTopology()).topology.ranks[1]


def come(**options) -> tuple[Workspace, Notices]:
    ws, view = Workspace.attach("ours", **options), Notices()
    ws.make_view = lambda: view
    ws.join()
    return ws, view


@pytest.mark.usefixtures("_folder")
def test_cells_of_every_start_outlive_who_ran_them():
    left_by(
        "ws.run('order = [1]', every_start=True)\n"
        "ws.run('order.append(2)', every_start=True)\n"
        "ws.run('only_here = 1', ranks=[0], every_start=True)\n"
        "ws.run('order = [1]', every_start=True)\n"
        "ws.run('order.append(3)', every_start=True)"
    )
    ws, _ = come()
    with ws:
        assert values(ws, "order") == ["[1, 3]"] * 2
        kill(ws, 1)
        with pytest.raises(CellError, match="order"):  # of the one that came first now
            ws.restart(1)
        assert values(ws, "(order, 'only_here' in globals())", ranks=[1]) == ["([1, 3], False)"]
        assert_sound(ws)
        ws.stop()


@pytest.mark.usefixtures("_folder")
def test_a_rank_that_was_replaced_meanwhile_is_told_of_and_prepared():
    left_by("ws.run('every = rank + 10', every_start=True)", "auto")
    old = rank_1().pid
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: rank_1().pid != old, "rank 1 is replaced")
    wait_until(lambda: rank_1().state == "idle", "rank 1 is up")
    ws, view = come()
    with ws:
        (line,) = view.texts
        at = r"\d\d:\d\d"
        assert re.fullmatch(
            rf"rank 1 died at {at} \(killed by signal 9 \(SIGKILL\)\) "
            rf"and was replaced at {at}: it is new",
            line,
        )
        assert values(ws, "(every, rank, size, px.all_sum(1))") == [
            "(10, 0, 2, 2)",
            "(11, 1, 2, 2)",
        ]
        assert view.texts == [line]
    ws, view = come()  # once is enough
    with ws:
        assert view.texts == []
        ws.stop()


@pytest.mark.usefixtures("_folder")
def test_ranks_whose_client_died_before_they_met_are_in_one_world(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(CellRunner, "_enter", lambda self: None)
        first = Workspace.start(n=2, name="ours", linger=0)
    with first:
        ws, _ = come(take=True)
        with ws:
            assert values(ws, "(rank, size)") == ["(0, 2)", "(1, 2)"]
            assert_sound(ws)
            ws.stop()


def test_an_epoch_that_began_for_a_client_that_has_gone_is_entered_by_all(taken):
    taken.fail()
    ws = taken.attach()
    ws.join()
    assert_sound(ws)


def test_a_rank_that_returns_while_somebody_comes_is_there(taken, monkeypatch):
    first = taken.ws
    old = pids(first)[1]

    def restart():
        with contextlib.suppress(DistributedError):  # it is taken away meanwhile
            first.restart(1, force=True)

    thread = threading.Thread(target=restart)
    thread.start()
    wait_until(lambda: pids(first)[1] != old, "the new rank is there")
    new = psutil.Process(pids(first)[1])
    new.suspend()

    class Slow(AttachSync):
        """The rank returns between the last word on how things stand and what follows."""

        def __init__(self, dispatch, root, size):
            super().__init__(dispatch, root, size)
            assert [lost.rank for lost in self.status.deaths] == [1]
            new.resume()
            wait_until(lambda: root.topology().ranks[1].state == "idle", "rank 1 is up")

    monkeypatch.setattr("phalanx.workspace.cells.runner.AttachSync", Slow)
    ws = taken.attach()
    ws.join()
    thread.join(PATIENCE_S)
    assert_sound(ws)


def test_a_cell_that_was_joined_is_over_though_its_idle_status_was_lost(
    taken, monkeypatch, tmp_path
):
    lost = []
    take = Cell.on_iopub

    def take_some(cell, rank, message):
        if (
            cell.is_attached
            and rank == 1
            and not lost
            and message["content"].get("execution_state") == "idle"
        ):
            lost.append(message)
        else:
            take(cell, rank, message)

    monkeypatch.setattr(Cell, "on_iopub", take_some)
    go = tmp_path / "go"
    code = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nkept = 1"
    with BackgroundCell(taken.ws, code) as cell:
        wait_busy(taken.ws)
        ws = taken.attach()
        cell.wait()
    assert "was taken over" in str(cell.error)
    go.touch()
    ws.join()
    assert len(lost) == 1
    assert values(ws, "kept") == ["1", "1"]
