"""What it costs the ranks that somebody watches them: the same operation, watched and not, in turns.

One cell runs all_sum without an end; this process reads samples for a second as an open monitor
does, and then not for as long: watched, not, not, watched, and the other way round in the next
four, so that what drifts slowly is in both. Ranks note the time after each block of operations, on
the clock that this process has as well, so each block is of one turn.

Of a turn the mean time of one operation is taken: a look costs few operations much, which a median
would not see. What is told is the median over fours of how much longer the watched two are than
the others, with its 95 % interval from a bootstrap. ``--null 1`` watches in neither: the noise.

On a noisy machine that interval is wide, so the same is told in another way: watched turns have
moments at which something wakes, here or in the supervisor, and all that watching costs comes then.
Blocks that end soon after one are compared with those of the same turn that do not. A long block
has more such moments in it, whatever made it long: so the same is done with each turn that was not
watched, at the moments of the watched one beside it, and what comes of that is taken off.

The last column is what supervisors and this process use more of one core while they watch.
"""

from __future__ import annotations

import sys
import threading
import time
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
# After something has woken: a look takes 1 ms, many times that with a bad moment.
SOON_NS = 30_000_000

_CELL = """
import time
x, goes_on, marks = np.ones({count}, np.float32), np.ones(1), []
until_ns = time.monotonic_ns() + {nanoseconds}
while goes_on[0]:
    for _ in range({block}): px.all_sum(x)
    marks.append(time.monotonic_ns())
    goes_on[0] = px.broadcast(np.array([float(marks[-1] < until_ns)]))[0]
"""


