"""Memory that ranks keep of the lines that they print: their anonymous memory before and after.

The first cell is not counted: it makes what is made once. Each cell's output is checked to have
been printed to its end. The client's peak is measured as well: what lies in its queue is bounded.
"""

from __future__ import annotations

import resource
import sys
import time

from common import arguments, print_machine, print_table, write_json

from phalanx.workspace import Workspace

_SIZE = "int(open('/proc/self/status').read().split('RssAnon:')[1].split()[0])"


def _sizes_kib(ws: Workspace) -> list[int]:
    return [int(result.value) for result in ws.run(_SIZE)]


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(lines: int, per_cell: int, n_ranks: int) -> list[dict[str, object]]:
    """Print the lines on each rank; a record after each cell, of the rank that has grown the most."""
    records: list[dict[str, object]] = []
    with Workspace.start(n=n_ranks) as ws:
        code = f"for i in range({per_cell}): print(f'step {{i}} loss 0.123456')\ni + 1"
        ws.run(code, max_lines=100)
        before, peak = _sizes_kib(ws), _peak_kib()
        begun = time.monotonic()
        while not records or int(str(records[-1]["lines"])) < lines:
            values = {result.value for result in ws.run(code, max_lines=100)}
            if values != {str(per_cell)}:
                sys.exit(f"a cell ended after {values} lines")
            n_lines = (len(records) + 1) * per_cell
            grown = max(now - then for now, then in zip(_sizes_kib(ws), before, strict=True))
            its = {"lines": n_lines, "grown_kib": grown, "client_kib": _peak_kib() - peak}
            records.append({**its, "seconds": time.monotonic() - begun})
            if n_lines % 1_000_000 == 0:
                print(records[-1], flush=True)
    return records


def main() -> None:
    options = arguments(
        "Growth of ranks' and the client's memory with the lines that ranks print.",
        ranks=(1, "ranks"),
        lines=(1_000_000, "lines in all of each rank"),
        cell=(100_000, "lines of each cell"),
    ).parse_args()
    print_machine()
    records = measure(options.lines, options.cell, options.ranks)
    last = records[-1]
    mib = [f"{int(str(last[what])) / 1024:.2f}" for what in ("grown_kib", "client_kib")]
    print_table(
        ["lines", "growth of a rank, MiB", "of the client, at most", "seconds"],
        [[last["lines"], *mib, f"{last['seconds']:.0f}"]],
    )
    write_json(options.json, records)


if __name__ == "__main__":
    main()
