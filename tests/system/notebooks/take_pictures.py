"""Take the README's four pictures: python tests/system/notebooks/take_pictures.py FOLDER.

It drives a real session in JupyterLab with four ranks and writes `talk.png` (a prompt that three
ranks wait for), `see.png` (topology and monitor while ranks work) and `failure.png` (a rank is
killed, named and replaced). `train.png` is the first figure of the saved tutorial on training.
"""

from __future__ import annotations

import base64
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from PIL import Image
from playwright.sync_api import Locator

NOTEBOOKS = Path(__file__).resolve().parents[3] / "notebooks"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.notebooks.browser import PATIENCE_MS
from support.notebooks.lab_notebook import Onlooker, notebook_in_lab

CELLS = (
    "%load_ext phalanx",
    "%distributed start -n 4",
    '%%distributed --ranks 0,2-3\nname = input("who? ")\nprint(f"rank {rank} heard {name}")',
    "%distributed topology",
    "%distributed monitor",
    (
        "%%distributed\nimport time\nx = np.ones(1 << 20, np.float32)\n"
        "for step in range(10_000_000):\n    time.sleep(0.1 + 0.1 * rank)\n    for _ in range(5):\n"
        "        px.all_sum(x)\n    px.all_gather(x[: 1 << 18])\n    px.barrier()"
    ),
    (
        "%%distributed\nimport os, signal\nif rank == 2:\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "px.all_sum(1)"
    ),
    "%distributed restart",
    "%%distributed\npx.all_sum(1)",
)
TALK, TOPOLOGY, MONITOR, WORK, KILL, RESTART, SUM = range(2, 9)
# Both widgets are in sight; what is out of sight is sent nothing.
SIZE = {"width": 900, "height": 1700}
SCALE = 1.5  # sharp on dense screens, and still a small file
GAP_PX = 8
COLORS = 128
WORK_MS = 9000  # fills most of the monitor's ten seconds


class Photographer:
    """Runs cells of the page and takes pictures of them."""

    def __init__(self, onlooker: Onlooker, folder: Path) -> None:
        self.page = onlooker.page
        self._onlooker = onlooker
        self._folder = folder

    def cell(self, number: int) -> Locator:
        """Return a cell of the page."""
        found: Locator = self.page.locator(".jp-CodeCell").nth(number)
        return found

    def start(self, number: int) -> Locator:
        """Start a cell."""
        cell = self.cell(number)
        cell.scroll_into_view_if_needed()
        self._onlooker.run_cell(number)
        return cell

    def run(self, number: int) -> Locator:
        """Run a cell to its end."""
        cell = self.start(number)
        self.wait_for_end(number)
        return cell

    def wait_for_end(self, number: int) -> None:
        """Wait until a cell has its number."""
        self.page.wait_for_function(
            "number => /\\d/.test(document.querySelectorAll('.jp-CodeCell')[number]"
            ".querySelector('.jp-InputPrompt').textContent)",
            arg=number,
            timeout=PATIENCE_MS,
        )

    def save(self, name: str, *parts: Locator) -> None:
        """Write a picture of these elements, one below the other."""
        images = []
        for part in parts:
            part.scroll_into_view_if_needed()
            images.append(Image.open(io.BytesIO(part.screenshot())).convert("RGB"))
        height = sum(image.height for image in images) + GAP_PX * (len(images) - 1)
        whole = Image.new("RGB", (max(image.width for image in images), height), "white")
        top = 0
        for image in images:
            whole.paste(image, (0, top))
            top += image.height + GAP_PX
        path = self._folder / name
        whole.quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)
        print(f"{path}: {whole.width} x {whole.height}, {path.stat().st_size / 1000:.0f} kB")


@contextmanager
def photographer(folder: Path) -> Iterator[Photographer]:
    """Open the notebook in a window without side bars."""
    options: dict[str, Any] = {"device_scale_factor": SCALE}
    with (
        tempfile.TemporaryDirectory() as place,
        notebook_in_lab(Path(place), Onlooker, CELLS, **options) as onlooker,
    ):
        onlooker.show_only_the_notebook(SIZE)
        yield Photographer(onlooker, folder)


def take(folder: Path) -> None:
    """Run the cells and take the pictures."""
    with photographer(folder) as camera:
        camera.run(1)
        cell = camera.start(TALK)
        field = cell.locator(".jp-Stdin-input")
        field.wait_for(timeout=PATIENCE_MS)
        field.press_sequentially("Ada")
        camera.save("talk.png", cell)
        field.press("Enter")
        camera.wait_for_end(TALK)

        topology = camera.run(TOPOLOGY).locator(".px-topology")
        monitor = camera.run(MONITOR).locator(".px-monitor")
        camera.start(WORK)
        topology.locator('.px-tile[data-state="collective"]').first.wait_for(timeout=PATIENCE_MS)
        monitor.locator(".px-late").get_by_text("came last to").wait_for(timeout=PATIENCE_MS)
        camera.page.wait_for_timeout(WORK_MS)
        camera.save("see.png", topology, monitor)
        camera.page.evaluate(
            "() => window.jupyterapp.commands.execute('notebook:interrupt-kernel')"
        )
        camera.wait_for_end(WORK)

        parts = [camera.run(number) for number in (KILL, RESTART, SUM)]
        camera.save("failure.png", *parts)


def copy_figure(notebook: Path, picture: Path) -> None:
    """Write the first figure of a saved notebook to a file."""
    cells = nbformat.read(notebook, as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    figures = [
        output.data["image/png"] for output in outputs if "image/png" in output.get("data", {})
    ]
    picture.write_bytes(base64.b64decode(figures[0]))


if __name__ == "__main__":
    copy_figure(NOTEBOOKS / "06_data_parallel.ipynb", Path(sys.argv[1]) / "train.png")
    os.environ["OMP_NUM_THREADS"] = "1"  # else the start says how threads are shared
    take(Path(sys.argv[1]).resolve())
