"""How long it takes to come back to ranks: from `Workspace.attach` to the answers to a first cell.

Each round comes to ranks that were let go: from this process again, and from a new one (without
its imports, which a notebook has done before). The mark is 1 s (issue 6).
"""

from __future__ import annotations

import subprocess
import sys
import time

from common import arguments, median, print_machine, print_table, spread, write_json

_LIMIT_S = 120
_CODE = "px.all_sum(1)"


def attach(name: str) -> float:
    """Seconds to the answers of all ranks."""
    from phalanx.workspace import Workspace

    start = time.perf_counter()
    with Workspace.attach(name) as workspace:
        workspace.join()
        values = [result.value for result in workspace.run(_CODE)]
        seconds = time.perf_counter() - start
        size = workspace.size
    if values != [str(size)] * size:
        msg = f"wrong answers: {values}"
        raise SystemExit(msg)
    return seconds


def _elsewhere(name: str) -> float:
    """Seconds in a new process."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", name],
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )
    if done.returncode:
        sys.exit(f"a new process could not attach:\n{done.stderr}")
    return float(done.stdout)


def _measure(n_ranks: int, n_rounds: int) -> dict[str, list[float]]:
    from phalanx.workspace import Workspace

    times: dict[str, list[float]] = {"same process": [], "new process": []}
    with Workspace.start(n_ranks, detach=True) as workspace:
        name = workspace.name
    try:
        for _ in range(n_rounds):
            times["same process"].append(attach(name))
            times["new process"].append(_elsewhere(name))
    finally:
        Workspace.attach(name).stop()
    return times


def main() -> None:
    parser = arguments(
        __doc__.splitlines()[0], ranks=(4, "how many"), rounds=(20, "attaches of each kind")
    )
    parser.add_argument("--child", help="attach once to the workspace of this name")
    options = parser.parse_args()
    if options.child:
        print(attach(options.child))
        return
    times = _measure(options.ranks, options.rounds)
    print_machine()
    rows = [
        (kind, options.ranks, f"{median(own):.3f}", spread(own), len(own))
        for kind, own in times.items()
    ]
    print_table(["attach from", "ranks", "median s", "lowest-highest s", "attaches"], rows)
    write_json(
        options.json,
        [{"from": kind, "seconds": value} for kind, own in times.items() for value in own],
    )


if __name__ == "__main__":
    main()
