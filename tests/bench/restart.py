"""How long from the death of a rank, and from the asking for a new one, to the next right sum.

The ranks of one workspace on this machine. Each round kills a rank between two cells, asks for
its replacement when the workspace knows of the death, and runs a sum over all ranks.
"""

from __future__ import annotations

import os
import signal
import time

from common import arguments, median, print_machine, print_table, spread, write_json

from phalanx.workspace import Workspace


def one_round(workspace: Workspace, rank: int) -> tuple[float, float]:
    """Seconds until a new rank takes cells, and until the first right sum."""
    os.kill(workspace.topology().ranks[rank].pid, signal.SIGKILL)
    while workspace.topology().ranks[rank].state != "dead":
        time.sleep(0.001)
    start = time.perf_counter()
    workspace.restart(rank)
    replaced_s = time.perf_counter() - start
    values = [result.value for result in workspace.run("px.all_sum(rank + 1)")]
    if values != [str(workspace.size * (workspace.size + 1) // 2)] * workspace.size:
        msg = f"wrong sums: {values}"
        raise SystemExit(msg)
    return replaced_s, time.perf_counter() - start


def main() -> None:
    parser = arguments(
        "From the asking for a new rank to the first right sum of all ranks.",
        ranks=(4, "ranks of the workspace"),
        rounds=(10, "restarts, of one rank after the other"),
    )
    options = parser.parse_args()
    print_machine()
    with Workspace.start(options.ranks) as workspace:
        records = []
        for i in range(options.rounds):
            replaced_s, sum_s = one_round(workspace, i % options.ranks)
            records.append(
                {"ranks": options.ranks, "round": i, "replaced_s": replaced_s, "sum_s": sum_s}
            )
    rows = []
    for what, key in (("it is there", "replaced_s"), ("the first right sum", "sum_s")):
        times = [record[key] for record in records]
        rows.append([what, options.ranks, f"{median(times):.3f}", spread(times), len(times)])
    print_table(["restart until", "ranks", "median s", "lowest-highest s", "restarts"], rows)
    write_json(options.json, records)


if __name__ == "__main__":
    main()
