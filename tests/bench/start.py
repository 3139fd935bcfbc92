"""How long ranks of this machine take to start, to be attached to again, and to be replaced.

- boot: from before the first import in a fresh process to the answers of all ranks to their first
  cell; beside ipyparallel's default Cluster.
- attach: from `Workspace.attach` to the answers to a first cell; from this process, and from a new one
  (without its imports, which a notebook has done before). The mark is 1 s (issue 6).
- restart: a rank is killed between two cells; from the asking for a new one, once the workspace knows
  of the death, until it is there, and until the next right sum of all ranks.

Rounds alternate, so that a busy minute hits all.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from common import arguments, median, print_machine, print_table, spread, write_json

_LIMIT_S = 120


def _check(values: list[str | None], expected: list[str]) -> None:
    if values != expected:
        sys.exit(f"wrong answers: {values}")


def boot_phalanx(n_ranks: int, _name: str) -> float:
    """Return the seconds of a workspace."""
    start = time.perf_counter()
    from phalanx.workspace import Workspace

    with Workspace.start(n_ranks) as workspace:
        values = [result.value for result in workspace.run("rank")]
        seconds = time.perf_counter() - start
    _check(values, [str(rank) for rank in range(n_ranks)])
    return seconds


def boot_ipyparallel(n_ranks: int, _name: str) -> float:
    """Return the seconds of ipyparallel's ``Cluster`` with its defaults."""
    start = time.perf_counter()
    import ipyparallel

    with ipyparallel.Cluster(n=n_ranks, log_level=50) as client:
        client[:].execute("rank = 1").get()
        return time.perf_counter() - start


def attach(n_ranks: int, name: str) -> float:
    """Return the seconds from the attaching to the answers of all ranks."""
    from phalanx.workspace import Workspace

    start = time.perf_counter()
    with Workspace.attach(name) as workspace:
        workspace.join()
        values = [result.value for result in workspace.run("px.all_sum(1)")]
        seconds = time.perf_counter() - start
    _check(values, [str(n_ranks)] * n_ranks)
    return seconds


def restart(n_ranks: int, name: str, rank: int) -> tuple[float, float]:
    """Kill a rank; return the seconds until a new one takes cells, and until the first right sum."""
    from phalanx.workspace import Workspace

    with Workspace.attach(name) as workspace:
        os.kill(workspace.topology().ranks[rank].pid, signal.SIGKILL)
        while workspace.topology().ranks[rank].state != "dead":
            time.sleep(0.001)
        start = time.perf_counter()
        workspace.restart(rank)
        replaced_s = time.perf_counter() - start
        values = [result.value for result in workspace.run("px.all_sum(rank + 1)")]
        sum_s = time.perf_counter() - start
    _check(values, [str(n_ranks * (n_ranks + 1) // 2)] * n_ranks)
    return replaced_s, sum_s


_CHILDREN: dict[str, Callable[[int, str], float]] = {
    "boot phalanx": boot_phalanx,
    "boot ipyparallel": boot_ipyparallel,
    "attach, new process": attach,
}


def in_new_process(what: str, n_ranks: int, name: str = "") -> float:
    """Return the seconds that a fresh process measures."""
    words = ["--ranks", str(n_ranks), "--child", what, "--name", name]
    done = subprocess.run(
        [sys.executable, __file__, *words],
        capture_output=True, text=True, check=False, timeout=_LIMIT_S,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{what} failed:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def measure(n_ranks: int, n_rounds: int) -> dict[str, list[float]]:
    """Return the seconds of all rounds, by what was measured."""
    from phalanx.workspace import Workspace

    boots, of_ranks = (
        ("boot phalanx", "boot ipyparallel"),
        ("attach, same process", "attach, new process"),
    )
    times: dict[str, list[float]] = {
        what: [] for what in (*boots, *of_ranks, "restart, it is there", "restart, first right sum")
    }
    for _ in range(n_rounds):
        for what in boots:
            times[what].append(in_new_process(what, n_ranks))
    with Workspace.start(n_ranks, detach=True) as workspace:
        name = workspace.name
    try:
        for i in range(n_rounds):
            times["attach, same process"].append(attach(n_ranks, name))
            times["attach, new process"].append(
                in_new_process("attach, new process", n_ranks, name)
            )
            replaced_s, sum_s = restart(n_ranks, name, i % n_ranks)
            times["restart, it is there"].append(replaced_s)
            times["restart, first right sum"].append(sum_s)
    finally:
        Workspace.attach(name).stop()
    return times


def main() -> None:
    parser = arguments(
        "Time to start ranks, beside ipyparallel; to attach to them; to replace one.",
        ranks=(4, "how many"),
        rounds=(7, "how often each"),
    )
    parser.add_argument("--child", choices=list(_CHILDREN), help=argparse.SUPPRESS)
    parser.add_argument("--name", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(_CHILDREN[options.child](options.ranks, options.name))
        return
    print_machine()
    times = measure(options.ranks, options.rounds)
    print_table(
        ["what", "ranks", "median s", "lowest-highest s", "times"],
        [
            (what, options.ranks, f"{median(own):.3f}", spread(own), len(own))
            for what, own in times.items()
        ],
    )
    write_json(
        options.json,
        [
            {"what": what, "ranks": options.ranks, "round": i, "seconds": seconds}
            for what, own in times.items()
            for i, seconds in enumerate(own)
        ],
    )


if __name__ == "__main__":
    main()
