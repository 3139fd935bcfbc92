"""The live monitor in JupyterLab, with real ranks: who is late, who is dead, what was before.

Pictures of it are left in ``tests/artifacts``.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import psutil
import pytest
from support.notebooks.jupyter_servers import change_theme, saved_picture
from support.notebooks.lab_notebook import Onlooker, notebook_in_lab
from support.promise import BOUND_S
from support.runs.tiers import deep

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(240), deep]
_LATE = """%%distributed
import time
x = np.ones(1 << 18)
for i in range(40):
    if rank == 1: time.sleep(0.05)
    px.all_sum(x)
    px.all_gather(x[:100])
"""
_CELLS = (
    "%load_ext phalanx",
    "%distributed start -n 4 --linger 0",
    "%distributed monitor",
    _LATE,
    "%%distributed\nif rank == 2: time.sleep(600)\npx.all_sum(rank)",
    "%distributed stop",
)


class Watcher(Onlooker):
    """Somebody in front of the page."""

    kind = "monitor"

    def see(self, rank: int, state: str, **options: Any) -> None:
        self.label(rank, state).wait_for(**options)

    def label(self, rank: int, state: str = "") -> Any:
        chosen = f'[data-state="{state}"]' if state else ""
        return self.widget.locator(f'.px-labels button{chosen}[aria-label^="rank {rank}:"]')

    def figures(self, which: str, width: str) -> list[str]:
        """Of each figure beside a lane whether it is "shown", "left out" or "cut", at this width."""
        return self.widget.evaluate(
            """async (widget, [which, width]) => {
                widget.style.width = width;
                await new Promise(then => requestAnimationFrame(() => setTimeout(then, 100)));
                const told = [...widget.querySelectorAll(which)].map(figure => {
                    const own = figure.getBoundingClientRect();
                    const room = figure.parentElement.getBoundingClientRect();
                    if (!figure.textContent) return 'empty';
                    if (own.top >= room.bottom - 1) return 'left out';
                    return own.right > room.right + 0.5 ? 'cut' : 'shown';
                });
                widget.style.width = '';
                return told;
            }""",
            [which, width],
        )

    def ink(self) -> int:
        """How many colours the lanes are drawn in."""
        return self.page.evaluate("""() => {
            const canvas = document.querySelector('.px-monitor canvas');
            const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            const seen = new Set();
            for (let at = 0; at < data.length; at += 4) {
                seen.add(data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]);
            }
            return seen.size;
        }""")


@pytest.mark.promise
def test_watch_who_is_late_and_who_is_dead(tmp_path):
    with notebook_in_lab(tmp_path, Watcher, _CELLS, accept_downloads=True) as watcher:
        _see_who_is_late(watcher)
        _point_pause_zoom_save(watcher)
        _see_who_is_missing_and_dead(watcher)
        _change_theme_and_come_back(watcher)


def _see_who_is_late(watcher: Watcher) -> None:
    watcher.run_cell(1)
    watcher.read("4 ranks on 1 host")
    watcher.run_cell(2)
    for rank in range(4):
        watcher.see(rank, "idle")
    watcher.run_cell(3)
    watcher.see(1, "busy")
    watcher.read("ranks 0-3, shared memory", ".px-links")
    watcher.widget.locator(".px-rate").get_by_text("B/s").nth(3).wait_for()
    assert watcher.figures(".px-rate", "100%") == ["shown"] * 4
    assert watcher.figures(".px-rate", "330px") == ["left out"] * 4
    assert watcher.figures(".px-share", "330px") == ["shown"] * 4
    watcher.see(1, "idle")
    watcher.read("rank 1 came last to ", ".px-late")
    assert watcher.ink() > 6
    watcher.look("late")


def _point_pause_zoom_save(watcher: Watcher) -> None:
    watcher.press("Pause")
    canvas = watcher.widget.locator("canvas")
    canvas.focus()
    watcher.page.keyboard.press("ArrowDown")
    watcher.page.keyboard.press("P")
    watcher.read("rank 0: all_gather #", ".px-tip")
    watcher.page.keyboard.press("P")
    watcher.read("waiting for the last rank", ".px-tip")
    for _ in range(5):
        watcher.page.keyboard.press("+")
    watcher.look("zoomed")
    # The cell that it was in is found on the page.
    watcher.page.keyboard.press("Enter")
    watcher.page.wait_for_function(
        "() => [...document.querySelectorAll('.jp-CodeCell')].some("
        "cell => cell.style.outline && cell.textContent.includes('range(40)'))"
    )
    with watcher.page.expect_download() as download:
        watcher.press("Save a trace")
    events = json.loads(Path(download.value.path()).read_bytes())["traceEvents"]
    assert {event["name"] for event in events} >= {
        "all_sum",
        "all_gather",
        "wait for the last rank",
    }
    watcher.press("Now")


def _see_who_is_missing_and_dead(watcher: Watcher) -> None:
    watcher.run_cell(4)
    watcher.read("rank 2 holds up ranks 0-1,3 in all_sum #", ".px-late")
    watcher.look("missing")
    watcher.label(2).click()
    facts = watcher.widget.locator(".px-facts")
    facts.get_by_text("process ").wait_for()
    psutil.Process(int(facts.inner_text().rpartition("process ")[2])).kill()
    watcher.see(2, "dead", timeout=1000 * BOUND_S)
    watcher.read("rank 2 is dead: killed", ".px-late")
    assert "SIGKILL" in watcher.label(2).get_attribute("aria-label")
    watcher.read("RankFailure")
    watcher.look("dead")


def _see_what_is_kept(watcher: Watcher) -> None:
    """A reader of the file sees what came after the picture was first shown."""
    shown = saved_picture(watcher.page, watcher.notebook, 2)
    said = "".join(shown["data"]["text/plain"])
    assert "rank 2   dead killed by signal 9 (SIGKILL)" in said
    assert "all_sum" in "".join(shown["data"]["image/svg+xml"])
    # Here the widget is seen, and the picture is not.
    assert watcher.widget.count() == 1
    pictures = watcher.page.locator('.jp-OutputArea-output[data-mime-type="image/svg+xml"]')
    assert pictures.count() == 1
    assert not pictures.is_visible()
    command = [sys.executable, "-m", "nbconvert", "--to", "html", watcher.notebook]
    subprocess.run([*command, "--output", "saved.html"], check=True, capture_output=True)
    html = watcher.notebook.with_name("saved.html").read_text(encoding="utf-8")
    (picture,) = re.findall(r"<img[^>]+src=\"data:image/svg\+xml;base64,([^\"]+)", html)
    texts = [its.text for its in ET.fromstring(base64.b64decode(picture)).iter() if its.text]
    assert {"rank 2 ✕", "all_sum", "all_gather"} <= set(texts)
    assert any(text.startswith("rank 1 held the others up for ") for text in texts)


def _change_theme_and_come_back(watcher: Watcher) -> None:
    change_theme(watcher.page, ".px-monitor")
    watcher.look("dark")
    _see_what_is_kept(watcher)
    watcher.page.reload()
    watcher.see(2, "dead")
    watcher.page.wait_for_function("() => document.querySelector('.px-monitor .px-swatch')")
    assert watcher.ink() > 4  # what was before the page came
    watcher.look("reloaded")
    watcher.run_cell(5)
    watcher.read("was stopped", ".px-why")
    watcher.look("gone")
