"""Time training steps with averaged gradients, beside the peers of each framework.

    python tests/bench/training_steps.py --ranks 2 4 --rounds 5

One small model in MLX (px.nn, `mx.distributed` on our engine, MLX's ring) and in torch (DDP on our
backend and on gloo; px.nn). The peers take turns. Each starts ranks anew, trains, checks that all
ranks have the same parameters as the first peer of its framework, and prints the median of its
steps. What is shown is the median over the rounds, in ms.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

N_STEPS, N_WARM = 40, 10
_MLX_LAUNCH = "from mlx._distributed_utils.launch import main; main()"
# Name: the launcher, and whether its ranks are ours.
PEERS = {
    "mlx: mx.distributed on phalanx": ("phalanx", "mlx"),
    "mlx: px.nn": ("phalanx", "mlx-nn"),
    "mlx: ring": ("mlx", "mlx"),
    "torch: DDP on phalanx": ("phalanx", "ddp"),
    "torch: px.nn": ("phalanx", "torch-nn"),
    "torch: DDP on gloo": ("torchrun", "ddp"),
}


def main() -> None:
    """Run all peers in turns and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--width", type=int, default=1024, help="of the layers (default 1024)")
    parser.add_argument("--peers", nargs="+", default=list(PEERS), metavar="NAME")
    options = parser.parse_args()
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    sums: dict[tuple[str, int], set[str]] = defaultdict(set)
    for _ in range(options.rounds):
        for n_ranks in options.ranks:
            for peer in options.peers:
                time_ms, checksum = _run(peer, n_ranks, options.width)
                times[peer, n_ranks].append(time_ms)
                sums[peer.partition(":")[0], n_ranks].add(checksum)
    print(f"median step in ms, {options.rounds} rounds of {N_STEPS} steps, width {options.width}")
    print(f"{'':34}" + "".join(f"{n:>8} ranks" for n in options.ranks))
    for peer in options.peers:
        row = [statistics.median(times[peer, n]) for n in options.ranks]
        print(f"{peer:34}" + "".join(f"{value:14.2f}" for value in row))
    differing = [f"{name} on {n} ranks" for (name, n), found in sums.items() if len(found) > 1]
    if differing:
        sys.exit(f"the peers have trained different parameters: {', '.join(differing)}")


def _run(peer: str, n_ranks: int, width: int) -> tuple[float, str]:
    launcher, kind = PEERS[peer]
    script = str(Path(__file__).with_name("training_rank.py"))
    words = {
        "phalanx": ["-m", "phalanx.cli", "launch", "-n", str(n_ranks), "--label", "none"],
        "mlx": ["-c", _MLX_LAUNCH, "-n", str(n_ranks), "--backend", "ring", sys.executable],
        "torchrun": ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n_ranks}"],
    }[launcher]
    ended = subprocess.run(
        [sys.executable, *words, script, kind, str(width), str(N_STEPS), str(N_WARM)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    lines = [line for line in ended.stdout.splitlines() if "{" in line]
    if ended.returncode or not lines:
        sys.exit(f"{peer} failed:\n{ended.stdout}{ended.stderr}")
    found = json.loads(lines[-1][lines[-1].index("{") :])
    return found["step_ms"], found["checksum"]


if __name__ == "__main__":
    main()
