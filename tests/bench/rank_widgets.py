"""Move the widgets of ranks 1,000 times, beside the same widget in a plain kernel.

Each of 4 ranks and the notebook's own kernel have a slider, a bar and a figure of plotly (if it is
installed). A driver of the kernel stands for the page: it moves one slider after the other, and waits
for the echo of each move. The echoes and the last values are checked.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
from common import arguments, print_machine, print_table, write_json
from support.notebooks.kernel_driver import KernelDriver

VIEW = "application/vnd.jupyter.widget-view+json"
MAKE = """
import ipywidgets
slider = ipywidgets.IntSlider(max=10**6)
bar = ipywidgets.IntProgress(max=10**6)
slider.observe(lambda change: setattr(bar, 'value', change.new), 'value')
try:
    import plotly.graph_objects as go
    figure = go.FigureWidget(go.Scatter(y=[0, 1]))
    slider.observe(lambda change: setattr(figure.data[0], 'y', [0, change.new]), 'value')
except ImportError:
    figure = None
display(slider)
"""


def move_all(kernel: KernelDriver, sliders: list[str], n: int) -> list[float]:
    """Move each slider n times; return the times from move to echo in ms."""
    times = []
    for value in range(1, n + 1):
        for slider in sliders:
            begun = time.perf_counter()
            moved = kernel.move(slider, value=value)
            while not any(its == moved for its, _ in kernel.echoes):
                kernel.take(1.0)
            times.append((time.perf_counter() - begun) * 1e3)
            kernel.echoes.clear()
    if any(kernel.models[slider]["value"] != n for slider in sliders):
        sys.exit("a slider has another value than the last move")
    return times


def main() -> None:
    """Measure both kinds in one kernel and print the table."""
    options = arguments(
        __doc__ or "", ranks=(4, "number of ranks"), moves=(1000, "of each slider")
    ).parse_args()
    print_machine()
    rows, records = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        KernelDriver(cwd=folder, XDG_RUNTIME_DIR=folder) as kernel,
    ):
        kernel.run(f"%load_ext phalanx\n%distributed start -n {options.ranks}")
        for name, first in (("plain kernel", ""), ("ranks", "%%distributed\n")):
            result = kernel.run(first + MAKE)
            shown: list[str] = [
                o["data"][VIEW]["model_id"] for o in result.outputs if VIEW in o.get("data", {})
            ]
            process = psutil.Process(kernel.pid)
            before = process.memory_info().rss
            times = move_all(kernel, shown, options.moves)
            grown = (process.memory_info().rss - before) / 2**20
            p99 = statistics.quantiles(times, n=100)[98]
            record: dict[str, Any] = {
                "where": name,
                "sliders": len(shown),
                "moves": len(times),
                "median_ms": statistics.median(times),
                "p99_ms": p99,
                "kernel_grew_mib": grown,
            }
            records.append(record)
            rows.append(
                [
                    name,
                    len(shown),
                    len(times),
                    f"{record['median_ms']:.2f}",
                    f"{p99:.2f}",
                    f"{grown:.1f}",
                ]
            )
    print_table(["", "sliders", "moves", "median, ms", "p99, ms", "kernel grew, MiB"], rows)
    write_json(options.json, records)


if __name__ == "__main__":
    main()
