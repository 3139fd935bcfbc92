"""Memory that a rank keeps of the lines that it prints: its anonymous memory before and after.

The first cell is not counted: it makes what is made once. Each cell's output is checked to have
been printed to its end.
"""

from __future__ import annotations

import sys
import time

from common import arguments, print_machine, print_table, write_json

from phalanx.workspace import Workspace

_SIZE = "int(open('/proc/self/status').read().split('RssAnon:')[1].split()[0])"


def _size_kib(ws: Workspace) -> int:
    (result,) = ws.run(_SIZE)
    return int(result.value)


def measure(lines: int, per_cell: int) -> list[dict[str, object]]:
    """Print the lines on one rank; a record after each cell."""
    records: list[dict[str, object]] = []
    with Workspace.start(n=1) as ws:
        code = f"for i in range({per_cell}): print(f'step {{i}} loss 0.123456')\ni + 1"
        ws.run(code, max_lines=100)
        before = _size_kib(ws)
        begun = time.monotonic()
        while not records or int(str(records[-1]["lines"])) < lines:
            (result,) = ws.run(code, max_lines=100)
            if result.value != str(per_cell):
                sys.exit(f"a cell ended after {result.value} lines")
            n_lines = (len(records) + 1) * per_cell
            grown = _size_kib(ws) - before
            seconds = time.monotonic() - begun
            records.append({"lines": n_lines, "grown_kib": grown, "seconds": seconds})
            if n_lines % 1_000_000 == 0:
                print(f"{n_lines} lines: {grown:+} KiB after {seconds:.0f} s", flush=True)
    return records


def main() -> None:
    options = arguments(
        "Growth of a rank's memory with the lines that it prints.",
        lines=(1_000_000, "lines in all"),
        cell=(100_000, "lines of each cell"),
    ).parse_args()
    print_machine()
    records = measure(options.lines, options.cell)
    last = records[-1]
    print_table(
        ["lines", "growth MiB", "seconds"],
        [[last["lines"], f"{int(str(last['grown_kib'])) / 1024:.2f}", f"{last['seconds']:.0f}"]],
    )
    write_json(options.json, records)


if __name__ == "__main__":
    main()
