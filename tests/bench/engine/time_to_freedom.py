"""From a death to the exception on the last rank that lives, by what the ranks are doing.

A time is of one `phalanx launch`: the last rank notes the clock and kills (or stops) itself, each
other one notes it when the error has come, which must name that rank. The clock is one for all
processes of a machine. Small things take the system's scheduler along: say how loaded it was.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
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

_LIMIT_S = 60
_SETTLE_S = 0.3  # the others are in their operation by then
_LARGE = 16 << 20  # float32 elements: 64 MiB

# What the others do: (words, transport).
PHASES = {
    "python": ("Python, every 1 ms an operation without it", "any"),
    "arena": ("waiting in all_sum, shared memory", "any"),
    "tcp": ("waiting in all_sum, tcp", "tcp"),
    "large": ("amid all_sum of 64 MiB, shared memory", "any"),
    "large-tcp": ("amid all_sum of 64 MiB, tcp", "tcp"),
    "recv": ("recv from it, shared memory", "any"),
    "recv-tcp": ("recv from it, tcp", "tcp"),
    "async": ("Work.wait", "any"),
    "join": ("px.init, which it never calls", "any"),
    "freeze": ("waiting in all_sum; it is stopped", "any"),
}


def _end(phase: str, folder: Path) -> None:
    """Note the time and die, or freeze."""
    (folder / "ended").write_text(repr(time.monotonic()))
    os.kill(os.getpid(), signal.SIGSTOP if phase == "freeze" else signal.SIGKILL)


def _wait(phase: str, victim: int) -> None:
    """Do what others do until an error comes."""
    import numpy as np

    import phalanx as px

    world = px.init()
    is_victim = world.rank() == victim
    part = world.split(int(is_victim)) if phase == "python" else None
    px.all_sum(1)
    if is_victim:
        later = threading.Timer(_SETTLE_S, _end, (phase, Path(os.environ["FREEDOM"])))
        later.start()
        if not phase.startswith("large"):
            later.join()
    while phase == "python":
        px.all_sum(1, group=part)
        time.sleep(0.001)
    if phase.startswith("large"):
        x = np.ones(_LARGE, np.float32)
        while True:
            px.all_sum(x, out=x)
    if phase.startswith("recv"):
        px.recv((3,), "float32", victim)
    elif phase == "async":
        px.all_sum(np.ones(3), async_op=True).wait()
    else:
        px.all_sum(1)


def _rank(phase: str) -> None:
    """Run as one rank of a launch; say when which loss was told."""
    import phalanx as px

    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a launch ends the others; we end by ourselves
    rank, victim = int(os.environ["PHALANX_RANK"]), int(os.environ["PHALANX_SIZE"]) - 1
    if phase == "join" and rank == victim:
        time.sleep(2 * _SETTLE_S)
        _end(phase, Path(os.environ["FREEDOM"]))
    try:
        _wait(phase, victim)
    except px.RankFailure as error:
        print("freed", repr(time.monotonic()), error.rank, flush=True)
        sys.exit(1)


def measure(phase: str, n_ranks: int, silence_s: float) -> float:
    """Seconds from the end of one rank to the error on the last of the others."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                *[sys.executable, "-m", "phalanx", "launch", "-n", str(n_ranks)],
                *["--transport", PHASES[phase][1], "--label", "none"],
                *["--silence", str(silence_s), "--grace", "0.5"],
                *[__file__, "--child", phase],
            ],
            env={**os.environ, "FREEDOM": folder, "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True, text=True, check=False, timeout=_LIMIT_S,
        )  # fmt: skip
        freed = [line.split() for line in done.stdout.splitlines() if line.startswith("freed")]
        if len(freed) != n_ranks - 1 or {int(rank) for _, _, rank in freed} != {n_ranks - 1}:
            sys.exit(
                f"{phase}: not every rank named rank {n_ranks - 1}:\n{done.stdout}{done.stderr}"
            )
        ended_s = float((Path(folder) / "ended").read_text())
        return max(float(at_s) for _, at_s, _ in freed) - ended_s


def main() -> None:
    parser = arguments(
        "Time from a rank's death to the error on the last of the others, by what they do.",
        ranks=("2,4", "numbers of ranks"),
        rounds=(20, "deaths of each kind"),
        freezes=(3, "freezes, which take the silence limit each"),
        silence=(5.0, "the silence limit, in seconds"),
        phases=(",".join(PHASES), "what the others do"),
    )
    parser.add_argument("--child", choices=list(PHASES), help="(a rank of this benchmark)")
    options = parser.parse_args()
    if options.child:
        _rank(options.child)
        return
    print_machine()
    phases = options.phases.split(",")
    if unknown := set(phases) - PHASES.keys():
        parser.error(
            f"there is no phase {', '.join(sorted(unknown))}; there are {', '.join(PHASES)}"
        )
    load_before = os.getloadavg()[0]
    records = [
        {
            "phase": phase,
            "ranks": ranks,
            "round": i,
            "seconds": measure(phase, ranks, options.silence),
        }
        for ranks in numbers(options.ranks)
        for phase in phases
        for i in range(options.freezes if phase == "freeze" else options.rounds)
    ]
    print(f"- load average before and after: {load_before:.1f}, {os.getloadavg()[0]:.1f}\n")
    rows = []
    for ranks in numbers(options.ranks):
        for phase in phases:
            times = [
                1e3 * r["seconds"] for r in records if (r["phase"], r["ranks"]) == (phase, ranks)
            ]
            spread = (f"{t:.1f}" for t in (median(times), percentile(times, 90), max(times)))
            rows.append([PHASES[phase][0], ranks, *spread, len(times)])
    print_table(["the others", "ranks", "median ms", "90 % ms", "worst ms", "times"], rows)
    write_json(options.json, records)


if __name__ == "__main__":
    main()
