"""How long a small cell takes on all ranks: `%%distributed` beside ipyparallel's `%%px`.

A time is a front end's: from sending the cell to a real ipykernel until its reply and its idle
state have come. Both sets of ranks live in the same kernel at the same time, and cells alternate.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.common import (
    arguments,
    median,
    numbers,
    percentile,
    print_machine,
    print_table,
    write_json,
)
from support.notebooks.kernel_driver import KernelDriver

_MAGICS = {"%%distributed": "%%distributed\n", "%%px": "%%px\n", "plain": ""}


def _must(kernel: KernelDriver, code: str) -> None:
    done = kernel.run(code, timeout=120)
    if done.status != "ok":
        sys.exit(f"{code}\n{done.text}")


def measure(n_ranks: int, bodies: list[str], cells: int, warmup: int) -> list[dict[str, object]]:
    """Seconds of each cell, one record per cell."""
    records = []
    with KernelDriver() as kernel:
        _must(kernel, f"%load_ext phalanx\n%distributed start -n {n_ranks} --linger 0")
        _must(
            kernel,
            "import ipyparallel\n"
            f"cluster = ipyparallel.Cluster(n={n_ranks}, log_level=50)\n"
            "client = cluster.start_and_connect_sync(activate=True)",
        )
        for i in range(-warmup, cells):
            for body, (name, magic) in itertools.product(bodies, _MAGICS.items()):
                start = time.perf_counter()
                _must(kernel, magic + body)
                seconds = time.perf_counter() - start
                if i >= 0:
                    records.append(
                        {"cell": name, "body": body, "ranks": n_ranks, "seconds": seconds}
                    )
        _must(kernel, "%distributed stop")
        _must(kernel, "cluster.stop_cluster_sync()")
    return records


def main() -> None:
    options = arguments(
        "A small cell on all ranks, %%distributed beside %%px.",
        ranks=("2,4,8", "numbers of ranks"),
        bodies=("pass,1+1", "what the cells say"),
        cells=(60, "timed cells of each kind"),
        warmup=(5, "cells before that"),
    ).parse_args()
    bodies = options.bodies.split(",")
    counts = numbers(options.ranks)
    print_machine()
    records = [
        record
        for n_ranks in counts
        for record in measure(n_ranks, bodies, options.cells, options.warmup)
    ]
    rows = []
    for n_ranks, body in itertools.product(counts, bodies):
        ms = {
            name: [
                1e3 * float(str(r["seconds"]))
                for r in records
                if (r["cell"], r["body"], r["ranks"]) == (name, body, n_ranks)
            ]
            for name in _MAGICS
        }
        px = median(ms["%%px"])
        for name, t in ms.items():
            row = [f"{median(t):.1f}", f"{percentile(t, 90):.1f}", f"{median(t) / px:.2f}"]
            rows.append([n_ranks, body, name, *row])
    print_table(["ranks", "cell", "by", "median ms", "p90 ms", "of %%px"], rows)
    write_json(options.json, records)


if __name__ == "__main__":
    main()
