"""A notebook of given cells, open in JupyterLab in a browser, and somebody in front of the page.

It knows the server and the browser; what is looked at is the test's. Pictures are left in
``tests/artifacts``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import nbformat
from support.notebooks.browser import chromium_page, comes
from support.notebooks.jupyter_servers import lab, open_notebook
from support.places import ARTIFACTS
from support.waiting import wait_until

_N_LOOKS = 5
_NEWS_S = 8
_TWO_FRAMES = "() => new Promise(then => requestAnimationFrame(() => requestAnimationFrame(then)))"
_HELD = ("JSHeapUsedSize", "Nodes", "JSEventListeners")  # in bytes, and two counts


def write_notebook(path: Path, cells: Sequence[str]) -> None:
    """Write a notebook of these cells, never run."""
    path.parent.mkdir(exist_ok=True)
    made = [nbformat.v4.new_code_cell(source) for source in cells]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=made, metadata=metadata), path)


class PageSizes:
    """Count the frames that a page is sent, and look at its size; made before the page goes anywhere."""

    def __init__(self, page: Any) -> None:
        self.n_frames = 0
        self._page = page
        self._session: Any = None
        page.on("websocket", lambda socket: socket.on("framereceived", self._count))

    def _count(self, _: Any) -> None:
        self.n_frames += 1

    def wait_frames(self, n: int) -> None:
        """Wait until the page has been sent ``n`` more frames."""
        wanted = self.n_frames + n
        while (before := self.n_frames) < wanted:
            wait_until(lambda before=before: self._next() > before, "the page is sent a frame")

    def _next(self) -> int:
        """Let the browser tell what has come; playwright hears it only while it waits itself."""
        self._page.evaluate(_TWO_FRAMES)
        return self.n_frames

    def look(self) -> dict[str, float]:
        """Return sizes by Chrome's names: the least of several looks.

        Each look comes after two animation frames and a collection. What a frame on its way holds
        at that moment is in some of them; what is kept is in all.
        """
        if self._session is None:
            self._session = self._page.context.new_cdp_session(self._page)
            self._session.send("Performance.enable")
        looks = [self._look_once() for _ in range(_N_LOOKS)]
        return {name: min(look[name] for look in looks) for name in _HELD}

    def _look_once(self) -> dict[str, float]:
        self._page.evaluate(_TWO_FRAMES)
        self._session.send("HeapProfiler.collectGarbage")
        said = self._session.send("Performance.getMetrics")["metrics"]
        return {its["name"]: its["value"] for its in said}


class Onlooker:
    """Somebody in front of a page with one of our widgets, named by its `kind`."""

    kind = ""

    def __init__(self, page: Any, address: str, notebook: Path) -> None:
        self.page = page
        self.address = address
        self.notebook = notebook
        self.widget = page.locator(f".px-{self.kind}")

    def look(self, what: str) -> None:
        """Keep a picture."""
        ARTIFACTS.mkdir(exist_ok=True)
        self.page.screenshot(path=ARTIFACTS / f"live-{self.kind}-{what}.png")

    def read(self, words: str | re.Pattern[str], where: str = ".jp-OutputArea") -> None:
        """Wait for words on the page, by default in what a cell has put out."""
        self.page.locator(where).get_by_text(words).first.wait_for()

    def press(self, words: str, **options: Any) -> None:
        """Click a button of the widget."""
        self.widget.get_by_role("button", name=words, exact=True).click(**options)

    def run_cell(self, index: int) -> None:
        """Run a cell of the notebook, as its menu does."""
        self.page.evaluate(
            """index => {
                window.jupyterapp.shell.currentWidget.content.activeCellIndex = index;
                window.jupyterapp.commands.execute('notebook:run-cell');
            }""",
            index,
        )

    def run_code(self, code: str) -> None:
        """Run code in a new cell at the end of the notebook."""
        self.page.evaluate(
            """code => {
                const { content } = window.jupyterapp.shell.currentWidget;
                const { sharedModel } = content.model;
                sharedModel.insertCell(sharedModel.cells.length, { cell_type: 'code', source: code });
                content.activeCellIndex = sharedModel.cells.length - 1;
                content.deselectAll();
                window.jupyterapp.commands.execute('notebook:run-cell');
            }""",
            code,
        )

    def show_only_the_notebook(self, size: Any) -> None:
        """Take away side bars and JupyterLab's question about news, in a window of this size."""
        for command in ("toggle-left-area", "toggle-mode"):
            self.page.evaluate(f"() => window.jupyterapp.commands.execute('application:{command}')")
        # Later than `open_notebook`, which waits for what JupyterLab hides if it is narrow.
        self.page.set_viewport_size(size)
        no = self.page.get_by_role("button", name="No", exact=True)
        if comes(no, _NEWS_S):
            no.click()


Kind = TypeVar("Kind", bound=Onlooker)


@contextmanager
def notebook_in_lab(
    tmp_path: Path, kind: type[Kind], cells: Sequence[str], **options: Any
) -> Iterator[Kind]:
    """Open a notebook of these cells; at the end the page has asked nobody else and had no error."""
    errors: list[str] = []
    asked: set[str] = set()
    notebook = tmp_path / "notebooks" / "watch.ipynb"
    write_notebook(notebook, cells)
    with (
        chromium_page(viewport={"width": 1280, "height": 1100}, **options) as page,
        lab(tmp_path) as address,
    ):
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("request", lambda request: asked.add(urlsplit(request.url).hostname or ""))
        onlooker = kind(page, address.replace("01_first_ranks", "watch"), notebook)
        try:
            open_notebook(page, onlooker.address)
            yield onlooker
        except BaseException:
            onlooker.look("failed")
            raise
        # Before the server ends, which the page would complain about.
        assert asked <= {"127.0.0.1", ""}, asked
        assert errors == [], errors
