"""A rank is asked where it is and stopped by clicks, while the notebook's own cell runs.

In JupyterLab and in Notebook 7: both hand a widget's messages to a subshell of the kernel.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.notebooks.browser import PATIENCE_MS, chromium_page
from support.notebooks.jupyter_servers import lab, notebook_7, open_notebook
from support.notebooks.lab_notebook import write_notebook
from support.runs.tiers import deep

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(240), deep]
_ARTIFACTS = Path(__file__).resolve().parents[2] / "artifacts"
_CELLS = (
    "%load_ext phalanx",
    "%distributed start -n 2 --linger 0",
    "%distributed topology",
    "%%distributed\nimport time\nif rank == 1:\n    time.sleep(600)  # longer than any wait here\npx.all_sum(rank)",
    "%distributed stop",
)


@pytest.mark.parametrize("server", [lab, notebook_7], ids=lambda server: server.__name__)
def test_clicks_are_answered_while_a_cell_runs(server: Any, tmp_path: Path) -> None:
    errors: list[str] = []
    write_notebook(tmp_path / "notebooks" / "clicked.ipynb", _CELLS)
    with chromium_page(viewport={"width": 1280, "height": 1100}) as page, server(tmp_path) as where:
        try:
            open_notebook(page, where.replace("01_first_ranks", "clicked"))
            # From here on: Notebook 7.6 has one of its own while it loads.
            page.on("pageerror", lambda error: errors.append(str(error)))
            _click(page)
        finally:
            _ARTIFACTS.mkdir(exist_ok=True)
            page.screenshot(path=_ARTIFACTS / f"clicks-{server.__name__}.png")
        assert errors == [], errors


def _click(page: Any) -> None:
    widget, outputs = page.locator(".px-topology"), page.locator(".jp-OutputArea")

    def press(words: str) -> None:
        widget.get_by_role("button", name=words, exact=True).click(timeout=PATIENCE_MS)

    def tile(rank: int, state: str) -> Any:
        return widget.locator(f'.px-tile[data-state="{state}"][aria-label^="rank {rank}:"]')

    page.keyboard.press("Shift+Enter")
    outputs.get_by_text("2 ranks on 1 host").first.wait_for(timeout=PATIENCE_MS)
    page.keyboard.press("Shift+Enter")
    tile(1, "idle").wait_for(timeout=PATIENCE_MS)
    page.keyboard.press("Shift+Enter")
    tile(1, "busy").wait_for(timeout=PATIENCE_MS)
    tile(1, "busy").click()
    press("Where is it?")
    widget.locator("pre").get_by_text("cell line 3").wait_for(timeout=PATIENCE_MS)
    press("Interrupt the cell")
    outputs.get_by_text("KeyboardInterrupt").first.wait_for(timeout=PATIENCE_MS)
    tile(1, "idle").wait_for(timeout=PATIENCE_MS)
    # The notebook's cell ended with it, and the kernel takes the next one.
    page.locator(".jp-Notebook .jp-CodeCell").nth(4).locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    widget.locator(".px-why").get_by_text("was stopped").wait_for(timeout=PATIENCE_MS)
