"""Workspaces of plain processes that others come to: what is kept, told, refused, and left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import msgspec
import psutil
import pytest
from processes import wait_gone

from phalanx.errors import CellError, DistributedError
from phalanx.supervisor import claim_name, find_record
from phalanx.supervisor._runtime_folder import RecordFile
from phalanx.workspace import QuietView, Workspace, list_workspaces, stop_workspace

pytestmark = pytest.mark.slow

BOUND_S = 2.0  # design.md section 5: on one machine

OWNER = """
import sys
from phalanx.workspace import Workspace
ws = Workspace.start(n=2, name="ours", linger=30, detach="detach" in sys.argv)
ws.run("kept = rank * 10")
print(ws._root.pid, flush=True)
exec(sys.stdin.read())
"""


class Shown(QuietView):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.notices: list[str] = []

    def lines(self, stream, lines):
        self.text += [f"{ranks} {line}" for ranks, line in lines]

    def notice(self, text):
        self.notices.append(text)


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield
    for info in list_workspaces():
        stop_workspace(info.name)


@contextlib.contextmanager
def owner(*words: str, then: str = ""):
    """A process that has started two ranks named `ours`, and their supervisor's pid."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            root = int(process.stdout.readline())
            process.stdin.write(then)
            yield process, psutil.Process(root)
        finally:
            process.kill()


def family(root: psutil.Process) -> list[psutil.Process]:
    return [root, *root.children(recursive=True)]


