"""How long from nothing to the first answered cell: ours beside ipyparallel's default cluster.

A time is of a fresh Python process, from before the first import to the answers of all ranks to
their first cell; rounds alternate, so that a busy minute hits both.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from common import arguments, median, print_machine, print_table, spread, write_json

_LIMIT_S = 120


def ours(n_ranks: int) -> float:
    """Seconds of a workspace."""
    start = time.perf_counter()
    from phalanx.workspace import Workspace

    with Workspace.start(n_ranks) as workspace:
        values = [int(result.value) for result in workspace.run("rank")]
        seconds = time.perf_counter() - start
    if values != list(range(n_ranks)):
        msg = f"wrong answers: {values}"
        raise SystemExit(msg)
    return seconds


def theirs(n_ranks: int) -> float:
    """Seconds of ipyparallel's ``Cluster`` with its defaults."""
    start = time.perf_counter()
    import ipyparallel

    with ipyparallel.Cluster(n=n_ranks, log_level=50) as client:
        client[:].execute("rank = 1").get()
        return time.perf_counter() - start


_PEERS = {"phalanx": ours, "ipyparallel": theirs}


def _measure(peer: str, n_ranks: int) -> float:
    done = subprocess.run(
        [sys.executable, __file__, "--ranks", str(n_ranks), "--child", peer],
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )
    if done.returncode:
        sys.exit(f"{peer} did not boot:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = arguments(
        "Boot to the first answered cell, ours beside ipyparallel's default Cluster.",
        ranks=(4, "ranks to boot"),
        rounds=(7, "alternating rounds"),
    )
    parser.add_argument("--child", choices=sorted(_PEERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(_PEERS[options.child](options.ranks))
        return
    print_machine()
    records = [
        {"peer": peer, "ranks": options.ranks, "round": i, "seconds": _measure(peer, options.ranks)}
        for i in range(options.rounds)
        for peer in _PEERS
    ]
    times = {p: [r["seconds"] for r in records if r["peer"] == p] for p in _PEERS}
    whole = median(times["ipyparallel"])
    print_table(
        ["boot of", "ranks", "median s", "lowest-highest s", "of ipyparallel's", "boots"],
        [
            [p, options.ranks, f"{median(t):.2f}", spread(t), f"{median(t) / whole:.2f}", len(t)]
            for p, t in times.items()
        ],
    )
    write_json(options.json, records)


if __name__ == "__main__":
    main()
