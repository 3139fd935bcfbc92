"""Ranks that live are freed when one dies or freezes, in whatever they are doing."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import pytest
from support.programs.restarting import kill
from support.promise import BOUND_S, SILENCE_S, after_silence_s, check
from support.ranks.cells import BackgroundCell, wait_idle
from support.runs.tiers import deep_but
from support.waiting import wait_until

from phalanx.errors import DistributedError, RankFailure
from phalanx.workspace import View, Workspace

FREEZER = Path("/sys/fs/cgroup/freezer")

# Every rank but 2 is in all of it at once, each in a thread of its own; `said` is how that ended.
IN_ALL_OF_IT = """
import getpass, os, pathlib, signal, sys, threading, time
said, here = {}, pathlib.Path(%r)
def note(name, call):
    try:
        said[name] = "went on", repr(call()), 0.0
    except px.RankFailure as error:
        said[name] = error.rank, error.reason, time.monotonic()
    except BaseException as error:
        said[name] = type(error).__name__, str(error), 0.0
def wait_for_work():
    work = px.all_sum(np.ones(3), async_op=True)
    try:
        work.wait()
    finally:
        said["done"] = work.done()
def n_reading():  # only who waits for a line when another is told of the death hears of it too
    n = 0
    for frame in sys._current_frames().values():
        names = set()
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        n += {"next_line", "_wait"} <= names
    return n
def tell_when_ready():
    while n_reading() < 3:
        time.sleep(0.01)
    (here / f"ready{rank}").touch()
part = world.split(0)
if rank == 2:
    while len(list(here.glob("ready*"))) < 2:
        time.sleep(0.01)
    (here / "killed").write_text(repr(time.monotonic()))
    os.kill(os.getpid(), signal.%s)
else:
    calls = {
        "async": wait_for_work,
        "split": lambda: px.all_sum(np.ones(1_000_000), group=part),
        "recv": lambda: px.recv((3,), "float32", 2),
        "stdin": lambda: sys.stdin.readline(),
        "getpass": lambda: getpass.getpass("key? "),
    }
    threads = [threading.Thread(target=note, args=item) for item in calls.items()]
    threads.append(threading.Thread(target=tell_when_ready))
    for thread in threads:
        thread.start()
    note("input", lambda: input("who? "))
    for thread in threads:
        thread.join()
    note("next", lambda: px.all_sum(1))
"""


class FakePrompt:
    """Answers when told to."""

    def __init__(self):
        self.line = None
        self.is_open = True

    def poll(self, timeout_s):
        line, self.line = self.line, None
        return None if line is None else (line,)

    def close(self):
        self.is_open = False


class FakeView(View):
    """Keeps the prompts and what was said; ``on_ask`` is called with each prompt."""

    def __init__(self, on_ask=lambda prompt: None):
        self.prompts = []
        self.said = []
        self.on_ask = on_ask

    def ask(self, question):
        self.prompts.append(FakePrompt())
        self.on_ask(self.prompts[-1])
        return self.prompts[-1]

    def notice(self, text):
        self.said.append(text)

    def lines(self, stream, lines):
        self.said += [line.strip() for _, line in lines]


@pytest.fixture(scope="module", params=deep_but(["any"], ["any", "tcp"]))
def ws(request):
    """Three ranks that the tests of this file share, and that a silence makes missed soon."""
    with Workspace.start(n=3, silence=SILENCE_S, transport=request.param) as workspace:
        yield workspace


def check_freed(ws, folder, words, bound_s):
    """Check that all calls of ranks 0 and 1 have told of rank 2, in time."""
    killed_s = float((folder / "killed").read_text())
    for said in ws.pull("said", ranks=[0, 1]):
        assert said.pop("done") is True
        assert said.keys() == {"async", "split", "recv", "stdin", "getpass", "input", "next"}
        for name, (rank, reason, at_s) in said.items():
            assert rank == 2, (name, rank, reason)
            assert words in reason, (name, reason)
            check(at_s - killed_s, bound_s)


@pytest.mark.slow
@pytest.mark.promise
def test_a_death_frees_everyone_in_whatever_they_do(breakable, tmp_path):
    ws, view = breakable, FakeView()
    with pytest.raises(DistributedError):
        ws.run(IN_ALL_OF_IT % (str(tmp_path), "SIGKILL"), view=view)
    assert not any(prompt.is_open for prompt in view.prompts)
    check_freed(ws, tmp_path, "killed by signal 9 (SIGKILL)", BOUND_S)
    # A cell without the dead may ask: what it was begun with is no news.
    again = FakeView(lambda prompt: setattr(prompt, "line", "yes"))
    (result,) = ws.run("input('go on? ')", ranks=[0], view=again)
    assert result.value == "'yes'"


@pytest.mark.slow
def test_a_rank_that_is_told_to_end_is_named_by_the_cell_that_it_ends(breakable):
    code = """
import os, signal, time
if rank == 1:
    os.kill(os.getpid(), signal.SIGTERM)
    while True: time.sleep(1)
