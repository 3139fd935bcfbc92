"""The live bandwidth in JupyterLab, with real ranks: watched, stopped, run again, refused, saved.

Pictures of it are left in ``tests/artifacts``.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from support.notebooks.jupyter_servers import change_theme, saved_picture
from support.notebooks.lab_notebook import Onlooker, notebook_in_lab
from support.runs.tiers import deep

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(240), deep]
_CELLS = (
    "%load_ext phalanx",
    "%distributed start -n 2 --linger 0 --name measured",
    "%distributed bandwidth -b 8 -e 1M --iters 5",
    # From a thread: a kernel that is busy itself may hear of a button only afterwards.
    (
        "import contextlib, threading\n"
        "def run():\n"
        "    with contextlib.suppress(Exception): ws.run('import time; time.sleep(600)')\n"
        "running = threading.Thread(target=run)\n"
        "running.start()\nprint('under', 'way')"
    ),
    "%distributed interrupt\nrunning.join()\nprint('it is', 'over')",
    "%distributed stop",
)


class Reader(Onlooker):
    """Somebody in front of the page."""

    kind = "bandwidth"

    def see(self, state: str) -> None:
        self.widget.get_by_role("status").get_by_text(state, exact=True).wait_for()

    def write(self, label: str, words: str) -> None:
        self.widget.get_by_label(label, exact=True).fill(words)

    @property
    def far(self) -> str:
        return self.widget.locator(".px-far").text_content()


def test_measure_stop_and_save(tmp_path):
    with notebook_in_lab(tmp_path, Reader, _CELLS) as reader:
        _measure(reader)
        _stop_and_run_again(reader)
        _save(reader, tmp_path)
        _refused(reader)
        _change_theme(reader)
        _come_back(reader)


def _measure(reader: Reader) -> None:
    reader.run_cell(1)
    reader.read("2 ranks on 1 host")
    reader.run_cell(2)
    reader.see("done")
    assert re.match(r"done after 9 of 9 sizes, [\d.]+ s", reader.far)
    assert reader.widget.locator("canvas").count() == 2
    words = reader.widget.locator(".px-words").text_content()
    for said in ("limit: memory copy ", "time: ", "algorithm: inline up to ", "no wrong element"):
        assert said in words
    reader.look("done")
    # From size to size with the keys.
    reader.widget.locator(".px-stage").focus()
    for key in ("ArrowRight", "ArrowRight"):
        reader.page.keyboard.press(key)
    assert reader.widget.locator(".px-said").text_content().startswith("32 B: ")


def _stop_and_run_again(reader: Reader) -> None:
    # So many calls that the last sizes take their 5 s each, on any machine. How many of the first
    # are over when it stops is the machine's affair.
    reader.write("timed calls per size", "100000")
    reader.write("last size", "8M")
    reader.press("Run")
    reader.see("measuring")
    reader.read(re.compile(r"^\d+ of 11 sizes, about"), ".px-far")
    reader.look("measuring")
    reader.press("Stop")
    reader.see("stopped")
    stopped = re.match(r"stopped after (\d+) of 11 sizes", reader.far)
    assert stopped
    assert int(stopped[1]) < 11
    reader.write("timed calls per size", "3")
    reader.write("last size", "256K")
    reader.press("Run")
    reader.see("done")
    # Both before it are laid over.
    reader.widget.locator(".u-legend .u-series").nth(3).wait_for()  # with the run and its model
    reader.look("earlier")


def _save(reader: Reader, folder: Path) -> None:
    found = {}
    for form in ("csv", "json"):
        with reader.page.expect_download() as download:
            reader.press(f"save as {form.upper()}")
        assert download.value.suggested_filename == f"phalanx-all_sum.{form}"
        download.value.save_as(folder / f"saved.{form}")
        found[form] = (folder / f"saved.{form}").read_bytes()
    assert [int(row["nbytes"]) for row in csv.DictReader(found["csv"].decode().splitlines())] == [
        8 * 4**i for i in range(8)
    ]
    assert json.loads(found["json"])["state"] == "done"


def _refused(reader: Reader) -> None:
    reader.run_cell(3)
    reader.read("under way")
    reader.press("Run")
    reader.read("a cell runs already on ranks 0-1", ".px-why")
    reader.read("`import time; time.sleep(600)`", ".px-why")
    reader.run_cell(4)
    reader.read("it is over")
    reader.write("last size", "1024P")
    reader.write("first size", "1")
    reader.press("Run")
    reader.read("1 EiB on 2 ranks needs 3 EiB of memory per rank", ".px-why")
    reader.look("refused")


def _change_theme(reader: Reader) -> None:
    change_theme(reader.page, ".px-bandwidth")
    reader.look("dark")


def _come_back(reader: Reader) -> None:
    shown = saved_picture(reader.page, reader.notebook, 2)
    assert "memory copy" in "".join(shown["data"]["image/svg+xml"])
    rows = [row for row in "".join(shown["data"]["text/plain"]).splitlines() if " all_sum " in row]
    assert len(rows) == 8  # of the last sweep, which the form began; the cell's own had 9
    reader.page.reload()
    reader.see("done")
    assert reader.far == "done after 8 sizes"
    reader.run_cell(5)
    reader.read("was stopped", ".px-why")
    reader.see("gone")
    reader.look("gone")
