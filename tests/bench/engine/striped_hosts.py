"""all_sum between two hosts with two cards each: over one of them, and over both at once.

The hosts are network namespaces of the test bed (Linux), each card shaped at both its ends to the
same rate. One rank on each; a round is one sum of an array, which both send each other whole.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench.common import arguments, median, print_machine, print_table, write_json

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.hosts.bed import Bed

_CARDS = 2
_WARM_UP = 2  # the windows of new connections grow
_SCRIPT = """
import sys, time
import numpy as np
import phalanx as px
world = px.init(strict=True)
x = np.ones(int(sys.argv[1]) // 4, np.float32)
for turn in range(int(sys.argv[2])):
    world.barrier()
    start = time.perf_counter()
    total = px.all_sum(x)
    seconds = time.perf_counter() - start
    assert total[0] == total[-1] == world.size()
    if world.rank() == 0:
        print(seconds)
"""


def _measure(bed: Bed, n_cards: int, options: argparse.Namespace) -> list[float]:
    """Seconds of each sum, over the first so many cards."""
    hosts = [
        {"ssh": host.name, "ips": [host.address, host.address1][:n_cards]} for host in bed.hosts
    ]
    hostfile, script = bed.folder / "hosts.json", bed.folder / "script.py"
    hostfile.write_text(json.dumps(hosts))
    script.write_text(_SCRIPT)
    words = ["--label", "none", "--hostfile", hostfile, "--connections-per-ip", options.per_ip]
    command = [sys.executable, "-m", "phalanx", "launch", *words, script, options.nbytes]
    done = bed.run(0, [*command, options.rounds + _WARM_UP], timeout=300)
    return [float(line) for line in done.stdout.splitlines()][_WARM_UP:]


def main() -> None:
    parser = arguments(
        __doc__.splitlines()[0],
        rate=("1gbit", "of each card, each way"),
        nbytes=(64 << 20, "of the array"),
        per_ip=(1, "connections over each card"),
        rounds=(7, "sums of each kind"),
    )
    options = parser.parse_args()
    with Bed(2) as bed:
        bed.add_cables()
        for host in range(2):
            for card in range(_CARDS):
                bed.shape(host, options.rate, card)
        times = {n: _measure(bed, n, options) for n in range(1, _CARDS + 1)}
    print_machine()
    rows = [
        (
            n,
            f"{median(own) * 1e3:.1f}",
            f"{min(own) * 1e3:.1f}-{max(own) * 1e3:.1f}",
            f"{options.nbytes * 8e-9 / median(own):.3f}",
            f"{median(times[1]) / median(own):.2f}",
        )
        for n, own in times.items()
    ]
    header = ["cards", "median ms", "lowest-highest ms", "Gbit/s each way", "times one card"]
    print(f"all_sum of {options.nbytes} bytes, {options.rate} a card\n")
    print_table(header, rows)
    write_json(
        options.json,
        [{"cards": n, "seconds": value} for n, own in times.items() for value in own],
    )


if __name__ == "__main__":
    main()
