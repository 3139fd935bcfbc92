"""How long an empty cell takes on all ranks: `%%distributed` beside ipyparallel's `%%px`.

A time is a front end's: from sending the cell to a real ipykernel until its reply and its idle
state have come. Both sets of ranks live in the same kernel at the same time, and cells alternate.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import (
    arguments,
    median,
    numbers,
    percentile,
    print_machine,
    print_table,
    write_json,
)
from kernel_driver import KernelDriver

_CELLS = {"%%distributed": "%%distributed\npass", "%%px": "%%px\npass", "plain": "pass"}


def _must(kernel: KernelDriver, code: str) -> None:
    done = kernel.run(code, timeout=120)
    if done.status != "ok":
        sys.exit(f"{code}\n{done.text}")


def measure(n_ranks: int, cells: int, warmup: int) -> list[dict[str, object]]:
    """Seconds of each cell, one record per cell."""
    records = []
    with KernelDriver() as kernel:
        _must(kernel, f"%load_ext phalanx\n%distributed start -n {n_ranks}")
        _must(
            kernel,
            "import ipyparallel\n"
            f"cluster = ipyparallel.Cluster(n={n_ranks}, log_level=50)\n"
            "client = cluster.start_and_connect_sync(activate=True)",
        )
        for i in range(-warmup, cells):
            for name, code in _CELLS.items():
                start = time.perf_counter()
                _must(kernel, code)
                seconds = time.perf_counter() - start
                if i >= 0:
                    records.append({"cell": name, "ranks": n_ranks, "seconds": seconds})
        _must(kernel, "%distributed stop")
        _must(kernel, "cluster.stop_cluster_sync()")
    return records


def main() -> None:
    options = arguments(
        "An empty cell on all ranks, %%distributed beside %%px.",
        ranks=("2,4,8", "numbers of ranks"),
        cells=(60, "timed cells of each kind"),
        warmup=(5, "cells before that"),
    ).parse_args()
    print_machine()
    records = [
        record
        for n_ranks in numbers(options.ranks)
        for record in measure(n_ranks, options.cells, options.warmup)
    ]
    rows = []
    for n_ranks in numbers(options.ranks):
        ms = {
            name: [
                1e3 * float(str(r["seconds"]))
                for r in records
                if (r["cell"], r["ranks"]) == (name, n_ranks)
            ]
            for name in _CELLS
        }
        px = median(ms["%%px"])
        rows += [
            [n_ranks, name, f"{median(t):.1f}", f"{percentile(t, 90):.1f}", f"{median(t) / px:.2f}"]
            for name, t in ms.items()
        ]
    print_table(["ranks", "empty cell", "median ms", "p90 ms", "of %%px"], rows)
    write_json(options.json, records)


if __name__ == "__main__":
    main()
