"""JupyterLab's debugger panel on ranks: a breakpoint by a click, the ranks in the call stack."""

from __future__ import annotations

import pytest
from support.notebooks.lab_notebook import Onlooker, notebook_in_lab

pytestmark = [pytest.mark.deep, pytest.mark.browser, pytest.mark.timeout(300)]
_CELLS = (
    "%load_ext phalanx",
    "%distributed start -n 2 --linger 0",
    "%%distributed\nx = 100 + rank\ntotal = px.all_sum(x)\nprint('the sum is', total)",
    "%distributed stop",
)


class Debugging(Onlooker):
    """Somebody who debugs a cell."""

    kind = "debugger"

    def command(self, name: str) -> None:
        self.page.evaluate("name => { window.jupyterapp.commands.execute(name); }", name)


def test_ranks_in_the_call_stack(tmp_path):
    with notebook_in_lab(tmp_path, Debugging, _CELLS) as user:
        user.page.keyboard.press("Shift+Enter")
        user.read("2 ranks on 1 host")
        user.page.locator(".jp-DebuggerBugButton").first.click()
        user.read("special variables", ".jp-DebuggerVariables")
        gutter = (
            user.page.locator(".jp-Notebook .jp-CodeCell").nth(2).locator(".cm-breakpoint-gutter")
        )
        gutter.locator(".cm-gutterElement").nth(3).click()
        user.page.locator(".jp-DebuggerBreakpoint").first.wait_for()
        user.run_cell(2)
        for rank in range(2):
            user.read(f"rank {rank}: <module>", ".jp-DebuggerCallstack")
        user.page.locator(".jp-DebuggerCallstack").get_by_text("rank 1: <module>").click()
        user.read("101", ".jp-DebuggerVariables")
        user.look("stopped")
        user.command("debugger:continue")
        user.read("the sum is 201")
        user.run_cell(3)
        user.read("stopped")
