"""Memory of all that is there while topology and monitor are left open in JupyterLab, for half an hour.

Four ranks run a cell a second, which is watched in chromium. Every ten seconds: what each process
has in memory for itself alone (what it shares depends on what else runs on the machine), and what
the page has after a garbage collection. A slope is of the later three quarters: caches fill first.

The renderer grows by some 8 KB for each frame of a websocket, as many with our widgets as without
(``--widgets 0``): what looks at it, or chromium, does that. So its size is to be read beside frames.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import psutil
from bench.common import arguments, print_machine, print_table, write_json
from support.notebooks.browser import chromium_page
from support.notebooks.jupyter_servers import lab, open_notebook
from support.notebooks.lab_notebook import PageSizes, write_notebook

_CELLS = (
    "%load_ext phalanx",
    "%distributed start -n {ranks} --linger 0",
    "%distributed topology",
    "%distributed monitor",
    """%%distributed
import time
for i in range(40):
    px.all_sum(np.ones(1 << 14))
    px.all_gather(np.ones(10))
    time.sleep(0.002 * (rank + 1))""",
)
_WORK = len(_CELLS) - 1
_KINDS = (  # of a command line: the first that is in it
    (" controller", "controller"),
    ("phalanx.supervisor.engine.main", "ranks"),
    ("phalanx.supervisor", "supervisor"),
    ("ipykernel_launcher", "kernel"),
    ("jupyter", "server"),
    ("--type=renderer", "renderer"),
)
_MIB = 1 << 20
_ROWS = 31  # of the table that is printed
_RUN_ONE = """async at => {
    window.jupyterapp.shell.currentWidget.content.activeCellIndex = at;
    await window.jupyterapp.commands.execute('notebook:run-cell');
}"""
_RUN = """([at, pause_ms]) => {
    const panel = window.jupyterapp.shell.currentWidget;
    window.cells = 0;
    const run = async () => {
        panel.content.activeCellIndex = at;
        await window.jupyterapp.commands.execute('notebook:run-cell');
        window.cells += 1;
        setTimeout(run, pause_ms);
    };
    run();
}"""


def _processes(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """What belongs to this JupyterLab and this browser, each with its kind."""
    ours = {process.pid for process in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter():
        try:
            if process.pid not in ours and process.environ().get("XDG_RUNTIME_DIR") != str(folder):
                continue
            line = " ".join(process.cmdline())
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        kind = next((kind for word, kind in _KINDS if word in line), "")
        if kind:
            yield kind, process


def _look(folder: Path, page: Any, sizes: PageSizes) -> dict[str, float]:
    """Sizes in MiB by kind, and what the page has."""
    found: dict[str, float] = {kind: 0.0 for _, kind in _KINDS}
    for kind, process in _processes(folder):
        try:
            found[kind] += process.memory_full_info().uss / _MIB
            if kind == "kernel":
                found["kernel_rss"] = process.memory_info().rss / _MIB
        except psutil.NoSuchProcess:
            continue
    found |= sizes.look()
    found["JSHeapUsedSize"] /= _MIB
    found["cells"] = page.evaluate("() => window.cells")
    return found


def _open(page: Any, address: str, *, has_widgets: bool) -> None:
    """Run the cells that start the ranks and show the widgets."""
    open_notebook(page, address)
    for at in range(1, _WORK if has_widgets else 2):
        page.evaluate(_RUN_ONE, at)
    if not has_widgets:
        return
    page.locator('.px-topology .px-tile[data-state="idle"]').first.wait_for(timeout=30_000)
    page.locator(".px-monitor .px-labels button").first.wait_for(timeout=30_000)


def measure(
    n_ranks: int, minutes: float, every_s: float, pause_s: float, *, has_widgets: bool
) -> list[dict[str, float]]:
    """Look again and again; one record for each look."""
    folder = Path(tempfile.mkdtemp(prefix="phalanx-left-open-"))
    cells = [source.replace("{ranks}", str(n_ranks)) for source in _CELLS]
    write_notebook(folder / "notebooks" / "open.ipynb", cells)
    # So high that both widgets are in sight, or they would rest.
    with chromium_page(viewport={"width": 1280, "height": 2200}) as page, lab(folder) as address:
        sizes = PageSizes(page)
        try:
            _open(page, address.replace("01_first_ranks", "open"), has_widgets=has_widgets)
        except BaseException:
            page.screenshot(path=folder / "failed.png")
            print(f"screenshot: {folder / 'failed.png'}")
            raise
        page.evaluate(_RUN, [_WORK, 1000 * pause_s])
        found: list[dict[str, float]] = []
        begun_s = time.monotonic()
        while (at_s := time.monotonic() - begun_s) < 60 * minutes:
            found.append({"s": at_s, **_look(folder, page, sizes), "frames": sizes.n_frames})
            print(", ".join(f"{name} {value:.5g}" for name, value in found[-1].items()), flush=True)
            page.wait_for_timeout(
                1000 * max(0.0, begun_s + len(found) * every_s - time.monotonic())
            )
        page.screenshot(path=folder / "at_the_end.png")
        print(f"screenshot: {folder / 'at_the_end.png'}")
    return found


def slopes(found: list[dict[str, float]]) -> list[tuple[str, str, str, str, str]]:
    """Of each number: at a quarter of the time, at the end, the slope per hour between, its error."""
    later = found[len(found) // 4 :]
    hours = np.array([its["s"] for its in later]) / 3600
    rows = []
    for name in later[0]:
        values = np.array([its[name] for its in later])
        (slope, _), covariance = np.polyfit(hours, values, 1, cov=True)
        error = float(np.sqrt(covariance[0, 0]))
        rows.append(
            (name, f"{values[0]:.5g}", f"{values[-1]:.5g}", f"{slope:+.3g}", f"{error:.2g}")
        )
    return [row for row in rows if row[0] not in ("s", "cells", "frames")]


def main() -> None:
    options = arguments(
        "Memory of the processes and the page while topology and monitor are left open.",
        ranks=(4, "number of ranks"),
        minutes=(30.0, "how long"),
        every=(10.0, "seconds between two looks"),
        pause=(0.5, "seconds between two cells"),
        widgets=(
            1,
            "0: the same without them, to see what JupyterLab and the kernel do by themselves",
        ),
    ).parse_args()
    print_machine()
    found = measure(
        options.ranks,
        options.minutes,
        options.every,
        options.pause,
        has_widgets=bool(options.widgets),
    )
    names = list(found[0])
    step = max(1, len(found) // (_ROWS - 1))
    print("\nMiB (of the page: JSHeapUsedSize); USS where nothing else is said\n")
    print_table(names, [[f"{its[name]:.5g}" for name in names] for its in found[::step]])
    print()
    print_table(("what", "at a quarter", "at the end", "per hour", "give or take"), slopes(found))
    write_json(options.json, found)


if __name__ == "__main__":
    main()
