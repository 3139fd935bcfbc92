"""Live widgets are left open for a minute while ranks work: the page and the kernel stay as they are.

The long form of it is run by hand (issue 7: half an hour); here a minute shows what grows by frames.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from browser import PATIENCE_MS, chromium_page
from jupyter_servers import lab, open_notebook
from support.tiers import deep

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(300), deep]
_CELLS = (
    "%load_ext phalanx",
    "%distributed start -n 2 --linger 0\nimport os\nprint('kernel', os.getpid(), 'is up')",
    "%distributed topology",
    "%distributed monitor",
    # Each tick finds another operation: as many frames as ever there are.
    "%%distributed\nimport time\nwhile True:\n    px.all_sum(rank)\n    time.sleep(0.05 * rank)",
)
_WARM_S, _WATCH_S = 15, 45
# A leak of one tile, listener or frame each tick would be 225 of them. The monitor keeps operations
# of two minutes on purpose: 20 a second of each rank, which is some 0.5 MB more on the page.
_MOST_NODES, _MOST_LISTENERS = 60, 60
_MOST_HEAP, _MOST_KERNEL = 2 << 20, 12 << 20


def test_nothing_grows_while_somebody_looks(tmp_path: Path) -> None:
    path = tmp_path / "notebooks" / "open.ipynb"
    path.parent.mkdir()
    cells = [nbformat.v4.new_code_cell(source) for source in _CELLS]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), path)
    # Both widgets are in sight at once: who is out of it is sent nothing.
    with chromium_page(viewport={"width": 1280, "height": 2000}) as page, lab(tmp_path) as where:
        frames = [0]

        def count(_: Any) -> None:
            frames[0] += 1

        page.on("websocket", lambda socket: socket.on("framereceived", count))
        open_notebook(page, where.replace("01_first_ranks", "open"))
        page.keyboard.press("Shift+Enter")
        said = page.locator(".jp-OutputArea").get_by_text("is up").first
        said.wait_for(timeout=PATIENCE_MS)
        kernel = psutil.Process(int(said.text_content().partition("kernel ")[2].split()[0]))
        page.keyboard.press("Shift+Enter")
        widget = page.locator(".px-topology")
        widget.locator('.px-tile[data-state="idle"]').first.wait_for(timeout=PATIENCE_MS)
        page.keyboard.press("Shift+Enter")
        monitor = page.locator(".px-monitor")
        monitor.locator('.px-labels button[data-state="idle"]').first.wait_for(timeout=PATIENCE_MS)
        page.keyboard.press("Shift+Enter")
        widget.locator('.px-tile[data-state="collective"]').first.wait_for(timeout=PATIENCE_MS)
        monitor.locator(".px-late").get_by_text("rank 1 came last to").wait_for(timeout=PATIENCE_MS)
        assert widget.locator(".px-tile").first.evaluate(
            "its => its.getBoundingClientRect().bottom > 0"
        )
        look = _looker(page, kernel)
        page.wait_for_timeout(1000 * _WARM_S)
        before, n_before = look(), frames[0]
        page.wait_for_timeout(1000 * _WATCH_S)
        grown = {name: now - before[name] for name, now in look().items()}
        assert frames[0] - n_before > 2 * _WATCH_S, "nothing was shown"
        assert grown["Nodes"] < _MOST_NODES, grown
        assert grown["JSEventListeners"] < _MOST_LISTENERS, grown
        assert grown["JSHeapUsedSize"] < _MOST_HEAP, grown
        assert grown["kernel"] < _MOST_KERNEL, grown
        widget.locator(".px-tile").first.click()
        widget.get_by_role("button", name="Interrupt the cell", exact=True).click()
        page.locator(".jp-OutputArea").get_by_text("KeyboardInterrupt").first.wait_for(
            timeout=PATIENCE_MS
        )


def _looker(page: Any, kernel: psutil.Process) -> Callable[[], dict[str, float]]:
    """What there is of everything, once what nobody needs has been collected."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def look() -> dict[str, float]:
        session.send("HeapProfiler.collectGarbage")
        found = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
        wanted = ("Nodes", "JSEventListeners", "JSHeapUsedSize")
        return {name: found[name] for name in wanted} | {"kernel": kernel.memory_info().rss}

    return look