class Watcher:
    """Reads samples as a widget does, or rests."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._number = self.n_samples = 0
        self.woken_ns: list[int] = []  # when the supervisor looked, and when this process did

    def watch(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            self.woken_ns.append(time.monotonic_ns())
            for samples in self._workspace.samples(self._number).samples:
                self.n_samples, self._number = self.n_samples + 1, samples.number
                self.woken_ns.append(samples.now_ns)
            time.sleep(min(READ_S, left_s))

    def rest(self) -> None:
        """End the wish, which outlives its last word by seconds: those would be in the next turn."""
        stop_samples(self._workspace)


class Helpers:
    """The processes that are no ranks."""

    def __init__(self, workspace: Workspace) -> None:
        ranks = {int(its.value) for its in workspace.run("import os; os.getpid()")}
        own = psutil.Process()
        others = own.children(recursive=True)
        self._processes = [own, *(its for its in others if its.pid not in ranks)]
        self._since_s, self._used_s = time.monotonic(), self._used()

    def _used(self) -> float:
        return sum(sum(its.cpu_times()[:2]) for its in self._processes)

    def percent(self) -> float:
        """Of one core, what they have used since this was asked for last."""
        now_s, used_s = time.monotonic(), self._used()
        spent = 100 * (used_s - self._used_s) / (now_s - self._since_s)
        self._since_s, self._used_s = now_s, used_s
        return spent


def measure(
    n_ranks: int, nbytes: int, rounds: int, turn_s: float, *, is_null: bool
) -> tuple[list[dict[str, Any]], int]:
    """Of each turn a record: microseconds of an operation, percent that was lost when something woke.

    Or would have woken. And how many samples came.
    """
    turns: list[tuple[bool, int, int, float]] = []
    seconds = 4 * rounds * (turn_s + SETTLE_S) + 3
    code = _CELL.format(count=nbytes // 4, nanoseconds=int(seconds * 1e9), block=BLOCK)
    with Workspace.start(n=n_ranks, linger=0) as workspace:
        watcher, helpers = Watcher(workspace), Helpers(workspace)
        cell = threading.Thread(target=workspace.run, args=(code,))
        cell.start()
        time.sleep(1.0)
        for number in range(rounds):
            for is_watched in (True, False, False, True):
                is_on = is_watched != bool(number % 2)
                wait = watcher.watch if is_on and not is_null else time.sleep
                wait(SETTLE_S)
                start_ns = time.monotonic_ns()
                helpers.percent()
                wait(turn_s)
                turns.append((is_on, start_ns, time.monotonic_ns(), helpers.percent()))
                watcher.rest()
        cell.join()
        marks = np.array(workspace.pull("marks", ranks=0))
    woken = np.sort(watcher.woken_ns)
    records = []
    for number, (is_on, start, end, cpu) in enumerate(turns):
        its = marks[(marks >= start) & (marks <= end)]
        us = (its[-1] - its[0]) / (len(its) - 1) / BLOCK / 1e3 if len(its) > 1 else float("nan")
        record = {"ranks": n_ranks, "nbytes": nbytes, "watched": is_on, "us": float(us)}
        record["cpu"] = cpu
        # The turn itself where it is watched, else the watched one of its half of the four.
        beside = number if is_on else number ^ 1
        record["lost"] = lost_percent(its, woken + (start - turns[beside][1]))
        records.append(record)
    return records, watcher.n_samples


def lost_percent(marks: np.ndarray, woken: np.ndarray) -> float:
    """How much longer a turn was by what happened soon after something had woken."""
    if len(woken) == 0 or len(marks) < 2:
        return float("nan")
    took = np.diff(marks)
    before = np.searchsorted(woken, marks[1:]) - 1
    is_soon = (before >= 0) & (marks[1:] - woken[before] < SOON_NS)
    if is_soon.all() or not is_soon.any():
        return float("nan")
    return float(100 * is_soon.mean() * (took[is_soon].mean() / took[~is_soon].mean() - 1))


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


def _told(records: list[dict[str, Any]]) -> str:
    """The mean and twice its standard error: what is rare and long counts as it should."""
    lost, chance = (
        np.array([its["lost"] for its in records if its["watched"] == is_on]) for is_on in (1, 0)
    )
    lost, chance = lost[np.isfinite(lost)], chance[np.isfinite(chance)]
    if min(len(lost), len(chance)) < 2:
        return ""
    error = (lost.var(ddof=1) / len(lost) + chance.var(ddof=1) / len(chance)) ** 0.5
    return f"{lost.mean() - chance.mean():+.2f} +- {2 * error:.2f}"


def _processor(records: list[dict[str, Any]]) -> str:
    watched, not_watched = (
        [its["cpu"] for its in records if its["watched"] == is_on] for is_on in (1, 0)
    )
    return f"{np.mean(watched) - np.mean(not_watched):+.2f}"


def main() -> None:
    options = arguments(
        "Time of an operation while somebody watches the ranks, and while nobody does.",
        ranks=("2,4", "numbers of ranks"),
        nbytes=(1 << 20, "bytes of the array"),
        rounds=(150, "times four turns"),
        turn=(1.0, "seconds of a turn"),
        null=(0, "1: watch in neither, to see the noise"),
    ).parse_args()
    print_machine()
    records, rows = [], []
    for n_ranks in numbers(options.ranks):
        found, n_samples = measure(
            n_ranks, options.nbytes, options.rounds, options.turn, is_null=bool(options.null)
        )
        records += found
        more = more_of(found)
        low, high = interval(more)
        rows.append(
            (
                n_ranks,
                options.nbytes,
                n_samples,
                f"{median([its['us'] for its in found if its['watched']]):.1f}",
                f"{median([its['us'] for its in found if not its['watched']]):.1f}",
                f"{float(np.median(more)):+.2f}",
                f"{low:+.2f} to {high:+.2f}",
                _told(found),
                _processor(found),
            )
        )
    header = (
        *("ranks", "bytes", "samples", "watched, us", "not watched, us", "cost, %", "95 %"),
        "soon after, %",
        "processor, % of a core",
    )
    print_table(header, rows)
    write_json(options.json, records)


if __name__ == "__main__":
    main()
