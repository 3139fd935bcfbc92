"""What it costs the ranks that somebody watches them: the same operation, watched and not, in turns.

One cell runs all_sum without an end; this process reads samples for a second as an open monitor
does, and then not for as long: watched, not, not, watched, and the other way round in the next
four, so that what drifts slowly is in both. Ranks note the time after each block of operations, on
the clock that this process has as well, so each block is of one turn.

Of a turn the mean time of one operation is taken: a look costs few operations much, which a median
would not see. What is told is the median over fours of how much longer the watched two are than
the others, with its 95 % interval from a bootstrap. The last column is what supervisors and this
process use more of one core while they watch.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import psutil
from bench.common import arguments, median, numbers, print_machine, print_table, write_json
from support.inside import stop_samples

from phalanx.workspace import Workspace

READ_S = 0.2
SETTLE_S = 0.45  # a supervisor takes up to 0.34 s to see that nobody watches any more
BLOCK = 10  # operations between two looks at the clock: that one costs nothing beside them
RESAMPLES = 4000

_CELL = """
import time
x, goes_on, marks = np.ones({count}, np.float32), np.ones(1), []
until_ns = time.monotonic_ns() + {nanoseconds}
while goes_on[0]:
    for _ in range({block}): px.all_sum(x)
    marks.append(time.monotonic_ns())
    goes_on[0] = px.broadcast(np.array([float(marks[-1] < until_ns)]))[0]
assert (px.all_sum(x) == size).all()
"""


def watch(workspace: Workspace, seconds: float) -> None:
    """Read samples as a widget does."""
    until_s, number = time.monotonic() + seconds, 0
    while (left_s := until_s - time.monotonic()) > 0:
        for samples in workspace.samples(number).samples:
            number = samples.number
        time.sleep(min(READ_S, left_s))


def helpers_of(workspace: Workspace) -> list[psutil.Process]:
    """Return this process and those that it has started and that are no ranks."""
    ranks = {int(its.value) for its in workspace.run("import os; os.getpid()")}
    own = psutil.Process()
    return [own, *(its for its in own.children(recursive=True) if its.pid not in ranks)]


def used_s(processes: list[psutil.Process]) -> float:
    """Return the processor seconds that processes have used so far."""
    return sum(sum(its.cpu_times()[:2]) for its in processes)


def measure(n_ranks: int, nbytes: int, rounds: int, turn_s: float) -> list[dict[str, Any]]:
    """Return a record of each turn: microseconds of an operation, percent of a core that helpers used."""
    turns: list[tuple[bool, int, int, float]] = []
    seconds = 4 * rounds * (turn_s + SETTLE_S) + 3
    code = _CELL.format(count=nbytes // 4, nanoseconds=int(seconds * 1e9), block=BLOCK)
    with Workspace.start(n=n_ranks, linger=0) as workspace, ThreadPoolExecutor(1) as pool:
        helpers = helpers_of(workspace)
        cell = pool.submit(workspace.run, code)
        time.sleep(1.0)
        for number in range(rounds):
            for is_watched in (True, False, False, True):
                is_on = is_watched != bool(number % 2)
                wait = (lambda s: watch(workspace, s)) if is_on else time.sleep
                wait(SETTLE_S)
                start_ns, start_s = time.monotonic_ns(), used_s(helpers)
                wait(turn_s)
                end_ns = time.monotonic_ns()
                cpu = 100 * (used_s(helpers) - start_s) / (end_ns - start_ns) * 1e9
                turns.append((is_on, start_ns, end_ns, cpu))
                stop_samples(workspace)  # the wish outlives its last word by seconds
        cell.result()
        marks = np.array(workspace.pull("marks", ranks=0))
    records = []
    for is_on, start, end, cpu in turns:
        its = marks[(marks >= start) & (marks <= end)]
        us = (its[-1] - its[0]) / (len(its) - 1) / BLOCK / 1e3 if len(its) > 1 else float("nan")
        records.append(
            {"ranks": n_ranks, "nbytes": nbytes, "watched": is_on, "us": float(us), "cpu": cpu}
        )
    return records


def more_of(records: list[dict[str, Any]]) -> np.ndarray:
    """By how many percent the watched turns of each four are longer than the others."""
    us = np.log([its["us"] for its in records]).reshape(-1, 4)
    is_on = np.array([its["watched"] for its in records]).reshape(-1, 4)
    more = 100 * np.expm1((np.where(is_on, us, -us)).sum(axis=1) / 2)
    return more[np.isfinite(more)]  # without a four in one of whose turns hardly anything was done


def interval(values: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of the median, from a bootstrap."""
    dice = np.random.default_rng(1)
    drawn = np.median(dice.choice(values, (RESAMPLES, len(values))), axis=1)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(low), float(high)


def main() -> None:
    options = arguments(
        "Time of an operation while somebody watches the ranks, and while nobody does.",
        ranks=("2,4", "numbers of ranks"),
        nbytes=(1 << 20, "bytes of the array"),
        rounds=(150, "times four turns"),
        turn=(1.0, "seconds of a turn"),
    ).parse_args()
    print_machine()
    records, rows = [], []
    for n_ranks in numbers(options.ranks):
        found = measure(n_ranks, options.nbytes, options.rounds, options.turn)
        records += found
        more = more_of(found)
        low, high = interval(more)
        watched, others = ([its for its in found if its["watched"] == is_on] for is_on in (1, 0))
        cpu = np.mean([its["cpu"] for its in watched]) - np.mean([its["cpu"] for its in others])
        us = (f"{median([its['us'] for its in turns]):.1f}" for turns in (watched, others))
        cost = (f"{float(np.median(more)):+.2f}", f"{low:+.2f} to {high:+.2f}", f"{cpu:+.2f}")
        rows.append((n_ranks, options.nbytes, *us, *cost))
    header = ("ranks", "bytes", "watched, us", "not watched, us", "cost, %", "95 %")
    print_table((*header, "processor, % of a core"), rows)
    write_json(options.json, records)


if __name__ == "__main__":
    main()
