"""A live topology is left open for a minute while ranks work: the page and the kernel stay as they are.

The long form of it is run by hand (issue 7: half an hour); here a minute shows what grows by frames.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from lab_notebook import Onlooker, PageSizes, notebook_in_lab

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(300)]
_CELLS = (
    "%load_ext phalanx",
    "%distributed start -n 2 --linger 0\nimport os\nprint('kernel', os.getpid(), 'is up')",
    "%distributed topology",
    # Each tick finds another operation: as many frames as ever there are.
    "%%distributed\nimport time\nwhile True:\n    px.all_sum(rank)\n    time.sleep(0.05 * rank)",
)
_WARM_S, _WATCH_S = 15, 45
# A leak of one tile, listener or frame each tick would be 225 of them.
_MOST_NODES, _MOST_LISTENERS = 60, 60
_MOST_HEAP, _MOST_KERNEL = 2 << 20, 12 << 20


class Waiting(Onlooker):
    """Somebody who leaves the page open."""

    kind = "topology"

    def __init__(self, page: Any, address: str, notebook: Path) -> None:
        super().__init__(page, address, notebook)
        self.sizes = PageSizes(page)

    def sees(self, state: str) -> None:
        self.widget.locator(f'.px-tile[data-state="{state}"]').first.wait_for(timeout=60_000)

    def reads(self, words: str) -> str:
        said = self.page.locator(".jp-OutputArea").get_by_text(words).first
        said.wait_for(timeout=60_000)
        return str(said.text_content())


def test_nothing_grows_while_somebody_looks(tmp_path: Path) -> None:
    with notebook_in_lab(tmp_path, Waiting, _CELLS) as waiting:
        waiting.page.keyboard.press("Shift+Enter")
        kernel = psutil.Process(int(waiting.reads("is up").partition("kernel ")[2].split()[0]))
        waiting.page.keyboard.press("Shift+Enter")
        waiting.sees("idle")
        waiting.page.keyboard.press("Shift+Enter")
        waiting.sees("collective")

        def look() -> dict[str, float]:
            return {**waiting.sizes.look(), "kernel": kernel.memory_info().rss}

        waiting.page.wait_for_timeout(1000 * _WARM_S)
        before, n_before = look(), waiting.sizes.n_frames
        waiting.page.wait_for_timeout(1000 * _WATCH_S)
        grown = {name: now - before[name] for name, now in look().items()}
        assert waiting.sizes.n_frames - n_before > 2 * _WATCH_S, "nothing was shown"
        assert grown["Nodes"] < _MOST_NODES, grown
        assert grown["JSEventListeners"] < _MOST_LISTENERS, grown
        assert grown["JSHeapUsedSize"] < _MOST_HEAP, grown
        assert grown["kernel"] < _MOST_KERNEL, grown
        waiting.widget.locator(".px-tile").first.click()
        waiting.press("Interrupt the cell")
        waiting.reads("KeyboardInterrupt")
