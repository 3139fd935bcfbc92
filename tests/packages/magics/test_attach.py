"""Attach to ranks from other kernels: after a kill, a restart, a shutdown, or while in use.

Each test takes over the kernels and the ranks of the test before.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from support.inside import ask_root, root_pid_code
from support.notebooks.kernel_driver import KernelDriver, RunningCell
from support.patience import ASKED_TOGETHER, TOGETHER
from support.programs.processes import wait_gone
from support.waiting import wait_until

from phalanx.protocol import GetTopology
from phalanx.workspace import free_workspaces, list_workspaces, stop_workspace

pytestmark = pytest.mark.slow

ALL_KEPT = "[0] Out: (0, 2)\n[1] Out: (10, 2)\n"


class Notebooks:
    """Two kernels and ranks named `ours`, in a runtime folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kernels: list[KernelDriver] = []

    def owner_and_other(self) -> tuple[KernelDriver, KernelDriver]:
        """Return the kernel that owns two idle ranks, and one without ranks."""
        owner, other = self.without_ranks(2)
        if owner.run("%distributed attach ours").status != "ok":
            started = owner.run("%distributed start -n 2 --name ours --linger 60")
            assert started.status == "ok", started.text
        owner.run("%%distributed\nkept = rank * 10")
        assert kept(owner) == ALL_KEPT
        return owner, other

    def without_ranks(self, n: int) -> list[KernelDriver]:
        """Return ``n`` kernels with the extension that use no ranks."""
        living = [kernel for kernel in self._kernels if kernel.is_alive()]
        for kernel in set(self._kernels) - set(living):
            kernel.close()
        for kernel in living:
            kernel.run("%distributed detach")  # a mistake where there is nothing to detach
        while len(living) < n:
            living.append(KernelDriver(XDG_RUNTIME_DIR=f"{self._folder}", TMPDIR=f"{self._folder}"))
            load(living[-1])
        self._kernels = living
        return living[:n]

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Have this process find the ranks, too."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_RUNTIME_DIR", str(self._folder))
            patch.setenv("TMPDIR", str(self._folder))
            patch.setattr("tempfile.tempdir", str(self._folder))
            yield self._folder

    def wait_for_ranks(self, *states: str) -> None:
        """Wait until the ranks are in these states, also while no process owns them."""

        def found() -> tuple[str, ...]:
            topology = ask_root("ours", GetTopology()).topology
            return tuple(rank.state for rank in topology.ranks)

        with self.folder():
            wait_until(lambda: found() == states, f"{states}")

    def wait_free(self) -> None:
        """Wait until the supervisor of the ranks has seen that their kernel is gone.

        Before that, nobody else can attach, and it takes what the ranks show for seen.
        """
        with self.folder():
            wait_until(lambda: free_workspaces() == ("ours",), "the ranks are free")

    def kill(self, kernel: KernelDriver) -> None:
        """Kill a kernel, and wait until its ranks are free."""
        kernel.kill()
        self.wait_free()

    def close(self) -> None:
        """End the kernels and their ranks; idempotent."""
        for kernel in self._kernels:
            kernel.close()
        self._kernels = []
        with self.folder():
            for info in list_workspaces():
                stop_workspace(info.name)


@pytest.fixture(scope="module")
def all_notebooks(tmp_path_factory):
    made = Notebooks(tmp_path_factory.mktemp("runtime"))
    yield made
    made.close()


@pytest.fixture
def notebooks(all_notebooks, request):
    """The same, made anew after a test that has failed."""
    n_failed = request.session.testsfailed
    yield all_notebooks
    if request.session.testsfailed > n_failed:
        all_notebooks.close()


@pytest.fixture
def pair(notebooks):
    return notebooks.owner_and_other()


def load(kernel: KernelDriver) -> None:
    loaded = kernel.run(f"%load_ext phalanx\n{TOGETHER}\n{ASKED_TOGETHER}")
    assert loaded.status == "ok", loaded.text


def attach(driver: KernelDriver, words: str = "", **how):
    return driver.run(f"%distributed attach {words}", **how)


def kept(driver: KernelDriver) -> str:
    return driver.run("%%distributed\nkept, px.all_sum(1)").text  # with the error, if it is one


def begin_steps(kernel: KernelDriver, flag: Path, then: str) -> RunningCell:
    """Run a cell that says "begun" on both ranks, and then waits for a file."""
    cell = kernel.submit(f"""%%distributed
import pathlib, time
print("begun", flush=True)
while not pathlib.Path({str(flag)!r}).exists(): time.sleep(0.02)
{then}
""")
    cell.until(lambda result: "[0-1] begun" in result.stdout)
    return cell


