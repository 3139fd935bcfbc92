"""How long it takes to come back to ranks: from `Workspace.attach` to the first answered cell.

Each round lets the ranks go and attaches again from this process, and from a new one (whose
imports count as well); the mark is 1 s (issue 6).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from phalanx.workspace import Workspace

CODE = """
import sys, time
began = time.perf_counter()
from phalanx.workspace import Workspace
with Workspace.attach(sys.argv[1]) as ws:
    ws.join()
    assert [result.value for result in ws.run("px.all_sum(1)")] == [str(ws.size)] * ws.size
    print(time.perf_counter() - began)
"""


def here(name: str) -> float:
    """Attach from this process; seconds to the first answer."""
    began_s = time.perf_counter()
    with Workspace.attach(name) as ws:
        ws.join()
        ws.run("px.all_sum(1)")
        return time.perf_counter() - began_s


def elsewhere(name: str) -> float:
    """Attach from a new process; seconds to the first answer, with its imports."""
    said = subprocess.run(
        [sys.executable, "-c", CODE, name], check=True, capture_output=True, text=True
    )
    return float(said.stdout)


def main() -> None:
    """Measure and print the median and the worst."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=4, help="ranks (default 4)")
    parser.add_argument("--rounds", type=int, default=20, help="of each kind (default 20)")
    options = parser.parse_args()
    ws = Workspace.start(options.n, detach=True)
    try:
        ws.detach()
        for what, measure in (("same process", here), ("new process", elsewhere)):
            times = [measure(ws.name) for _ in range(options.rounds)]
            print(
                f"{what:<13} {options.n} ranks, {options.rounds} rounds: "
                f"median {statistics.median(times):.3f} s, worst {max(times):.3f} s"
            )
    finally:
        Workspace.attach(ws.name).stop()


if __name__ == "__main__":
    main()
