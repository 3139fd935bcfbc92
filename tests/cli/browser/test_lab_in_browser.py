"""`phalanx lab` as a reader meets it: the tutorial opens, cells run, a question is answered.

In the first tier widgets/browser/test_topology_in_lab.py runs, watches and stops cells in JupyterLab, and
notebooks/test_notebooks.py runs this tutorial without a browser.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.notebooks.browser import PATIENCE_MS, chromium_page
from support.notebooks.jupyter_servers import FIRST_TUTORIAL, START_PAGE, lab, open_notebook
from support.runs.tiers import deep

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(180), deep]
_ARTIFACTS = Path(__file__).resolve().parents[2] / "artifacts"


def test_it_opens_on_a_page_that_leads_to_the_first_tutorial(tmp_path):
    _ARTIFACTS.mkdir(exist_ok=True)
    with (
        chromium_page(viewport={"width": 1280, "height": 1000}) as page,
        lab(tmp_path) as address,
    ):
        page.goto(address.replace(FIRST_TUTORIAL, START_PAGE))
        start = page.locator(".jp-RenderedMarkdown")
        start.get_by_role("heading", name="Start here").wait_for(timeout=PATIENCE_MS)
        page.screenshot(path=_ARTIFACTS / "lab-start.png")
        start.get_by_role("link", name="the first tutorial").click()
        page.get_by_role("tab", name=FIRST_TUTORIAL).wait_for(timeout=PATIENCE_MS)
        page.get_by_role("heading", name="First ranks").wait_for(timeout=PATIENCE_MS)


def test_the_tutorial_in_a_browser(tmp_path):
    _ARTIFACTS.mkdir(exist_ok=True)
    errors: list[str] = []
    with (
        chromium_page(viewport={"width": 1280, "height": 1000}) as page,
        lab(tmp_path) as address,
    ):
        page.on("pageerror", lambda error: errors.append(str(error)))
        try:
            _read_the_tutorial(page, address)
        except BaseException:
            page.screenshot(path=_ARTIFACTS / "lab-failed.png")
            raise
    assert errors == []


def _read_the_tutorial(page: Any, address: str) -> None:
    open_notebook(page, address)

    def run_cell(*words: str) -> None:
        page.keyboard.press("Shift+Enter")
        for word in words:
            page.locator(".jp-OutputArea").get_by_text(word).first.wait_for(timeout=PATIENCE_MS)

    run_cell("4 ranks on 1 host")
    run_cell()
    run_cell(*(f"I am rank {rank} of 4" for rank in range(4)))
    run_cell()
    run_cell("300")
    run_cell()
    page.keyboard.press("Shift+Enter")  # %distributed topology
    page.locator(".px-topology .px-tile").nth(3).wait_for(timeout=PATIENCE_MS)
    page.screenshot(path=_ARTIFACTS / "lab-topology.png")
    run_cell()
    run_cell("1461 days")
    run_cell()
    run_cell("days, ")
    run_cell()
    run_cell("Dec ")
    run_cell()
    page.keyboard.press("Shift+Enter")
    box = page.locator("input.jp-Stdin-input")
    box.wait_for(timeout=PATIENCE_MS)
    page.screenshot(path=_ARTIFACTS / "lab-question.png")
    box.fill("Ada")
    box.press("Enter")
    for rank in range(4):
        page.get_by_text(f"hello Ada, says rank {rank}").first.wait_for(timeout=PATIENCE_MS)
    page.screenshot(path=_ARTIFACTS / "lab-answered.png")
