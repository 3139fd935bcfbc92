"""Live widgets are left open while ranks work: neither the page nor the kernel grows with the frames."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.notebooks.browser import chromium_page
from support.notebooks.jupyter_servers import lab, open_notebook
from support.notebooks.lab_notebook import PageSizes, write_notebook
from support.runs.tiers import deep

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(300), deep]
_CELLS = (
    "%load_ext phalanx",
    "%distributed start -n 2 --linger 0\nimport os\nprint('kernel', os.getpid(), 'is up')",
    "%distributed topology",
    "%distributed monitor",
    # Each tick finds another operation: as many frames as ever there are.
    "%%distributed\nimport time\nwhile True:\n    px.all_sum(rank)\n    time.sleep(0.05 * rank)",
)
_WARM_FRAMES = 60  # buffers, and what the compiler of the page's scripts makes, come to an end
_N_WINDOWS, _FRAMES = 3, 75
# The monitor keeps operations of two minutes on purpose: 20 a second of each rank, which is some
# 0.5 MB more on the page. What keeps arrays, pictures or frames as such grows by much more.
_MOST_HEAP, _MOST_KERNEL = 2 << 20, 12 << 20


def test_nothing_grows_while_somebody_looks(tmp_path: Path) -> None:
    write_notebook(tmp_path / "notebooks" / "open.ipynb", _CELLS)
    # Both widgets are in sight at once: who is out of it is sent nothing.
    with chromium_page(viewport={"width": 1280, "height": 2000}) as page, lab(tmp_path) as where:
        sizes = PageSizes(page)
        open_notebook(page, where.replace("01_first_ranks", "open"))
        page.keyboard.press("Shift+Enter")
        said = page.locator(".jp-OutputArea").get_by_text("is up").first
        said.wait_for()
        kernel = psutil.Process(int(said.text_content().partition("kernel ")[2].split()[0]))
        page.keyboard.press("Shift+Enter")
        widget = page.locator(".px-topology")
        widget.locator('.px-tile[data-state="idle"]').first.wait_for()
        page.keyboard.press("Shift+Enter")
        monitor = page.locator(".px-monitor")
        monitor.locator('.px-labels button[data-state="idle"]').first.wait_for()
        page.keyboard.press("Shift+Enter")
        widget.locator('.px-tile[data-state="collective"]').first.wait_for()
        monitor.locator(".px-late").get_by_text("rank 1 came last to").wait_for()
        assert widget.locator(".px-tile").first.evaluate(
            "its => its.getBoundingClientRect().bottom > 0"
        )
        grown = _least_growth(sizes, lambda: kernel.memory_info().rss)
        # A node that one widget keeps for each of its frames was 44 (measured); without it all were 0.
        assert grown["Nodes"] < _FRAMES / 4, grown
        assert grown["JSEventListeners"] < _FRAMES / 4, grown
        assert grown["JSHeapUsedSize"] < _MOST_HEAP, grown
        assert grown["kernel"] < _MOST_KERNEL, grown
        widget.locator(".px-tile").first.click()
        widget.get_by_role("button", name="Interrupt the cell", exact=True).click()
        page.locator(".jp-OutputArea").get_by_text("KeyboardInterrupt").first.wait_for()


def _least_growth(sizes: PageSizes, kernel_size: Callable[[], int]) -> dict[str, Any]:
    """Return the smallest growth of each size over windows of as many frames.

    A leak grows in every window; a cache that fills, or an animation under way, in one.
    """
    sizes.wait_frames(_WARM_FRAMES)
    looks = [sizes.look() | {"kernel": kernel_size()}]
    for _ in range(_N_WINDOWS):
        sizes.wait_frames(_FRAMES)
        looks.append(sizes.look() | {"kernel": kernel_size()})
    return {
        name: min(later[name] - before[name] for before, later in itertools.pairwise(looks))
        for name in looks[0]
    }
