"""Stop cells again and again: are the ranks in step, is it said where not, and how long does it take.

A time is from `Workspace.interrupt` to the end of the cell in the client. Each stop is checked:
after a stop in a training loop all ranks have the same parameters, or the warning was printed; after
a stop within a long step the warning was printed. Else the program ends with an error.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Sequence

from common import arguments, median, print_machine, print_table, write_json

from phalanx.errors import CellError
from phalanx.workspace import StreamName, View, Workspace

_DIFFER = "variables may differ; px.broadcast them before you go on"
_WAIT_S = 120.0  # for anything that a machine with much else to do might delay

# Rank 1 is slower, and rank 2 does something between two operations that takes it more or less time.
_MAKE = """
import time
n, W = 0, np.zeros(1000)
def train(compute_s=0.0):
    global n, W
    while True:
        g = px.all_sum(np.ones(1000) * (rank + 1)) / size
        W = W - 0.1 * g
        n += 1
        if n % 20 == 0 or compute_s: print("step", flush=True)
        if rank == 1: time.sleep(0.001)
        if rank == 2: sum(range(n % 5000))
        until = time.monotonic() + compute_s
        while time.monotonic() < until: pass
"""
_EQUAL = """
n, W = px.broadcast(n), px.broadcast(W)
"""
# What is stopped: the cell, and whether the stop comes at once when all ranks have made a step.
KINDS = {
    "training": ("train()", False),
    "step of 2 s": ("train(2.0)", True),
    "no collectives": ('print("step", flush=True)\nwhile True: time.sleep(0.0001)', False),
}


class _View(View):
    """Keeps the notices, and knows which ranks have made a step."""

    def __init__(self, n_ranks: int) -> None:
        self.notices: list[str] = []
        self.has_begun = threading.Event()
        self._missing = set(range(n_ranks))

    def lines(self, stream: StreamName, lines: Sequence[tuple[tuple[int, ...], str]]) -> None:
        for ranks, _ in lines:
            self._missing.difference_update(ranks)
        if not self._missing:
            self.has_begun.set()

    def notice(self, text: str) -> None:
        self.notices.append(text)


def _stop(ws: Workspace, n_ranks: int, kind: str, draw: random.Random) -> tuple[float, bool]:
    """Stop a cell of this kind: seconds until it has ended, and whether the warning came."""
    code, is_at_once = KINDS[kind]
    view = _View(n_ranks)
    ended: list[float] = []

    def run() -> None:
        try:
            ws.run(code, view=view, max_lines=10**7)
        except CellError:
            ended.append(time.monotonic())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    if not view.has_begun.wait(_WAIT_S):
        sys.exit(f"{kind}: the cell did not begin")
    if not is_at_once:
        time.sleep(draw.uniform(0.0, 0.3))
    begun = time.monotonic()
    ws.interrupt()
    thread.join(_WAIT_S)
    if not ended:
        sys.exit(f"{kind}: the stop did not end the cell in a CellError")
    return ended[0] - begun, any(_DIFFER in notice for notice in view.notices)


def _are_equal(ws: Workspace) -> bool:
    states = {
        result.value for result in ws.run("import hashlib; (n, hashlib.sha256(W).hexdigest())")
    }
    return len(states) == 1


def measure(kind: str, n_ranks: int, n_stops: int, transport: str) -> list[dict[str, object]]:
    """Stop cells of a kind, one record for each stop; exit if one breaks the promise."""
    draw = random.Random(kind)
    records: list[dict[str, object]] = []
    with Workspace.start(n=n_ranks, transport=transport) as ws:
        ws.run(_MAKE)
        for number in range(n_stops):
            seconds, is_warned = _stop(ws, n_ranks, kind, draw)
            is_equal = _are_equal(ws)
            if not (is_equal or is_warned):
                sys.exit(f"{kind}, stop {number}: the ranks differ, and nothing was said")
            if kind == "step of 2 s" and not is_warned:
                sys.exit(f"{kind}, stop {number}: no warning")
            records.append(
                {"kind": kind, "seconds": seconds, "warned": is_warned, "equal": is_equal}
            )
            ws.run(_EQUAL)
    return records


def main() -> None:
    options = arguments(
        "Stop cells of uneven ranks: in step or warned, and after how long.",
        ranks=(4, "ranks"),
        training=(50, "stops in a training loop"),
        long=(10, "stops within a step that computes 2 s"),
        alone=(50, "stops of a cell without collectives"),
        transport=("any", "any or tcp"),
    ).parse_args()
    print_machine()
    wanted = dict(zip(KINDS, (options.training, options.long, options.alone), strict=True))
    records, rows = [], []
    for kind, n_stops in wanted.items():
        if not n_stops:
            continue
        some = measure(kind, options.ranks, n_stops, options.transport)
        records += some
        seconds = [float(str(record["seconds"])) for record in some]
        equal, warned = (sum(bool(its[word]) for its in some) for word in ("equal", "warned"))
        times = f"{median(seconds):.3f}", f"{max(seconds):.3f}"
        rows.append([kind, n_stops, equal, warned, *times])
    print_table(["stopped in", "stops", "equal", "warned", "median s", "max s"], rows)
    write_json(options.json, records)


if __name__ == "__main__":
    main()
