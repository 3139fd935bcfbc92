"""What a printed line costs on its way to the browser: `%%distributed` beside ipyparallel's `%%px`.

Bytes are those of all messages that a real ipykernel publishes for the cell (their contents as
JSON); the time is a front end's, to the cell's end. Lines differ by rank, so none come together.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.common import arguments, median, numbers, print_machine, print_table, write_json
from support.notebooks.kernel_driver import KernelDriver

_BODY = "for i in range({lines}): print(f'rank {{rank}} line {{i:012d}}', flush=True)"


class CountingDriver(KernelDriver):
    """Counts the bytes of what the kernel publishes."""

    n_bytes = 0

    def messages(self, seconds: float) -> Iterator[tuple[str, dict[str, Any]]]:
        for channel, message in super().messages(seconds):
            if channel == "iopub":
                self.n_bytes += len(json.dumps(message["content"]))
            yield channel, message


def _must(kernel: KernelDriver, code: str) -> None:
    done = kernel.run(code, timeout=120)
    if done.status != "ok":
        sys.exit(f"{code}\n{done.text}")


def measure(n_ranks: int, lines: int, rounds: int) -> list[dict[str, object]]:
    """Bytes and seconds of each cell, one record per cell."""
    records: list[dict[str, object]] = []
    n_text = n_ranks * lines * len("rank 0 line 000000000000\n")
    with CountingDriver() as kernel:
        _must(kernel, f"%load_ext phalanx\n%distributed start -n {n_ranks} --linger 0")
        _must(
            kernel,
            "import ipyparallel\n"
            f"cluster = ipyparallel.Cluster(n={n_ranks}, log_level=50)\n"
            "client = cluster.start_and_connect_sync(activate=True)\n"
            f"client[:].scatter('rank', range({n_ranks}), flatten=True)",
        )
        for _ in range(rounds):
            for magic in ("%%distributed", "%%px"):
                # All of it shown: without this the notebook would be spared the 10,001st line on.
                words = f" --max-lines {n_ranks * lines}" if magic == "%%distributed" else ""
                kernel.n_bytes = 0
                start = time.perf_counter()
                _must(kernel, f"{magic}{words}\n{_BODY.format(lines=lines)}")
                records.append(
                    {
                        "cell": magic,
                        "ranks": n_ranks,
                        "seconds": time.perf_counter() - start,
                        "bytes": kernel.n_bytes,
                        "text": n_text,
                    }
                )
        _must(kernel, "%distributed stop")
        _must(kernel, "cluster.stop_cluster_sync()")
    return records


def main() -> None:
    options = arguments(
        "Bytes to the front end and time of a cell that prints, %%distributed beside %%px.",
        ranks=("2,4", "numbers of ranks"),
        lines=(5000, "lines that each rank prints"),
        rounds=(3, "alternating rounds"),
    ).parse_args()
    print_machine()
    records = [
        record
        for n_ranks in numbers(options.ranks)
        for record in measure(n_ranks, options.lines, options.rounds)
    ]
    rows = []
    for n_ranks in numbers(options.ranks):
        for magic in ("%%distributed", "%%px"):
            some = [r for r in records if (r["cell"], r["ranks"]) == (magic, n_ranks)]
            n_bytes = median([float(str(r["bytes"])) for r in some])
            n_text = float(str(some[0]["text"]))
            seconds = median([float(str(r["seconds"])) for r in some])
            rows.append(
                [
                    n_ranks,
                    magic,
                    f"{n_bytes / 1e6:.2f}",
                    f"{n_bytes / n_text:.1f}",
                    f"{seconds:.2f}",
                ]
            )
    print_table(["ranks", "cell", "MB sent", "of the text", "median s"], rows)
    write_json(options.json, records)


if __name__ == "__main__":
    main()
