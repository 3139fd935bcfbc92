"""`phalanx lab` as a reader meets it: the tutorial opens, cells run, a question is answered.

In the first tier widgets/browser/test_topology_in_lab.py runs, watches and stops cells in JupyterLab, and
notebooks/test_notebooks.py runs this tutorial without a browser.
"""

from __future__ import annotations

import pytest
from support.notebooks.browser import PATIENCE_MS, chromium_page
from support.notebooks.jupyter_servers import FIRST_TUTORIAL, START_PAGE, lab
from support.places import ARTIFACTS
from support.runs.tiers import deep

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(180), deep]


def test_it_opens_on_a_page_that_leads_to_the_first_tutorial(tmp_path):
    ARTIFACTS.mkdir(exist_ok=True)
    with chromium_page(viewport={"width": 1280, "height": 1000}) as page, lab(tmp_path) as address:
        page.goto(address.replace(FIRST_TUTORIAL, START_PAGE))
        start = page.locator(".jp-RenderedMarkdown")
        start.get_by_role("heading", name="Start here").wait_for(timeout=PATIENCE_MS)
        page.screenshot(path=ARTIFACTS / "lab-start.png")
        start.get_by_role("link", name="the first tutorial").click()
        page.get_by_role("tab", name=FIRST_TUTORIAL).wait_for(timeout=PATIENCE_MS)
        page.get_by_role("heading", name="First ranks").wait_for(timeout=PATIENCE_MS)