AT_EXIT = "%%distributed\nimport atexit\natexit.register(open, f'{folder}/atexit{{rank}}', 'w')"
THROUGH = 'print("through", rank)'
BOTH_THROUGH = ["[0] through 0", "[1] through 1"]


# -- two at once --------------------------------------------------------------------------------


def test_a_second_kernel_is_refused_and_may_take(pair):
    kernel, other = pair
    refused = attach(other, "ours")
    assert f"is used by process {kernel.pid}" in refused.text
    assert "--take" in refused.text
    assert kept(kernel) == ALL_KEPT
    assert attach(other, "ours --take").status == "ok"
    assert kept(other) == ALL_KEPT
    taken = f"was taken over by process {other.pid}"
    for words in ("%%distributed\n1", "%distributed stop", "%distributed status"):
        assert taken in kernel.run(words).text
    assert attach(kernel, "ours --take").status == "ok"
    assert kept(kernel) == ALL_KEPT


def test_a_cell_goes_on_under_who_takes_it_and_its_error_is_shown_whole(pair, tmp_path):
    kernel, other = pair
    old = begin_steps(kernel, tmp_path / "flag", f"{THROUGH}\nif rank: 1 / 0")
    new = other.submit("%distributed attach ours --take")
    new.until(lambda result: "it is joined here" in result.stderr)
    assert f"was taken over by process {other.pid}" in old.result().error
    (tmp_path / "flag").touch()
    result = new.result()
    assert sorted(result.stdout.splitlines()[-2:]) == BOTH_THROUGH
    assert "rank 1: ZeroDivisionError: division by zero" in result.error
    assert "if rank" in re.sub(r"\x1b\[[\d;]*m", "", result.text)


def test_a_joined_cell_is_stopped(pair, tmp_path):
    kernel, other = pair
    begin_steps(kernel, tmp_path / "never", THROUGH)
    running = other.submit("%distributed attach ours --take")
    # The status line: the cell is waited for. A stop before that ends the attaching alone.
    running.until(lambda result: "running 0-1" in result.text)
    other.interrupt()
    assert "KeyboardInterrupt" in running.result().error
    assert kept(other) == ALL_KEPT


# -- who goes in order --------------------------------------------------------------------------


def test_detach_hands_over(pair):
    kernel, other = pair
    detached = kernel.run("%distributed detach")
    assert detached.stdout == (
        "let go of the 2 ranks of 'ours'; within their --linger time, "
        "%distributed attach ours comes back to them\n"
    )
    assert kernel.run("ws").text == "Workspace('ours', size=2, detached)\n"
    assert "free; ends in" in other.run("%distributed list").stdout
    for words in ("%%distributed\nkept", "%distributed", "%autodistributed on"):
        assert "'ours' is free: take it up with %distributed attach ours" in kernel.run(words).text
    assert attach(other).status == "ok"
    assert kept(other) == ALL_KEPT
    assert "there are no ranks yet" in kernel.run("%distributed status").text


def test_a_restarted_kernel_finds_its_ranks(notebooks, pair):
    kernel, _ = pair
    kernel.restart()
    load(kernel)
    notebooks.wait_free()
    assert "%distributed attach ours" in kernel.run("%%distributed\nkept").text
    assert attach(kernel).status == "ok"
    assert kept(kernel) == ALL_KEPT


def family(kernel: KernelDriver) -> list[psutil.Process]:
    """Return the supervisor of the kernel's ranks and what it started."""
    root = psutil.Process(int(kernel.run(f"print({root_pid_code('ws')})").stdout))
    return [root, *root.children(recursive=True)]


def test_an_orderly_shutdown_ends_the_ranks(pair, tmp_path):
    """Also those that the kernel has attached to, as after a restart."""
    kernel, other = pair
    assert kernel.run("%distributed detach").status == "ok"
    assert attach(kernel).status == "ok"
    processes = family(kernel)
    assert len(processes) >= 4  # the supervisor, the controller, two ranks
    kernel.run(AT_EXIT.format(folder=str(tmp_path)))
    kernel.close()
    assert wait_gone(processes) == []
    assert {path.name for path in tmp_path.iterdir()} == {"atexit0", "atexit1"}
    assert other.run("%distributed list").stdout == "no workspaces\n"


def test_a_shutdown_ends_the_ranks_while_the_kernel_runs_a_cell_that_does_not_end(pair, tmp_path):
    """Such a kernel is killed by its front end a moment later, which alone would leave the ranks."""
    kernel, _ = pair
    processes = family(kernel)
    kernel.run(AT_EXIT.format(folder=str(tmp_path)))
    begin_steps(kernel, tmp_path / "never", THROUGH)
    kernel.ask("shutdown_request", {"restart": False}, channel="control")
    assert wait_gone(processes) == []
    assert {path.name for path in tmp_path.iterdir()} == {"atexit0", "atexit1"}
    kernel.close()


