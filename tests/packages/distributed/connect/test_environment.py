"""`px.init` outside any launcher of ours: variables of MLX and torchrun form no world."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.programs.launching import launch, write_script

ALONE = """
import phalanx as px
world = px.init()
assert px.init() is px.recover() is world
print(world.rank(), world.size(), px.all_sum(7))
try:
    px.init(strict=True)
except px.NotConfigured as error:
    print(error)
"""
TORCHRUN = {
    "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9",
}  # fmt: skip
MLX_NCCL = {"MLX_RANK": "0", "MLX_WORLD_SIZE": "2", "NCCL_HOST_IP": "127.0.0.1"}
MLX_RING = {"MLX_RANK": "0", "MLX_HOSTFILE": "hosts.json"}


def alone(cwd, variables):
    done = subprocess.run(
        [sys.executable, "-c", ALONE], env={**os.environ, **variables}, cwd=cwd,
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stdout.splitlines(), done.stderr.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "named"),
    [(TORCHRUN, "WORLD_SIZE=2"), (MLX_NCCL, "MLX_WORLD_SIZE=2"), (MLX_RING, "MLX_RANK=0")],
    ids=["torchrun", "mlx nccl", "mlx ring"],
)
def test_variables_form_no_world_and_one_line_says_so(tmp_path, variables, named):
    (tmp_path / "hosts.json").write_text('[["127.0.0.1:9"], ["127.0.0.1:10"]]')
    (summed, strict), (warning,) = alone(tmp_path, variables)
    assert summed == "0 1 7"
    says = f"{named} says that there are several ranks, but variables alone form no"
    assert warning.startswith(says)
    assert strict.startswith(f"[distributed] Couldn't initialize any backend: {says}")
    for line in (warning, strict):
        assert line.endswith("start the ranks with: phalanx launch -n N SCRIPT")


@pytest.mark.slow
@pytest.mark.parametrize(
    "variables",
    [{}, {"RANK": "0", "WORLD_SIZE": "1"}, {"WORLD_SIZE": "many"}, MLX_RING],
    ids=["none", "torchrun", "nonsense", "mlx"],
)
def test_one_rank_is_not_warned_of(tmp_path, variables):
    (tmp_path / "hosts.json").touch()  # as `mlx.launch -n 1` writes it
    (summed, strict), warnings = alone(tmp_path, variables)
    assert (summed, warnings) == ("0 1 7", [])
    assert "no Phalanx supervisor started this process" in strict


@pytest.mark.slow
def test_a_launcher_s_ranks_form_their_world_whatever_the_variables_say(tmp_path):
    script = write_script(tmp_path, "import phalanx as px\nprint(px.init(strict=True).size())")
    done = launch("-n", "2", "--label", "none", script, env={**os.environ, **MLX_RING, **TORCHRUN})
    assert (done.stdout, done.stderr, done.returncode) == (b"2\n2\n", b"", 0)
