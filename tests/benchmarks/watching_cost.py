"""What it costs the ranks that somebody watches them: the same operation, watched and not, in turns.

One cell runs all_sum without an end; this process reads samples for some seconds as an open monitor
does, and then not for as long. Ranks note the time after each block of operations, on the clock that
this process has as well, so each block is of one turn. What is told is the median time of one
operation in each turn, and the median over pairs of turns of how much longer the watched one is.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
from common import arguments, median, numbers, print_machine, print_table, spread, write_json

from phalanx.workspace import Workspace
from phalanx.workspace._samples import LEASE_S

READ_S = 0.2
BLOCK = 20  # operations between two looks at the clock: that one costs nothing beside them

_CELL = """
import time
x, goes_on, marks = np.ones({count}, np.float32), np.ones(1), []
until_ns = time.monotonic_ns() + {nanoseconds}
while goes_on[0]:
    for _ in range({block}): px.all_sum(x)
    marks.append(time.monotonic_ns())
    goes_on[0] = px.broadcast(np.array([float(marks[-1] < until_ns)]))[0]
"""


def measure(n_ranks: int, nbytes: int, rounds: int, turn_s: float) -> list[dict[str, Any]]:
    """Microseconds of an operation in each turn, one record per turn."""
    turns: list[tuple[bool, int, int]] = []
    # A wish for samples outlives its last word; that time is of neither.
    seconds = rounds * (2 * turn_s + LEASE_S + READ_S) + 2
    code = _CELL.format(count=nbytes // 4, nanoseconds=int(seconds * 1e9), block=BLOCK)
    with Workspace.start(n=n_ranks, linger=0) as workspace:
        cell = threading.Thread(target=workspace.run, args=(code,))
        cell.start()
        time.sleep(1.0)
        n_samples = number = 0
        for _ in range(rounds):
            start_ns = time.monotonic_ns()
            while time.monotonic_ns() < start_ns + turn_s * 1e9:
                for samples in workspace.samples(number).samples:
                    n_samples, number = n_samples + 1, samples.number
                time.sleep(READ_S)
            turns.append((True, start_ns, time.monotonic_ns()))
            time.sleep(LEASE_S + READ_S)
            start_ns = time.monotonic_ns()
            time.sleep(turn_s)
            turns.append((False, start_ns, time.monotonic_ns()))
        cell.join()
        marks = np.array(workspace.pull("marks", ranks=0))
    took_us = np.diff(marks) / BLOCK / 1e3
    return [
        {
            "ranks": n_ranks,
            "nbytes": nbytes,
            "watched": is_watched,
            "us": float(np.median(took_us[(marks[:-1] >= start) & (marks[1:] <= end)])),
            "samples": n_samples,
        }
        for is_watched, start, end in turns
    ]


def main() -> None:
    options = arguments(
        "Time of an operation while somebody watches the ranks, and while nobody does.",
        ranks=("2,4", "numbers of ranks"),
        nbytes=(1 << 20, "bytes of the array"),
        rounds=(10, "pairs of turns"),
        turn=(4.0, "seconds of a turn"),
    ).parse_args()
    print_machine()
    records, rows = [], []
    for n_ranks in numbers(options.ranks):
        found = measure(n_ranks, options.nbytes, options.rounds, options.turn)
        records += found
        on = [its["us"] for its in found if its["watched"]]
        off = [its["us"] for its in found if not its["watched"]]
        more = [100 * (a / b - 1) for a, b in zip(on, off, strict=True)]
        rows.append(
            (
                n_ranks,
                options.nbytes,
                found[0]["samples"],
                f"{median(on):.1f} ({spread(on)})",
                f"{median(off):.1f} ({spread(off)})",
                f"{median(more):+.2f} ({spread(more)})",
            )
        )
    header = ("ranks", "bytes", "samples", "watched, us", "not watched, us", "cost, %")
    print_table(header, rows)
    write_json(options.json, records)


if __name__ == "__main__":
    main()
