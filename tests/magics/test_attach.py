"""`%distributed attach`: kernels that are killed or restarted, and others that come to the ranks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from kernel_driver import KernelDriver
from patience import ASKED_TOGETHER, TOGETHER
from processes import wait_gone

from phalanx.workspace import parse_ranks

pytestmark = pytest.mark.slow

PATIENCE_S = 20.0


@pytest.fixture
def folder(tmp_path):
    """A runtime folder of a test's own; what is still in it is stopped."""
    env = {"XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    yield env
    names = [path.stem for path in tmp_path.glob("phalanx/*.json")]
    code = "import sys, phalanx.workspace as w\nfor name in sys.argv[1:]: w.stop_workspace(name)"
    subprocess.run([sys.executable, "-c", code, *names], env={**os.environ, **env}, check=True)


@pytest.fixture
def kernel(folder):
    """Two ranks, named `ours`, that live for a minute without a kernel."""
    with KernelDriver(**folder) as driver:
        driver.run(f"%load_ext phalanx\n{TOGETHER}")
        driver.run("%distributed start -n 2 --name ours --linger 60")
        driver.run("%%distributed\nkept = rank * 10")
        yield driver


@pytest.fixture
def other(folder):
    with KernelDriver(**folder) as driver:
        driver.run(f"%load_ext phalanx\n{TOGETHER}")
        yield driver


def family(kernel: KernelDriver) -> list[psutil.Process]:
    """What a kernel has started: the root supervisor, the controller, the ranks."""
    return psutil.Process(kernel.pid).children(recursive=True)


def attach(driver: KernelDriver, words: str = "", **how):
    return driver.run(f"%distributed attach {words}", **how)


def said(driver: KernelDriver, words: str) -> str:
    """The one line that a user's mistake ends in."""
    return driver.run(words).text


def kept(driver: KernelDriver) -> str:
    return driver.run("%%distributed\nkept, px.all_sum(1)").text  # with the error, if it is one


ALL_KEPT = "[0] Out: (0, 2)\n[1] Out: (10, 2)\n"


def test_a_killed_kernel_is_followed_by_another(kernel, other):
    kernel.kill()
    result = attach(other)
    assert "ours" in result.stdout
    assert result.status == "ok"
    assert kept(other) == ALL_KEPT
    assert other.run("ws.pull('kept')").text == "[0, 10]\n"


def test_a_restarted_kernel_finds_its_ranks(kernel):
    kernel.restart()
    kernel.run(f"%load_ext phalanx\n{TOGETHER}")
    assert "ours" in kernel.run("%distributed list").stdout
    assert attach(kernel).status == "ok"
    assert kept(kernel) == ALL_KEPT


def test_a_shutdown_leaves_the_ranks_for_their_linger_time(kernel, other):
    kernel.close()
    assert attach(other).status == "ok"
    assert kept(other) == ALL_KEPT


STEPS = """%%distributed
import pathlib, time
for i in range(100_000):
    if i == 5: print("six", flush=True)
    if i > 5 and pathlib.Path(flag).exists(): break
    time.sleep(0.02)
print("through", rank)
"""


def start_steps(kernel: KernelDriver, flag) -> None:
    kernel.run(f"%%distributed\nflag = {str(flag)!r}")
    kernel.submit(STEPS).until(lambda result: "six" in result.stdout)


def test_a_cell_that_runs_is_joined_and_what_it_said_is_shown(kernel, other, tmp_path):
    code = STEPS.replace("six", "seen").replace(
        'print("through"', 'print("missed"); print("through"'
    )
    kernel.run(f"%%distributed\nflag = {str(tmp_path / 'flag')!r}")
    kernel.submit(code).until(lambda result: "seen" in result.stdout)
    kernel.kill()
    running = other.submit("%distributed attach")
    running.until(lambda result: "it is joined here" in result.stderr, PATIENCE_S)
    (tmp_path / "flag").touch()
    result = running.result(PATIENCE_S)
    assert "seen" not in result.stdout
    missed, *through = result.stdout.splitlines()[-3:]
    assert missed == "[0-1] missed"
    assert sorted(through) == ["[0] through 0", "[1] through 1"]
    assert kept(other) == ALL_KEPT


def test_a_joined_cell_is_stopped(kernel, other, tmp_path):
    start_steps(kernel, tmp_path / "never")
    kernel.kill()
    running = other.submit("%distributed attach")
    running.until(lambda result: "it is joined here" in result.stderr, PATIENCE_S)
    other.interrupt()
    result = running.result(PATIENCE_S)
    assert "KeyboardInterrupt" in result.error
    assert kept(other) == ALL_KEPT


def test_an_error_of_a_joined_cell_is_shown_whole(kernel, other, tmp_path):
    code = STEPS.replace('print("through", rank)', "if rank: 1 / 0")
    kernel.run(f"%%distributed\nflag = {str(tmp_path / 'flag')!r}")
    kernel.submit(code).until(lambda result: "six" in result.stdout)
    kernel.kill()
    running = other.submit("%distributed attach")
    running.until(lambda result: "it is joined here" in result.stderr, PATIENCE_S)
    (tmp_path / "flag").touch()
    result = running.result(PATIENCE_S)
    assert "rank 1: ZeroDivisionError: division by zero" in result.error
    assert "if rank" in re.sub(r"\x1b\[[\d;]*m", "", result.text)


def wait_idle(name: str, env: dict[str, str]) -> None:
    """Wait until no rank runs a cell, as one sees who watches."""
    code = f"""
import time
from phalanx.workspace import Workspace
with Workspace.attach({name!r}, watch=True) as ws:
    deadline = time.monotonic() + {PATIENCE_S}
    while any(rank.state == "busy" for rank in ws.topology().ranks):
        assert time.monotonic() < deadline
        time.sleep(0.02)
"""
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **env}, check=True)


