"""Workspaces of plain processes that others come to: what is kept, told, refused, and left."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

import msgspec
import psutil
import pytest
from support.inside import ask_root, begin_cell_code, lifecycle, root_pid_code
from support.programs.processes import wait_gone
from support.promise import BOUND_S
from support.ranks.cells import BackgroundCell, wait_busy
from support.waiting import wait_until

from phalanx.errors import CellError, DistributedError
from phalanx.protocol import GetOutput, pack_frame
from phalanx.supervisor import find_root
from phalanx.supervisor.runtime_dir import claim_name
from phalanx.workspace import View, Workspace, list_workspaces, stop_workspace
from phalanx.workspace.lifecycle import Lifecycle

pytestmark = pytest.mark.slow

OWNER = f"""
import sys
from phalanx.workspace import Workspace
ws = Workspace.start(n=2, name="ours", linger=30, detach="detach" in sys.argv)
ws.run("kept = rank * 10")
print({root_pid_code("ws")}, flush=True)
exec(sys.stdin.read())
"""


class Shown(View):
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
    """Start a process that starts two ranks named `ours`; yield it and their supervisor."""
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


def values(ws: Workspace) -> list[str | None]:
    return [result.value for result in ws.run("kept")]


@pytest.mark.promise
def test_ranks_whose_owner_was_killed_go_on_for_the_next_owner():
    # The owner is killed while it waits: at an end of its own it would stop its ranks.
    announced = f"{begin_cell_code('ws')}; print(flush=True)"
    with owner(then=f"{announced}; import signal; signal.pause()") as (process, root):
        process.stdin.close()
        process.stdout.readline()
        process.kill()
        process.wait()
        # A cell that was announced and never sent holds nobody up.
        with Workspace.attach() as ws:
            assert ws.name == "ours"
            with contextlib.suppress(CellError):
                ws.join()
            assert values(ws) == ["0", "10"]
            ws.run("kept += 1")
        with pytest.raises(DistributedError, match="was let go; %distributed attach ours"):
            ws.run("1")
        (info,) = Workspace.list()
        assert (info.name, info.owner_pid, info.size) == ("ours", 0, 2)
        assert 10 < info.ends_in_s <= 30
        # A rank that does not answer is named.
        rank = psutil.Process(
            next(p.pid for p in root.children() if " rank-" in " ".join(p.cmdline()))
        )
        rank.suspend()
        try:
            with Workspace.attach() as ws:
                shown = Shown()
                ws.join(view=shown)
                assert [notice for notice in shown.notices if "does not answer yet" in notice]
        finally:
            rank.resume()
        with Workspace.attach("ours") as ws:
            assert values(ws) == ["1", "11"]
            processes = family(root)
            ws.stop()
        assert wait_gone(processes, BOUND_S) == []
        assert Workspace.list() == ()


@pytest.mark.promise
def test_a_normal_end_stops_the_ranks_of_a_script():
    with owner(then="") as (process, root):
        processes = family(root)
        process.stdin.close()
        assert process.wait(BOUND_S + 10) == 0
        assert wait_gone(processes, BOUND_S) == []


def test_detached_ranks_outlive_a_normal_end():
    with owner("detach") as (process, _):
        process.stdin.close()
        assert process.wait(60) == 0
        with Workspace.attach() as ws:
            assert values(ws) == ["0", "10"]


def test_ranks_that_no_cell_has_run_on_are_in_one_world():
    with Workspace.start(n=2, detach=True) as ws:
        pass
    with Workspace.attach(ws.name) as again:
        assert [result.value for result in again.run("px.all_sum(1)")] == ["2"] * 2
        again.stop()


def test_one_owner_at_a_time(monkeypatch):
    threads = set(threading.enumerate())
    was_left = set()

    def watched(its: Lifecycle, name: str, value: object) -> None:
        object.__setattr__(its, name, value)
        if its is lifecycle(ws):
            was_left.add(its.was_left)

    with Workspace.start(n=2, name="mine", linger=5) as ws:
        with pytest.raises(DistributedError, match=f"is used by process {os.getpid()}; take it"):
            Workspace.attach("mine")
        shown = Shown()
        ws.make_view = lambda: shown
        with monkeypatch.context() as patched:
            patched.setattr(Lifecycle, "__setattr__", watched)
            taker = Workspace.attach("mine", take=True)
            assert [result.value for result in taker.run("rank")] == ["0", "1"]
            text = f"the workspace 'mine' was taken over by process {os.getpid()}"
            wait_until(lambda: not ws.is_running, "who had it has heard")
            with pytest.raises(DistributedError, match=text):
                ws.run("1")
            wait_until(lambda: shown.notices, "it is told that it was taken over")
            assert shown.notices[0].startswith(text)
        assert was_left == {False}  # at no moment: a still picture may ask at any
    # Who runs a cell when it is taken is told.
    with BackgroundCell(taker, "import threading; threading.Event().wait(60)") as cell:
        wait_busy(taker)
        second = Workspace.attach("mine", take=True)
        cell.wait()
    assert isinstance(cell.error, DistributedError)
    assert "was taken over" in str(cell.error)
    assert "was taken over" in taker.why_lost
    assert not taker.was_left  # but lost
    taker.stop()
    second.interrupt()
    with pytest.raises(CellError, match="KeyboardInterrupt"):
        second.join(view=Shown())
    assert not second.was_left
    second.stop()
    assert second.was_left
    # Nor do those that lost it leave any: who had started the root sees it end at the same time.
    wait_until(lambda: set(threading.enumerate()) <= threads, "the threads have ended")


def test_what_is_printed_between_attaching_and_joining_is_shown_once(tmp_path):
    class Joined(Shown):
        def lines(self, stream, lines):
            super().lines(stream, lines)
            (tmp_path / "150").touch()

    # It waits twice: for who attaches, and for who joins and is shown what was printed before.
    code = (
        "import os, time\nfor i in range(200):\n    print(i)\n"
        f"    at = f'{tmp_path}/{{i}}'\n"
        "    while i in (100, 150) and not os.path.exists(at): time.sleep(0.01)"
    )
    with owner(then=f"ws.run({code!r})") as (process, _):
        process.stdin.close()
        wait_until(lambda: b"5\n" in ask_root("ours", GetOutput(0)).text, "the cell has begun")
        process.kill()
        process.wait()
        with Workspace.attach() as ws:
            (tmp_path / "100").touch()
            wait_until(lambda: "150\n" in ws.output(0), "it prints on")
            shown = Joined()
            ws.join(view=shown)
            numbers = [int(line.rpartition(" ")[2]) for line in shown.text if "(0" in line]
            assert numbers == list(range(numbers[0], 200))


def test_several_must_be_told_apart_and_another_version_is_named():
    with (
        Workspace.start(n=1, name="a", linger=0),
        Workspace.start(n=1, name="b", linger=0),
    ):
        with pytest.raises(DistributedError, match="several workspaces, say which: a, b"):
            Workspace.attach()
        with pytest.raises(DistributedError, match="no workspace 'c'; there are: a, b"):
            Workspace.attach("c")
        root = find_root("a")
        assert root is not None
        root.abandon()
    # The same word as another version's root would say it.
    for told, why in [
        ({"version": "0.0.1"}, "was started by phalanx 0.0.1, this is"),
        ({"is_stopping": True}, "'old' is being stopped"),
    ]:
        claim = claim_name("old", is_fixed=True)
        word = pack_frame(msgspec.structs.replace(root.record, name="old", **told))

        def say(sock=claim.sock, word=word):
            with sock.accept()[0] as client:
                client.sendall(word)

        thread = threading.Thread(target=say)
        thread.start()
        with pytest.raises(DistributedError, match=why):
            Workspace.attach("old")
        thread.join()
        claim.release()
        claim.sock.close()