def wait_until(is_so, timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def values(ws: Workspace) -> list[str | None]:
    return [result.value for result in ws.run("kept")]


def test_who_attaches_and_goes_leaves_them_be():
    with owner() as (process, root):
        process.kill()
        process.wait()
        with Workspace.attach() as ws:
            assert ws.name == "ours"
            assert values(ws) == ["0", "10"]
            ws.run("kept += 1")
        with pytest.raises(DistributedError, match="was let go; %distributed attach ours"):
            ws.run("1")
        (info,) = Workspace.list()
        assert (info.name, info.owner_pid, info.size) == ("ours", 0, 2)
        assert info.ends_in_s == pytest.approx(30, abs=5)
        with Workspace.attach("ours") as ws:
            assert values(ws) == ["1", "11"]
            processes = family(root)
            ws.stop()
        assert wait_gone(processes, BOUND_S) == []
        assert Workspace.list() == ()


def test_a_normal_end_stops_the_ranks_of_a_script():
    with owner(then="") as (process, root):
        processes = family(root)
        process.stdin.close()
        assert process.wait(10) == 0
        assert wait_gone(processes, BOUND_S) == []


def test_detached_ranks_outlive_a_normal_end():
    with owner("detach") as (process, _):
        process.stdin.close()
        assert process.wait(10) == 0
        with Workspace.attach() as ws:
            assert values(ws) == ["0", "10"]


def test_the_clock_stops_when_somebody_comes():
    ws = Workspace.start(n=1, linger=0.5)
    processes = family(psutil.Process(ws._root.pid))
    ws.detach()
    with Workspace.attach(ws.name) as again:
        # Longer than the linger time: what must not happen has no sign to wait for.
        assert wait_gone(processes, 1.0) == processes
        assert [result.value for result in again.run("rank")] == ["0"]
    assert wait_gone(processes, 0.5 + BOUND_S) == []


def test_ranks_that_no_cell_has_run_on_are_in_one_world():
    with Workspace.start(n=3, detach=True) as ws:
        pass
    with Workspace.attach(ws.name) as again:
        assert [result.value for result in again.run("px.all_sum(1)")] == ["3"] * 3
        again.stop()


def test_one_owner_at_a_time_and_those_who_watch():
    with Workspace.start(n=2, name="mine", linger=0) as ws:
        with pytest.raises(DistributedError, match=f"is used by process {os.getpid()}; take it"):
            Workspace.attach("mine")
        with Workspace.attach("mine", watch=True) as watcher:
            ws.run("print('seen')")
            wait_until(lambda: watcher.output(1) == "seen\n")  # which comes on a way of its own
            assert watcher.topology().size == 2
            for call in (lambda: watcher.run("1"), watcher.stop, lambda: watcher.pull("x")):
                with pytest.raises(DistributedError, match="'mine' is only watched from here"):
                    call()
        shown = Shown()
        ws.make_view = lambda: shown
        with Workspace.attach("mine", take=True) as taker:
            assert [result.value for result in taker.run("rank")] == ["0", "1"]
            text = f"the workspace 'mine' was taken over by process {os.getpid()}"
            with pytest.raises(DistributedError, match=text):
                ws.run("1")
            assert not ws.is_running
            wait_until(lambda: shown.notices)
            assert shown.notices[0].startswith(text)
            taker.stop()


def test_who_runs_a_cell_when_it_is_taken_is_told():
    with Workspace.start(n=2, name="mine", linger=5) as ws:
        failed: list[BaseException] = []

        def run() -> None:
            try:
                ws.run("import threading; threading.Event().wait(60)")
            except DistributedError as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        while {rank.state for rank in ws.topology().ranks} != {"busy"}:
            pass
        taker = Workspace.attach("mine", take=True)
        thread.join(10)
        assert "was taken over" in str(failed[0])
        assert "was taken over" in ws.why_lost
        assert not ws.was_left  # but lost
        taker.interrupt()
        with pytest.raises(CellError, match="KeyboardInterrupt"):
            taker.join(view=Shown())
        assert not taker.was_left
        taker.stop()
        assert taker.was_left


def test_a_cell_that_was_announced_and_never_sent_holds_nobody_up():
    begun = "ws._root.begin_cell('lost', (0, 1)); print(flush=True)"
    # It is to be killed here: at an end of its own it would stop its ranks.
    with owner(then=f"{begun}; import signal; signal.pause()") as (process, _):
        process.stdin.close()
        process.stdout.readline()
        process.kill()
        process.wait()
        with Workspace.attach() as ws:
            with contextlib.suppress(CellError):
                ws.join()
            assert values(ws) == ["0", "10"]


def test_what_is_printed_between_attaching_and_joining_is_shown_once():
    with owner(
        then="ws.run('''import time\nfor i in range(200): print(i); time.sleep(.01)''')"
    ) as (
        process,
        _,
    ):
        process.stdin.close()
        with Workspace.attach("ours", watch=True) as watcher:
            while "5\n" not in watcher.output(0):
                time.sleep(0.01)
        process.kill()
        process.wait()
        with Workspace.attach() as ws:
            while "60\n" not in ws.output(0):
                time.sleep(0.01)
            shown = Shown()
            ws.join(view=shown)
            numbers = [int(line.rpartition(" ")[2]) for line in shown.text if "(0" in line]
            assert numbers == list(range(numbers[0], 200))


def test_a_rank_that_does_not_answer_is_named():
    with owner() as (process, root):
        pid = next(p.pid for p in root.children() if "_engine" in " ".join(p.cmdline()))
        process.kill()
        process.wait()
        os.kill(pid, signal.SIGSTOP)
        try:
            with Workspace.attach() as ws:
                shown = Shown()
                ws.join(view=shown)
                assert [notice for notice in shown.notices if "does not answer yet" in notice]
        finally:
            os.kill(pid, signal.SIGCONT)


def test_another_version_is_named():
    with Workspace.start(n=1, name="mine", linger=0):
        record = find_record("mine")
        assert record is not None
    # The same file, as another version's root would hold it.
    with claim_name("old", is_fixed=True) as claim:
        file = RecordFile(os.dup(claim.fd), str(claim.path))
    try:
        file.write(msgspec.structs.replace(record, name="old", version="0.0.1"))
        with pytest.raises(DistributedError, match="was started by phalanx 0.0.1, this is"):
            Workspace.attach("old")
        file.write(msgspec.structs.replace(record, name="old", is_stopping=True))
        with pytest.raises(DistributedError, match="'old' is being stopped"):
            Workspace.attach("old")
    finally:
        file.close()


def test_several_must_be_told_apart():
    with Workspace.start(n=1, name="a", linger=0), Workspace.start(n=1, name="b", linger=0):
        with pytest.raises(DistributedError, match="several workspaces, say which: a, b"):
            Workspace.attach()
        with pytest.raises(DistributedError, match="no workspace 'c'; there are: a, b"):
            Workspace.attach("c")
