"""Record the README's animation: python tests/system/notebooks/record_animation.py FILE.gif.

It drives a real session in JupyterLab: four ranks start, a prompt is answered, a rank is killed,
named and replaced. Frames are screenshots; equal frames become one with their durations added.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageChops

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.notebooks.lab_notebook import Onlooker, notebook_in_lab

CELLS = (
    "%load_ext phalanx",
    "%distributed start -n 4",
    "%%distributed\nx = np.arange(3) * rank\npx.all_sum(x)",
    '%%distributed\nname = input("Who is asking? ")\nf"hello {name}, says rank {rank}"',
    (
        "%%distributed\nimport os, signal\nif rank == 2:\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "px.barrier()"
    ),
    "%distributed restart",
    "%%distributed --ranks 0-1,3\nx",
    "%%distributed\npx.all_sum(1)",
)
SIZE = {"width": 860, "height": 720}
MOST_FRAME_S = 2.5  # how long a frame without a change is shown
LAST_FRAME_S = 4.0
END_S = 60.0
MAX_NBYTES = 2_000_000


class Recorder:
    """Keeps screenshots of a page with the seconds that each was shown."""

    def __init__(self, onlooker: Onlooker) -> None:
        self._page = onlooker.page
        self.frames: list[tuple[Image.Image, float]] = []
        self._since_s = time.monotonic()

    def take(self) -> None:
        """Take a screenshot; it replaces nothing if the page has not changed."""
        image = Image.open(io.BytesIO(self._page.screenshot())).convert("RGB")
        now_s = time.monotonic()
        if self.frames:
            before, shown_s = self.frames[-1]
            shown_s = min(shown_s + now_s - self._since_s, MOST_FRAME_S)
            self.frames[-1] = (before, shown_s)
            if ImageChops.difference(before, image).getbbox() is None:
                self._since_s = now_s
                return
        self.frames.append((image, 0.0))
        self._since_s = now_s

    def until(self, is_so: Callable[[], bool]) -> None:
        """Take screenshots until something is so."""
        end_s = time.monotonic() + END_S
        while not is_so():
            if time.monotonic() > end_s:
                sys.exit("record_animation: a cell has not ended within a minute")
            self.take()
        self.take()

    def hold(self, seconds: float) -> None:
        """Show the newest frame for so long."""
        self.take()
        self.frames[-1] = (self.frames[-1][0], seconds)
        self._since_s = time.monotonic()

    def save(self, path: Path) -> None:
        """Write the animation."""
        images = [image.quantize(96, dither=Image.Dither.NONE) for image, _ in self.frames]
        milliseconds = [max(100, round(1000 * shown_s)) for _, shown_s in self.frames]
        milliseconds[-1] = round(1000 * LAST_FRAME_S)
        images[0].save(
            path,
            save_all=True,
            append_images=images[1:],
            duration=milliseconds,
            loop=0,
            optimize=True,
        )


def record(path: Path) -> None:
    """Run the cells one after the other and write what was seen."""
    with (
        tempfile.TemporaryDirectory() as folder,
        notebook_in_lab(Path(folder), Onlooker, CELLS) as onlooker,
    ):
        page = onlooker.page
        onlooker.show_only_the_notebook(SIZE)
        cells = page.locator(".jp-CodeCell")
        recorder = Recorder(onlooker)
        recorder.hold(1.0)
        for number in range(1, len(CELLS)):  # opening the notebook has run the first
            cell = cells.nth(number)
            cell.scroll_into_view_if_needed()
            onlooker.run_cell(number)
            prompt = cell.locator(".jp-InputPrompt").first
            if "input(" in CELLS[number]:
                field = cell.locator(".jp-Stdin-input")
                recorder.until(lambda field=field: field.count() > 0)
                for letter in "Ada":
                    field.press_sequentially(letter)
                    recorder.hold(0.3)
                field.press("Enter")
            recorder.until(lambda prompt=prompt: prompt.inner_text().strip("[]: ").isdigit())
            page.evaluate(
                "number => { const last = document.querySelectorAll('.jp-CodeCell')[number];"
                " last.scrollIntoView({block: 'end'}); }",
                number,
            )
            recorder.hold(2.0)
        page.evaluate("() => window.jupyterapp.serviceManager.sessions.shutdownAll()")
        recorder.save(path)
    nbytes = path.stat().st_size
    print(f"{path}: {len(recorder.frames)} frames, {nbytes / 1e6:.2f} MB")
    if nbytes > MAX_NBYTES:
        sys.exit("record_animation: more than 2 MB")


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"  # else the start says how threads are shared
    record(Path(sys.argv[1]).resolve())