def kill_and_wait(kernel: KernelDriver, folder: dict[str, str]) -> None:
    """Kill a kernel, and wait until its ranks' supervisor has seen that nobody is there.

    What the ranks show before that, it takes for seen.
    """
    kernel.kill()
    record = Path(folder["XDG_RUNTIME_DIR"], "phalanx", "ours.json")
    deadline = time.monotonic() + PATIENCE_S
    while json.loads(record.read_text())["owner_pid"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_cell_that_ended_meanwhile_is_told_of(kernel, other, folder, tmp_path):
    code = STEPS.replace('print("through", rank)', 'print("last words")\nif rank: 1 / 0')
    kernel.run(f"%%distributed\nflag = {str(tmp_path / 'flag')!r}")
    kernel.submit(code).until(lambda result: "six" in result.stdout)
    kill_and_wait(kernel, folder)
    (tmp_path / "flag").touch()
    wait_idle("ours", folder)
    result = attach(other)
    assert result.status == "ok"
    assert "has ended meanwhile: rank 0 well; rank 1 in ZeroDivisionError" in result.stderr
    # Together or not: the lines before these may have been shown of one rank only.
    labels = re.findall(r"^\[([0-9-]+)\] last words$", result.stdout, re.MULTILINE)
    assert sorted(rank for label in labels for rank in parse_ranks(label, 2)) == [0, 1], (
        result.stdout,
        result.stderr,
    )
    assert "division by zero" in result.stdout  # the traceback
    assert kept(other) == ALL_KEPT


def test_much_that_was_printed_is_cut_and_counted(kernel, other, folder, tmp_path):
    code = STEPS.replace('print("through", rank)', "for i in range(1000): print('line', i)")
    kernel.run(f"%%distributed\nflag = {str(tmp_path / 'flag')!r}")
    kernel.submit(code).until(lambda result: "six" in result.stdout)
    kill_and_wait(kernel, folder)
    (tmp_path / "flag").touch()
    wait_idle("ours", folder)
    result = attach(other)
    assert "[0-1] … 800 lines before this: %distributed output RANK\n" in result.stdout
    assert "[0-1] line 799\n" not in result.stdout
    assert "[0-1] line 800\n" in result.stdout
    assert "line 0\n" in other.run("%distributed output 1").stdout


def test_a_question_that_was_open_is_asked_again(kernel, other):
    kernel.run(ASKED_TOGETHER)
    other.run(ASKED_TOGETHER)
    code = "%%distributed\nfirst = input('first? ')\nsecond = input('second? ')\nfirst, second"
    kernel.submit(code, stdin=["one"]).until(lambda result: len(result.prompts) == 2)
    kernel.kill()
    result = attach(other, stdin=["two"])
    assert [prompt.text for prompt in result.prompts] == ["[0-1] second? "]
    assert "[0-1] Out: ('one', 'two')" in result.stdout


def test_a_rank_that_died_meanwhile_is_named_and_replaced(kernel, other):
    kernel.run("%%distributed --every-start\nkept = rank * 10; print('every')")
    pid = int(kernel.run("%%distributed --ranks 1\nimport os; os.getpid()").stdout.split()[-1])
    kernel.kill()
    os.kill(pid, signal.SIGKILL)
    assert wait_gone([psutil.Process(pid)] if psutil.pid_exists(pid) else [], PATIENCE_S) == []
    result = attach(other)
    assert re.search(
        r"rank 1 died at \d\d:\d\d \(killed by signal 9 \(SIGKILL\)\); "
        r"`%distributed restart 1` replaces it",
        result.stderr,
    )
    assert other.run("%%distributed\nkept").stdout == "[0] Out: 0\n"
    assert other.run("%distributed restart 1").stdout.startswith("[1] every\nrank 1 is new")
    assert other.run("%%distributed\nkept, px.all_sum(1)").stdout == ALL_KEPT


def test_nothing_is_left_when_nobody_came(folder):
    with KernelDriver(**folder) as kernel:
        kernel.run("%load_ext phalanx")
        kernel.run("%distributed start -n 1 --linger 0.3")
        processes = family(kernel)
        kernel.kill()
        assert wait_gone(processes, 0.3 + PATIENCE_S) == []


# -- two at once --------------------------------------------------------------------------------


def test_a_second_kernel_is_refused_and_may_watch_or_take(kernel, other):
    refused = attach(other, "ours")
    assert f"is used by process {kernel.pid}" in refused.text
    assert "--take" in refused.text
    assert attach(other, "ours --watch").status == "ok"
    assert "rank 1" in other.run("%distributed status").stdout
    kernel.run("%%distributed\nprint('for all to see')")
    assert "for all to see" in other.run("%distributed output 1").stdout
    for words in (
        "%%distributed\n1",
        "%distributed interrupt",
        "%distributed stop",
        "ws.pull('x')",
    ):
        assert "is only watched from here" in said(other, words)
    assert kept(kernel) == ALL_KEPT
    assert attach(other, "ours --take").status == "ok"
    assert kept(other) == ALL_KEPT
    taken = f"was taken over by process {other.pid}"
    for words in ("%%distributed\n1", "%distributed stop", "%distributed status"):
        assert taken in said(kernel, words)
    assert attach(kernel, "ours --take").status == "ok"
    assert kept(kernel) == ALL_KEPT
    assert kernel.run("%distributed stop").status == "ok"
    assert "no workspaces" in kernel.run("%distributed list").stdout


def test_a_cell_goes_on_under_who_takes_it(kernel, other, tmp_path):
    kernel.run(f"%%distributed\nflag = {str(tmp_path / 'flag')!r}")
    old = kernel.submit(STEPS)
    old.until(lambda result: "six" in result.stdout)
    new = other.submit("%distributed attach ours --take")
    new.until(lambda result: "it is joined here" in result.stderr, PATIENCE_S)
    assert f"was taken over by process {other.pid}" in old.result(PATIENCE_S).error
    (tmp_path / "flag").touch()
    through = new.result(PATIENCE_S).stdout.splitlines()[-2:]
    assert sorted(through) == ["[0] through 0", "[1] through 1"]


def test_detach_hands_over(kernel, other):
    assert kernel.run("%distributed detach").status == "ok"
    assert "free; ends in" in other.run("%distributed list").stdout
    assert attach(other).status == "ok"
    assert kept(other) == ALL_KEPT
    assert "there are no ranks yet" in said(kernel, "%distributed status")


def test_to_nothing_is_one_line(other):
    assert "there is no workspace to attach to; start one" in attach(other).text
    assert "there is no workspace 'mine'" in attach(other, "mine").text
    assert "cannot name a workspace" in attach(other, "../mine").text
    assert "taken or watched, not both" in attach(other, "x --take --watch").text


def test_a_watcher_follows_the_cell_that_runs(kernel, other, tmp_path):
    start_steps(kernel, tmp_path / "flag")
    watching = other.submit("%distributed attach ours --watch")
    watching.until(lambda result: "[0-1] six" in result.stdout, PATIENCE_S)
    assert "a cell runs on ranks 0-1; it is watched here" in watching.result_so_far.stderr
    (tmp_path / "flag").touch()
    result = watching.result(PATIENCE_S)
    assert sorted(result.stdout.splitlines()[-2:]) == ["[0] through 0", "[1] through 1"]
    assert "the cell has ended on ranks 0-1" in result.stderr
    assert kept(kernel) == ALL_KEPT
