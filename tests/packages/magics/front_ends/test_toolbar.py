"""The kernel's half of the field in the toolbar, with messages as the page sends them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.notebooks.kernel_driver import KernelDriver
from support.waiting import wait_until

pytestmark = pytest.mark.slow
_COMM = "phalanx.toolbar"
_WISH = {"phalanx": {"autodistributed": True}}
Frame = dict[str, Any]


class Page:
    """A page with the field: what it was told, and what it asks for."""

    def __init__(self, kernel: KernelDriver) -> None:
        self.kernel = kernel

    @property
    def frames(self) -> list[Frame]:
        return [data for comm, data in self.kernel.said if comm == _COMM]

    @property
    def states(self) -> list[list[str]]:
        return [frame["ranks"] for frame in self.frames]

    def see(self, is_so: Callable[[Frame], bool], what: str) -> Frame:
        """Wait for a state; return it."""

        def has_come() -> bool:
            self.kernel.take(0.1)
            return bool(self.frames) and is_so(self.frames[-1])

        wait_until(has_come, what)
        return self.frames[-1]

    def look(self) -> Frame:
        """Ask for the state, as a page that was loaded again."""
        self.kernel.said.clear()
        self.kernel.say(_COMM, {"kind": "look"})
        return self.see(lambda _: True, "an answer to a look")


@pytest.fixture(scope="module")
def kernel() -> Iterator[KernelDriver]:
    with KernelDriver() as driver:
        yield driver


@pytest.fixture
def page(kernel: KernelDriver) -> Iterator[Page]:
    """A page of a kernel that has not loaded the magics."""
    kernel.said.clear()
    yield Page(kernel)
    kernel.run("%distributed stop")
    kernel.run("%unload_ext phalanx")
    kernel.run("_ = get_ipython().magics_manager.registry.pop('DistributedMagics')")


def _comms(kernel: KernelDriver) -> dict[str, Any]:
    return kernel.ask("comm_info_request", {"target_name": _COMM})["comms"]


def _are(*states: str) -> Callable[[Frame], bool]:
    return lambda frame: frame["ranks"] == list(states)


def test_ranks_are_seen_from_start_to_stop(page):
    kernel = page.kernel
    assert _comms(kernel) == {}
    kernel.run("%load_ext phalanx")
    (first,) = page.frames
    assert first == {"is_loaded": True, "ranks": [], "is_auto": False, "is_new": True}
    assert _comms(kernel) == {_COMM: {"target_name": _COMM}}
    assert page.look() == {"is_loaded": True, "ranks": [], "is_auto": False, "is_new": False}

    kernel.run("%distributed start -n 2 --linger 0")
    assert page.states[1] == ["starting", "starting"]
    page.see(_are("idle", "idle"), "both ranks are idle")
    # While a cell runs the field follows each rank.
    running = kernel.submit("%%distributed\nif rank == 1: input('go? ')", stdin=lambda _: None)
    page.see(_are("idle", "busy"), "rank 1 is busy alone")
    assert not running.is_done
    kernel.type_line("yes")
    running.result()
    page.see(_are("idle", "idle"), "both ranks are idle again")

    pids = [
        int(pid)
        for pid in kernel.run("ws.pull('__import__(\"os\").getpid()')")
        .text.strip()[1:-1]
        .split(",")
    ]
    os.kill(pids[0], signal.SIGKILL)
    page.see(_are("dead", "idle"), "rank 0 is dead")
    kernel.run("%distributed restart")
    page.see(_are("idle", "idle"), "rank 0 is replaced")

    kernel.run("ws.stop()")
    page.see(_are(), "the ranks are gone")
    kernel.run("%unload_ext phalanx")
    page.see(lambda frame: not frame["is_loaded"], "the magics are gone")
    assert _comms(kernel) == {}


def test_every_cell_is_distributed_as_the_page_wants(page):
    kernel = page.kernel
    kernel.run("%load_ext phalanx")
    page.look()
    kernel.say(_COMM, {"kind": "auto", "on": True})  # without ranks it is only the notebook's
    assert kernel.run("print(6 * 7)").stdout == "42\n"
    # The cells of "Run all" are sent before the kernel could ask the page.
    start = kernel.submit("%distributed start -n 2 --linger 0", metadata=_WISH)
    first = kernel.submit("size", metadata=_WISH)
    assert "every cell runs on the ranks" in start.result().stdout
    assert first.result().stdout == "[0-1] Out: 2\n"
    assert page.see(lambda frame: frame["is_auto"], "it is on")["ranks"] == ["idle", "idle"]
    kernel.run("%%local\nws.run('pass')")
    assert page.frames[-1]["is_auto"]
    kernel.say(_COMM, {"kind": "auto", "on": False})
    assert kernel.run("print(6 * 7)").stdout == "42\n"
    page.see(lambda frame: not frame["is_auto"], "it is off")
    kernel.run("%autodistributed on")
    page.see(lambda frame: frame["is_auto"], "it is on again")
    kernel.run("%distributed stop")
    page.see(lambda frame: not frame["is_auto"] and frame["ranks"] == [], "all is over")


def test_without_a_page_nothing_but_the_first_message_is_sent(page):
    kernel = page.kernel
    kernel.run("%load_ext phalanx\n%distributed start -n 1 --linger 0\n%reload_ext phalanx")
    kernel.run("%%distributed\n1")
    kernel.run("%distributed stop")
    assert len(page.frames) == 1


def test_a_page_meets_ranks_that_one_cell_has_loaded_and_started(page):
    kernel = page.kernel
    cell = kernel.submit("%load_ext phalanx\n%distributed start -n 2 --linger 0")
    page.see(lambda frame: frame["is_new"], "the first message")
    kernel.say(_COMM, {"kind": "look"})  # while they start
    cell.result()
    page.see(_are("idle", "idle"), "both ranks are idle")


def test_a_page_that_is_loaded_again_shows_the_ranks_of_a_running_cell(page, tmp_path):
    kernel, way = page.kernel, tmp_path / "on"
    kernel.run("%load_ext phalanx\n%distributed start -n 2 --linger 0")
    cell = kernel.submit(f"""%%distributed
import os, time
print("begun")
while not os.path.exists({str(way)!r}): time.sleep(0.01)""")
    try:
        cell.until(lambda so_far: "begun" in so_far.stdout)
        kernel.reload()
        assert kernel.ask("kernel_info_request", {})["status"] == "ok"
        assert _COMM in _comms(kernel)
        page.look()
        page.see(_are("busy", "busy"), "both ranks run the cell")
        assert not cell.is_done
    finally:
        way.touch()
    assert cell.result().status == "ok"
    page.see(_are("idle", "idle"), "both ranks are idle")
