"""How long one typed line takes to all ranks: of `input`, and of a debugger's command.

Times are a front end's over a real ipykernel. *heard*: from sending the reply until the last rank
goes on, by the ranks' own clocks (the same machine's). *shown*: until the front end has the
output of all ranks. *asked again*: until the next prompt, which is what stepping feels like.
"""

from __future__ import annotations

import re
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
from support.patience import ASKED_TOGETHER

_TIME = "('t', rank, __import__('time').time())"
_CELLS = {
    "input": f"%%distributed\nfor _ in range({{n}}): input('> '); print({_TIME})",
    "debugger": "%%distributed\nfor _ in range(1):\n    breakpoint()\n    pass",
}
_STAMP = re.compile(r"\('t', (\d+), (\d+\.\d+)\)$", re.MULTILINE)


def measure(kernel: KernelDriver, kind: str, n_ranks: int, lines: int) -> list[dict[str, object]]:
    """Seconds of each line, one record per line."""
    records: list[dict[str, object]] = []
    cell = kernel.submit(_CELLS[kind].format(n=lines + 1))
    n_stamps = 0
    for i in range(lines):
        cell.until(lambda result, n=i: len(result.prompts) > n)
        begin, begin_wall = time.perf_counter(), time.time()
        kernel.type_line("line" if kind == "input" else f"p {_TIME}")
        wanted = n_stamps + n_ranks
        done = cell.until(lambda result, n=wanted: len(_STAMP.findall(result.stdout)) >= n)
        shown = time.perf_counter() - begin
        stamps = [float(text) for _, text in _STAMP.findall(done.stdout)[n_stamps:]]
        n_stamps = wanted
        cell.until(lambda result, n=i + 1: len(result.prompts) > n)
        again = time.perf_counter() - begin
        times = {"heard": max(stamps) - begin_wall, "shown": shown, "asked again": again}
        records += [{"kind": kind, "ranks": n_ranks, "what": w, "s": s} for w, s in times.items()]
    kernel.type_line("c")
    if cell.result().status != "ok":
        sys.exit(cell.result().text)
    return records


def main() -> None:
    options = arguments(
        "One typed line, answered on all ranks.",
        ranks=("2,4,8", "numbers of ranks"),
        lines=(40, "typed lines of each kind"),
    ).parse_args()
    print_machine()
    records = []
    for n_ranks in numbers(options.ranks):
        with KernelDriver() as kernel:
            started = kernel.run(
                f"%load_ext phalanx\n{ASKED_TOGETHER}\n%distributed start -n {n_ranks} --linger 0",
                timeout=120,
            )
            if started.status != "ok":
                sys.exit(started.text)
            for kind in _CELLS:
                records += measure(kernel, kind, n_ranks, options.lines)
    rows = []
    for key in dict.fromkeys((r["ranks"], r["kind"], r["what"]) for r in records):
        ms = [
            1e3 * float(str(r["s"])) for r in records if (r["ranks"], r["kind"], r["what"]) == key
        ]
        rows.append([*key, f"{median(ms):.1f}", f"{percentile(ms, 90):.1f}", f"{max(ms):.1f}"])
    print_table(["ranks", "line to", "until all have", "median ms", "p90 ms", "max ms"], rows)
    write_json(options.json, records)


if __name__ == "__main__":
    main()
