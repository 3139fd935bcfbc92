"""The live topology in JupyterLab, with real ranks: watched, killed, mended, stopped, found again.

The one test in JupyterLab of the first tier. Pictures of it are left in ``tests/artifacts``.
"""

from __future__ import annotations

import re
from typing import Any

import psutil
import pytest
from support.notebooks.jupyter_servers import change_theme, saved_picture
from support.notebooks.lab_notebook import Onlooker, notebook_in_lab
from support.promise import BOUND_S

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(300)]
_CELLS = (
    "%load_ext phalanx",
    "%distributed start -n 4 --linger 0 --transport tcp",
    "%distributed topology",
    "%%distributed\nimport time\nif rank == 2: time.sleep(600)\npx.all_sum(rank)",
    "%%distributed\nfor _ in range(400): px.all_sum(np.ones(1 << 18))",
    "%distributed stop",
)
_WAIT, _MOVE, _STOP = 3, 4, 5  # cells that are run by their number


class Watcher(Onlooker):
    """Somebody in front of the page."""

    kind = "topology"

    def see(self, rank: int, state: str, **options: Any) -> None:
        self.widget.locator(f'.px-tile[data-state="{state}"][aria-label^="rank {rank}:"]').wait_for(
            **options
        )

    def pid(self, rank: int) -> int:
        label = self.widget.locator(f'[aria-label^="rank {rank}:"]').first.get_attribute(
            "aria-label"
        )
        return int(label.rpartition("process ")[2])


@pytest.mark.promise
def test_watch_break_mend(tmp_path):
    with notebook_in_lab(tmp_path, Watcher, _CELLS) as watcher:
        _watch(watcher)
        _mend(watcher)
        _interrupt(watcher)
        _see_it_move(watcher)
        _change_theme(watcher)
        _come_back(watcher)


def _watch(watcher: Watcher) -> None:
    keyboard = watcher.page.keyboard
    keyboard.press("Shift+Enter")
    watcher.read("4 ranks on 1 host")
    keyboard.press("Shift+Enter")
    for rank in range(4):
        watcher.see(rank, "idle")
    watcher.look("idle")
    # The kernel is busy with a cell from now on, and the widget goes on.
    keyboard.press("Shift+Enter")
    watcher.see(2, "busy")
    watcher.see(0, "collective")
    watcher.widget.locator('[aria-label^="rank 0:"]').first.click()
    watcher.read("in all_sum #", ".px-topology")
    watcher.look("collective")
    watcher.widget.locator('[aria-label^="rank 2:"]').first.click()  # chosen from now on
    watcher.press("Where is it?")
    watcher.read("cell line 2", ".px-topology pre")


def _mend(watcher: Watcher) -> None:
    psutil.Process(watcher.pid(2)).kill()
    watcher.see(2, "dead", timeout=1000 * BOUND_S)
    assert "SIGKILL" in watcher.widget.locator('[aria-label^="rank 2:"]').first.get_attribute(
        "aria-label"
    )
    watcher.look("dead")
    watcher.read("RankFailure")
    watcher.press("Restart")
    watcher.see(2, "idle")
    watcher.read("rank 2 is new", ".px-topology pre")
    watcher.look("mended")
    watcher.press("Where is it?")
    watcher.read("between cells", ".px-topology pre")
    watcher.press("Links")
    watcher.widget.locator(".px-link-table").wait_for()
    watcher.press("Measure the links")
    watcher.read("6 links measured", ".px-topology")
    watcher.look("links")
    watcher.press("Tiles")


def _interrupt(watcher: Watcher) -> None:
    """Stop a cell by a click while the kernel is busy with it; the kernel takes the next one."""
    watcher.run_cell(_WAIT)
    watcher.see(0, "collective")
    watcher.see(2, "busy")
    watcher.press("Interrupt the cell")
    watcher.read("KeyboardInterrupt")
    for rank in range(4):
        watcher.see(rank, "idle")


def _see_it_move(watcher: Watcher) -> None:
    """What the ranks send each other is on the links, in words and as what moves."""
    watcher.run_cell(_MOVE)
    watcher.widget.scroll_into_view_if_needed()  # below a long output it is sent nothing
    watcher.widget.locator(".px-curves .px-moving").first.wait_for(state="attached")
    words = re.compile(r"tcp: 6 links between these ranks · \S+ [MG]B/s")
    watcher.read(words, ".px-tcp-name")
    watcher.look("moving")
    for rank in range(4):
        watcher.see(rank, "idle")
    watcher.widget.locator(".px-curves .px-moving").first.wait_for(state="detached")


def _change_theme(watcher: Watcher) -> None:
    change_theme(watcher.page, ".px-topology")
    watcher.look("dark")


def _come_back(watcher: Watcher) -> None:
    shown = saved_picture(watcher.page, watcher.notebook, 2)
    assert "".join(shown["data"]["image/svg+xml"]).startswith("<svg")
    said = "".join(shown["data"]["text/plain"])
    new = re.search(r"rank 2   pid (\d+) .* idle", said)
    assert new, said
    assert int(new[1]) == watcher.pid(2)  # as it was replaced, after the picture was first shown
    # The view and the rank that were chosen last are there again.
    watcher.press("Links")
    # Not the first row: on a busy machine a slow link of other ranks comes first.
    row = watcher.widget.locator('.px-link-table tr:has([aria-label="rank 1"])')
    row.locator('[aria-label="rank 0"]').first.focus()
    for key in ("ArrowRight", "Enter"):
        watcher.page.keyboard.press(key)
    chosen = watcher.widget.locator(".px-details").get_by_text("rank 1 ·")
    chosen.wait_for()
    # Its answer comes after the kernel has been told of the choice, which a reload would lose.
    watcher.press("Last operations")
    watcher.read("all_sum #", ".px-topology pre")
    watcher.page.reload()
    chosen.wait_for()
    watcher.widget.locator(".px-link-table").wait_for()
    watcher.look("reloaded")
    watcher.press("Tiles")
    watcher.see(2, "idle")
    watcher.run_cell(_MOVE)
    watcher.read("this page is new")
    watcher.run_cell(_STOP)
    watcher.read("was stopped", ".px-why")
    watcher.look("gone")