def test_a_shutdown_leaves_ranks_that_were_started_with_detach(notebooks):
    kernel, other = notebooks.without_ranks(2)
    assert kernel.run("%distributed start -n 1 --name apart --linger 60 --detach").status == "ok"
    assert kernel.run("%distributed detach\n%distributed attach apart").status == "ok"
    processes = family(kernel)
    kernel.close()
    assert attach(other, "apart").status == "ok"
    assert other.run("%distributed stop").status == "ok"
    assert wait_gone(processes) == []


# -- who is killed ------------------------------------------------------------------------------


def test_a_cell_that_runs_is_joined_and_what_it_said_is_shown(notebooks, pair, tmp_path):
    kernel, other = pair
    begin_steps(kernel, tmp_path / "flag", f"print('missed'); {THROUGH}")
    notebooks.kill(kernel)
    running = other.submit("%distributed attach")
    running.until(lambda result: "it is joined here" in result.stderr)
    (tmp_path / "flag").touch()
    result = running.result()
    assert "begun" not in result.stdout
    missed, *through = result.stdout.splitlines()[-3:]
    assert missed == "[0-1] missed"
    assert sorted(through) == BOTH_THROUGH
    assert kept(other) == ALL_KEPT
    assert other.run("ws.pull('kept')").text == "[0, 10]\n"


def test_a_cell_that_ended_meanwhile_is_told_of_and_much_output_is_cut(notebooks, pair, tmp_path):
    kernel, other = pair
    code = 'for i in range(999): print("line", i)\nprint("last words")\nif rank: 1 / 0'
    begin_steps(kernel, tmp_path / "flag", code)
    notebooks.kill(kernel)
    (tmp_path / "flag").touch()
    notebooks.wait_for_ranks("idle", "idle")
    result = attach(other)
    assert result.status == "ok"
    assert "has ended meanwhile: rank 0 well; rank 1 in ZeroDivisionError" in result.stderr
    # Apart, as they have not said the same: the traceback belongs to the 200 lines of rank 1.
    shown = result.stdout.splitlines()
    assert "[0] … 800 lines before this: %distributed output RANK" in shown
    assert "[0] line 799" not in shown
    assert {"[0] line 800", "[0] last words", "[1] last words"} <= {*shown}
    assert "division by zero" in shown[-1]
    assert "line 0\n" in other.run("%distributed output 1").stdout
    assert kept(other) == ALL_KEPT


def test_a_question_that_was_open_is_asked_again(notebooks, pair):
    kernel, other = pair
    code = "%%distributed\nfirst = input('first? ')\nsecond = input('second? ')\nfirst, second"
    kernel.submit(code, stdin=["one"]).until(lambda result: len(result.prompts) == 2)
    notebooks.kill(kernel)
    result = attach(other, stdin=["two"])
    assert [prompt.text for prompt in result.prompts] == ["[0-1] second? "]
    assert "[0-1] Out: ('one', 'two')" in result.stdout


def test_a_rank_that_died_meanwhile_is_named_and_replaced(notebooks, pair):
    kernel, other = pair
    kernel.run("%%distributed --every-start\nkept = rank * 10; print('every')")
    pid = int(kernel.run("%%distributed --ranks 1\nimport os; os.getpid()").stdout.split()[-1])
    notebooks.kill(kernel)
    os.kill(pid, signal.SIGKILL)
    notebooks.wait_for_ranks("idle", "dead")
    result = attach(other)
    assert re.search(
        r"rank 1 died at \d\d:\d\d \(killed by signal 9 \(SIGKILL\)\); "
        r"`%distributed restart 1` replaces it",
        result.stderr,
    )
    assert other.run("%%distributed\nkept").stdout == "[0] Out: 0\n"
    assert other.run("%distributed restart 1").stdout.startswith("[1] every\nrank 1 is new")
    assert other.run("%%distributed\nkept, px.all_sum(1)").stdout == ALL_KEPT


# -- no ranks -----------------------------------------------------------------------------------


def test_to_nothing_is_one_line(pair):
    kernel, other = pair
    assert kernel.run("%distributed stop").stdout == "stopped the 2 ranks of 'ours'\n"
    assert "no workspaces" in kernel.run("%distributed list").stdout
    assert "there is no workspace to attach to; start one" in attach(other).text
    assert "there is no workspace 'mine'" in attach(other, "mine").text
    assert "cannot name a workspace" in attach(other, "../mine").text
