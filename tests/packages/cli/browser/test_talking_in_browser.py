"""The second tutorial as a reader meets it, in JupyterLab and in Notebook 7.

Questions, a debugger on all ranks and on one, bars, figures, an error, a post-mortem, stop.
Pictures of each are left in ``tests/artifacts``.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.notebooks.browser import PATIENCE_MS, chromium_page
from support.notebooks.jupyter_servers import lab, notebook_7, open_notebook
from support.places import ARTIFACTS
from support.runs.tiers import deep

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(300), deep]
# Notebook 7.6 says so on its list of files as well, where nothing of ours is.
_NOT_OURS = ("Cannot read properties of undefined (reading 'schema')",)
# A question for all names those that have come by then: on a busy machine not the last one.
_IS_ASKED = """prompt => {
    const boxes = [...document.querySelectorAll("input.jp-Stdin-input")];
    const text = boxes.length === 1 ? boxes[0].parentElement.textContent : "";
    const asked = text.replaceAll("\\u00a0", " ");
    const ofAll = asked.replace(/\\[[0-3,-]+\\]/, "[0-3]");
    return (prompt.startsWith("[0-3]") ? ofAll : asked).includes(prompt);
}"""


class Reader:
    """Somebody who presses Shift+Enter, looks at what comes, and types where a box asks."""

    def __init__(self, page: Any, name: str) -> None:
        self.page = page
        self._name = name

    def look(self, what: str) -> None:
        self.page.screenshot(path=ARTIFACTS / f"{self._name}-{what}.png")

    def run(self, *words: str) -> None:
        """Run the selected cell and wait until this is there."""
        self.page.keyboard.press("Shift+Enter")
        self.see(*words)

    def see(self, *words: str) -> None:
        for word in words:
            self.page.locator(".jp-OutputArea").get_by_text(word).first.wait_for(
                timeout=PATIENCE_MS
            )

    def answer(self, prompt: str, line: str) -> None:
        """Wait until this is the only question, type, and wait until it is taken away."""
        self.page.wait_for_function(_IS_ASKED, arg=prompt, timeout=PATIENCE_MS)
        box = self.page.locator("input.jp-Stdin-input")
        first = box.element_handle()
        box.fill(line)
        box.press("Enter")
        first.wait_for_element_state("hidden", timeout=PATIENCE_MS)

    def go_on(self) -> None:
        """Select the next cell: a question selects its own cell again."""
        self.page.keyboard.press("ArrowDown")

    def stop(self) -> None:
        """Press the stop button."""
        self.page.locator('[data-command="notebook:interrupt-kernel"]').first.click()


@pytest.mark.parametrize("server", [lab, notebook_7], ids=lambda server: server.__name__)
def test_talking_to_ranks(server, tmp_path):
    pytest.importorskip("matplotlib")
    ARTIFACTS.mkdir(exist_ok=True)
    errors: list[str] = []
    with (
        chromium_page(viewport={"width": 1280, "height": 1000}) as page,
        server(tmp_path) as address,
    ):
        page.on("pageerror", lambda error: errors.append(str(error)))
        reader = Reader(page, f"talking-{server.__name__}")
        try:
            open_notebook(page, address.replace("01_first_ranks", "02_talking_to_ranks"))
            _read(reader)
        except BaseException:
            reader.look("failed")
            raise
    assert [error for error in errors if not any(words in error for words in _NOT_OURS)] == []


def _read(reader: Reader) -> None:
    reader.run("4 ranks on 1 host")
    reader.run()
    reader.run("only rank 2 complains", "[0,2] Out: True", "[1,3] Out: False")
    reader.look("lines")
    reader.run()
    reader.run("rank 2:")
    _questions(reader)
    _debugger(reader)
    _bars_and_figures(reader)
    _errors(reader)
    _stop(reader)
    _values(reader)


def _questions(reader: Reader) -> None:
    reader.run()
    reader.run()
    reader.answer("[0-3] What is your name?", "Ada")
    reader.answer("[0] Ada, a number, please:", "42")
    reader.see("[0-3] Ada said 42")
    reader.look("questions")
    reader.go_on()
    reader.run()
    reader.run()
    reader.answer("[0-3] Something secret:", "secret")
    reader.see("6 characters")
    reader.go_on()


def _debugger(reader: Reader) -> None:
    reader.run()
    reader.run()
    reader.answer("[0-3] ipdb>", "p mine")
    reader.see("[0, 4, 8]", "[1, 5, 9]", "[2, 6]", "[3, 7]")
    reader.answer("[0-3] ipdb>", "@1 p len(mine)")
    reader.see("[1] 3")
    reader.look("debugger")
    reader.answer("[0-3] ipdb>", "c")
    reader.see("[0-3] Out: 45")
    reader.go_on()


def _bars_and_figures(reader: Reader) -> None:
    reader.run()
    reader.run("[3] training:", "[0] trained")
    reader.look("bars")
    reader.see("[3] trained")
    reader.run()
    reader.page.keyboard.press("Shift+Enter")
    figures = reader.page.locator('.jp-OutputArea-output img[src^="data:image/png"]')
    figures.nth(3).wait_for(timeout=PATIENCE_MS)
    assert figures.count() == 4
    figures.nth(3).scroll_into_view_if_needed()
    reader.look("figures")


def _errors(reader: Reader) -> None:
    reader.run()
    reader.run("ZeroDivisionError", "then ranks 0-1,3: ")
    reader.look("error")
    reader.run()
    reader.run()
    reader.answer("[2] ipdb>", "p x")
    reader.see("[2] 0.0")
    reader.answer("[2] ipdb>", "q")
    reader.go_on()


def _stop(reader: Reader) -> None:
    reader.run()
    reader.run("100 turns, and no end")
    reader.stop()
    reader.see("KeyboardInterrupt")
    reader.look("stopped")
    reader.run("of us are still here")


def _values(reader: Reader) -> None:
    reader.run()
    reader.run("[0, 10, 20, 30]")
    reader.run()
    reader.run()
    reader.run("[0-3] Out: 60")
    reader.run()
    reader.run()
    reader.look("values")
    reader.run()
    reader.run()