px.all_sum(1)"""
    with pytest.raises(RankFailure, match=r"rank 1 on .*: killed by signal 15 \(SIGTERM\)"):
        breakable.run(code)


@pytest.mark.slow
@pytest.mark.promise
def test_a_freeze_frees_everyone_and_the_thawed_are_good_again(breakable, tmp_path):
    ws = breakable
    code = IN_ALL_OF_IT % (str(tmp_path), "SIGSTOP")
    with BackgroundCell(ws, code, view=FakeView()) as cell:
        wait_until((tmp_path / "killed").exists, "rank 2 is about to be frozen")
        wait_idle(ws, 0, 1)
        os.kill(ws.topology().ranks[2].pid, signal.SIGCONT)
    assert cell.error is None
    words = f"has been stopped (frozen) for {SILENCE_S:g} s"
    check_freed(ws, tmp_path, words, after_silence_s(SILENCE_S))
    assert [result.value for result in ws.run("px.all_sum(1)")] == ["3"] * 3


@pytest.fixture
def freezer():
    """A control group whose processes the kernel freezes without a word in their state."""
    group = FREEZER / f"phalanx-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a freezer of version 1 here: {error}")
    yield group
    (group / "freezer.state").write_text("THAWED")
    for pid in (group / "cgroup.procs").read_text().split():
        (FREEZER / "cgroup.procs").write_text(pid)
    wait_until(lambda: not (group / "cgroup.procs").read_text(), "the group is empty")
    group.rmdir()


@pytest.mark.slow
@pytest.mark.promise
def test_a_process_that_the_kernel_does_not_call_stopped_is_missed_by_its_heart(
    ws, freezer, tmp_path
):
    (freezer / "cgroup.procs").write_text(str(ws.topology().ranks[1].pid))
    code = (
        "import pathlib, time\nbegin = time.monotonic()\ntry:\n    px.all_sum(1)\n"
        "except px.RankFailure as error:\n    got = str(error), time.monotonic() - begin\n"
        f"    pathlib.Path({str(tmp_path)!r}, str(rank)).touch()"
    )
    (freezer / "freezer.state").write_text("FROZEN")
    with BackgroundCell(ws, code) as cell:
        freed = {tmp_path / "0", tmp_path / "2"}
        wait_until(lambda: freed <= set(tmp_path.iterdir()), "ranks 0 and 2 are freed")
        (freezer / "freezer.state").write_text("THAWED")
    assert cell.error is None
    text, took_s = ws.pull("got", ranks=0)
    assert "rank 1" in text
    assert f"has given no sign of life for {SILENCE_S:g} s (frozen)" in text
    check(took_s, after_silence_s(SILENCE_S))
    assert [result.value for result in ws.run("px.all_sum(1)")] == ["3"] * 3


@pytest.mark.slow
def test_a_rank_that_holds_pythons_lock_is_busy_and_not_frozen(ws):
    # PyDLL keeps the lock while it calls: nothing of Python runs for longer than the silence limit.
    hold = f"import ctypes\nif rank: ctypes.PyDLL(None).usleep({1.5 * SILENCE_S * 1e6:.0f})"
    assert [result.value for result in ws.run(f"{hold}\npx.all_sum(1)")] == ["3"] * 3


def test_a_debugger_stays_open_when_a_rank_dies(breakable):
    ws, view = breakable, FakeView()
    code = (
        "x = 41\nif rank == 1:\n    input('wait ')\nelse:\n"
        "    import pdb; pdb.set_trace()\nprint('after')"
    )
    pid = ws.topology().ranks[1].pid

    def person():
        wait_until(lambda: view.prompts, "a prompt is open")
        for rank in (0, 1):
            wait_until(lambda rank=rank: "input" in ws.stacks(rank)[rank], f"rank {rank} asks")
        os.kill(pid, signal.SIGKILL)
        told = "the death is told of"
        wait_until(lambda: any("rank 1 was killed" in text for text in view.said), told)
        for command in ("p x + 1", "c"):
            wait_until(
                lambda: view.prompts[-1].is_open and view.prompts[-1].line is None, "a prompt"
            )
            prompt = view.prompts[-1]
            prompt.line = command
            wait_until(lambda prompt=prompt: not prompt.is_open, "the prompt is closed")
            if command != "c":
                wait_until(lambda prompt=prompt: view.prompts[-1] is not prompt, "the next prompt")

    typing = threading.Thread(target=person)
    typing.start()
    with contextlib.suppress(DistributedError):
        ws.run(code, ranks=[0, 1], view=view)
    typing.join()
    assert "42" in view.said
    assert "after" in view.said


def test_an_idle_death_does_not_end_the_next_input(breakable):
    kill(breakable, 1)
    view = FakeView(lambda prompt: setattr(prompt, "line", "yes"))
    (result,) = breakable.run("input('go on? ')", ranks=[0], view=view)
    assert result.value == "'yes'"
