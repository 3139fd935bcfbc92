"""Widgets that are made on ranks, moved by somebody in JupyterLab."""

from __future__ import annotations

import pytest
from support.notebooks.lab_notebook import Onlooker, notebook_in_lab
from support.runs.tiers import deep

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(300), deep]

CELLS = [
    "%load_ext phalanx\n%distributed start -n 2",
    # A slider with a callback; text of the callback goes into an Output, and below the cell.
    (
        "%%distributed\n"
        "import ipywidgets as w\n"
        "slider, out = w.IntSlider(value=3 + rank), w.Output()\n"
        "def moved(change):\n"
        "    with out:\n"
        "        print(f'rank {rank} captures {change.new}')\n"
        "    print('moved to', change.new)\n"
        "slider.observe(moved, 'value')\n"
        "display(w.VBox([slider, out]))"
    ),
    "%%distributed\nslider.value, 'read back'",
    "%%distributed\nslider.value = 77",
    (
        "%%distributed\n"
        "from tqdm.notebook import tqdm\n"
        "for _ in tqdm(range(20), desc=f'bar {rank}'):\n    pass"
    ),
    (
        "%%distributed\n"
        "from rich.progress import track\n"
        "for _ in track(range(3), description=f'rich {rank}'):\n    pass"
    ),
    "%%distributed --view tabs\nprint('in the tab of', rank)\nslider",
    "%distributed stop",
]


_HAS_TWO_AT_77 = """() => [...document.querySelectorAll('.widget-readout')]
    .filter(its => its.innerText.trim() === '77').length >= 2"""

_ARE_DISABLED = """() => {
    const sliders = [...document.querySelectorAll('.noUi-target')];
    return sliders.length >= 2 && sliders.every(its => its.hasAttribute('disabled'));
}"""


class Mover(Onlooker):
    """Somebody who moves sliders with the keyboard."""

    kind = "ranks"

    def see(self, text: str, n: int = 1) -> None:
        """Wait until the page shows this text n times."""
        self.page.wait_for_function(
            """([text, n]) => [...document.querySelectorAll('.jp-OutputArea-output')]
                .map(area => area.innerText).join('\\n').split(text).length > n""",
            arg=[text, n],
        )

    def reload(self) -> None:
        """Save the notebook, and load the page again while the kernel lives."""
        self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        self.page.reload()

    def run_and_see(self, index: int, *texts: str) -> None:
        self.run_cell(index)
        for text in texts:
            self.see(text)


def test_a_slider_a_bar_an_output_and_tabs(tmp_path):
    with notebook_in_lab(tmp_path, Mover, CELLS) as mover:
        mover.see("2 ranks on 1 host")  # `notebook_in_lab` has run the first cell
        mover.run_cell(1)
        handles = mover.page.locator(".noUi-handle")
        mover.page.wait_for_function("() => document.querySelectorAll('.noUi-handle').length === 2")
        handles.nth(1).focus()  # of rank 1: sliders stand in the order of ranks
        mover.page.keyboard.press("ArrowRight")
        mover.see("rank 1 captures 5")
        mover.see("[1] moved to 5")
        mover.look("moved")
        mover.run_and_see(2, "(3, 'read back')", "(5, 'read back')")
        mover.run_cell(3)
        mover.page.wait_for_function(_HAS_TWO_AT_77)
        mover.run_cell(4)
        mover.see("20/20", 2)
        mover.run_and_see(5, "rich 0", "rich 1")
        mover.look("bars")
        mover.run_cell(6)
        tabs = mover.page.locator(".lm-TabBar-tabLabel", has_text="rank 1")
        tabs.first.wait_for()
        tabs.first.click()
        mover.see("in the tab of 1")
        mover.look("tabs")
        mover.reload()
        mover.page.wait_for_function(_HAS_TWO_AT_77)
        handles.nth(0).focus()
        mover.page.keyboard.press("ArrowLeft")
        mover.see("rank 0 captures 76")
        mover.run_and_see(7, "stopped the 2 ranks")
        # The sliders stay with their last values, and nobody can move them.
        mover.page.wait_for_function(_ARE_DISABLED)
        mover.look("stopped")
