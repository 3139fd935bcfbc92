"""The field in the notebook's toolbar, in JupyterLab and Notebook 7, with real ranks.

Pictures of it are left in ``tests/artifacts``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.notebooks.browser import chromium_page
from support.notebooks.jupyter_servers import change_theme, notebook_7, open_notebook
from support.notebooks.lab_notebook import Onlooker, notebook_in_lab, write_notebook
from support.places import ROOT
from support.runs.tiers import deep

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(300), deep]
_SOURCE = ROOT / "widgets" / "labextension"
_CELLS = ("print('not loaded yet')", "size * 1000")


class FieldUser(Onlooker):
    """Somebody who uses the field."""

    kind = "ranks"

    @property
    def number(self) -> Any:
        return self.widget.get_by_label("number of ranks")

    @property
    def switch(self) -> Any:
        return self.widget.get_by_label("every cell")

    def type(self, number: int) -> None:
        self.number.fill(str(number))
        self.number.press("Enter")

    def see(self, *states: str) -> None:
        """Wait for dots of these states, in the order of ranks."""
        self.page.wait_for_function(
            """wanted => {
                const dots = [...document.querySelectorAll('.px-ranks:not(.lm-mod-hidden) .px-dots i')];
                return JSON.stringify(dots.map(dot => dot.dataset.state)) === JSON.stringify(wanted);
            }""",
            arg=list(states),
        )

    def accept(self, words: str) -> None:
        """Answer the dialog."""
        self.page.locator(".jp-Dialog").get_by_role("button", name=words).click()

    def saved(self) -> dict[str, Any]:
        """Save the notebook; return the file's content."""
        self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        self.page.wait_for_function("() => !document.querySelector('.jp-mod-dirty')")
        return json.loads(self.notebook.read_text(encoding="utf-8"))


def _install(folder: Path) -> None:
    """Let the servers in this folder find the extension as it is in the sources."""
    shutil.copytree(_SOURCE, folder / "data/labextensions/phalanx-toolbar")


def test_start_watch_switch_and_stop(tmp_path):
    _install(tmp_path)
    with notebook_in_lab(tmp_path, FieldUser, _CELLS) as user:
        user.read("not loaded yet")
        user.type(2)
        user.read("2 ranks on 1 host")
        user.see("idle", "idle")
        user.look("idle")
        _watch_a_cell(user)
        _switch(user)
        _show_the_topology(user)
        _change_the_number(user)
        user.type(0)
        user.accept("Stop")
        user.read("stopped")
        user.see()
        kept = user.saved()
        assert kept["metadata"]["phalanx"] == {"ranks": 3, "autodistributed": True}
        sources = ["".join(cell["source"]) for cell in kept["cells"]]
        assert [source for source in sources if source.startswith(("%load", "%dist"))] == [
            "%load_ext phalanx\n%distributed start -n 2",
            "%distributed topology",
            "%distributed stop\n%distributed start -n 3",
            "%distributed stop",
        ]


def _watch_a_cell(user: FieldUser) -> None:
    user.run_code("%%distributed\nif rank == 1: input('go? ')")
    user.see("idle", "busy")
    user.look("busy")
    answer = user.page.locator(".jp-Stdin-input")
    answer.fill("yes")
    answer.press("Enter")
    user.see("idle", "idle")


def _switch(user: FieldUser) -> None:
    assert not user.switch.is_checked()
    user.switch.check()
    assert user.saved()["metadata"]["phalanx"] == {"ranks": 2, "autodistributed": True}
    user.run_code("size * 1000")
    user.read("[0-1] Out: 2000")
    user.run_code("%autodistributed off")
    user.page.wait_for_function(
        "() => !document.querySelector('.px-ranks input[type=checkbox]').checked",
    )
    user.switch.check()


def _show_the_topology(user: FieldUser) -> None:
    user.widget.locator(".px-dots").click()
    user.page.locator('.px-topology .px-tile[data-state="idle"]').first.wait_for()
    user.look("topology")
    # A page that is loaded again finds the ranks, and a second click the widget's cell.
    user.saved()
    user.page.reload()
    user.see("idle", "idle")
    assert user.switch.is_checked()
    n_cells = len(user.saved()["cells"])
    user.widget.locator(".px-dots").click()
    user.page.locator('.px-topology .px-tile[data-state="idle"]').first.wait_for()
    assert len(user.saved()["cells"]) == n_cells
    change_theme(user.page, ".px-topology")
    user.look("dark")


def _change_the_number(user: FieldUser) -> None:
    user.type(3)
    user.accept("Restart")
    user.see("idle", "idle", "idle")
    # The notebook's switch holds for new ranks, with no cell that says so.
    user.read("as this notebook's toolbar says")
    user.run_code("size * 1000")
    user.read("[0-2] Out: 3000")


def test_notebook_7(tmp_path):
    _install(tmp_path)
    errors: list[str] = []
    with (
        chromium_page(viewport={"width": 1280, "height": 1100}) as page,
        notebook_7(tmp_path) as address,
    ):
        notebook = tmp_path / "notebooks/watch.ipynb"
        write_notebook(notebook, _CELLS)
        # Notebook 7.6 has an error of its own: its toolbar reads a schema that is not loaded yet.
        page.on("pageerror", lambda error: errors.append(str(error.stack)))
        user = FieldUser(page, address.replace("01_first_ranks", "watch"), notebook)
        open_notebook(page, user.address)
        user.type(2)
        user.see("idle", "idle")
        user.look("notebook-7")
        _click_while_a_cell_runs(user)
        user.type(0)
        user.accept("Stop")
        user.see()
        assert not [error for error in errors if "phalanx" in error]


def _click_while_a_cell_runs(user: FieldUser) -> None:
    """Ask a rank where it is, and stop it: both servers hand a click to a subshell of the kernel."""
    topology = user.page.locator(".px-topology")

    def tile(state: str) -> Any:
        return topology.locator(f'.px-tile[data-state="{state}"][aria-label^="rank 1:"]')

    user.widget.locator(".px-dots").click()
    tile("idle").wait_for()
    user.run_code(
        "%%distributed\nimport time\nif rank == 1:\n    time.sleep(600)\npx.all_sum(rank)"
    )
    tile("busy").click()
    topology.get_by_role("button", name="Where is it?", exact=True).click()
    user.read("cell line 3", ".px-topology pre")
    topology.get_by_role("button", name="Interrupt the cell", exact=True).click()
    user.read("KeyboardInterrupt")
    tile("idle").wait_for()
