"""Start ranks of a script with the launcher of each peer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_MLX_LAUNCH = "from mlx._distributed_utils.launch import main; main()"
_LIMIT_S = 300


def run_ranks(
    launcher: str,
    size: int,
    script: str,
    words: list[str],
    *,
    options: tuple[str, ...] = (),
    openmpi: str = "",
) -> dict[str, Any]:
    """Run a script of this folder on ranks; return what rank 0 prints as JSON.

    ``launcher`` is "phalanx", which takes ``options``, "mlx", "torchrun" or "openmpi", which is in the
    folder ``openmpi``.
    """
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable]
    if launcher == "phalanx":
        command += ["-m", "phalanx", "launch", "-n", str(size), "--label", "none", *options]
    elif launcher == "mlx":
        command += ["-c", _MLX_LAUNCH, "-n", str(size), "--backend", "ring", sys.executable]
    elif launcher == "torchrun":
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    else:
        command = [f"{openmpi}/bin/mpirun", "-n", str(size), "--map-by", ":OVERSUBSCRIBE"]
        command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        command += [sys.executable]
        (library,) = Path(openmpi, "lib").glob("libmpi.so.*")
        env |= {"MLX_MPI_LIBNAME": str(library)}
    with tempfile.TemporaryDirectory() as folder:
        # A folder that a killed mpirun has left would be in the way of one with its pid.
        env |= {"PRTE_MCA_prte_tmpdir_base": folder}
        ended = subprocess.run(
            [*command, str(_HERE / script), *words],
            capture_output=True, text=True, check=False, timeout=_LIMIT_S, env=env,
        )  # fmt: skip
    lines = [line for line in ended.stdout.splitlines() if "{" in line]
    if ended.returncode or not lines:
        sys.exit(f"{script} of {launcher} on {size} ranks failed:\n{ended.stdout}{ended.stderr}")
    found: dict[str, Any] = json.loads(lines[-1][lines[-1].index("{") :])
    return found
