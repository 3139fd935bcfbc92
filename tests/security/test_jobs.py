"""Several jobs at once: each adds up its own arrays, or says why not; a scanner changes nothing."""

from __future__ import annotations

import subprocess
import textwrap

import pytest
from security.strangers import scanner
from support.programs.launching import LAUNCH
from support.runs.tiers import deep_but

# What each rank of a job runs: its job's number is in every sum, so that a stranger's would show.
JOB = textwrap.dedent(
    """
    import sys, numpy as np, phalanx as px
    job, n_operations = int(sys.argv[1]), int(sys.argv[2])
    world = px.init(timeout=float(sys.argv[3]))
    rank, size = world.rank(), world.size()
    for i in range(n_operations):
        x = np.full(1 + 37 * i % 5000, 1000.0 * job + rank + i)
        assert (px.all_sum(x) == sum(1000.0 * job + r + i for r in range(size))).all(), i
    assert [int(j) for j in px.all_gather(np.array([job]))] == [job] * size
    sys.stdout.write(f"job {job} rank {rank} of {size}\\n")  # whole, also where unbuffered
    """
)


def start(command):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ends(popens):
    return [(*popen.communicate(timeout=100), popen.returncode) for popen in popens]


@pytest.mark.slow
@pytest.mark.parametrize("transport", deep_but(["tcp"], ["any", "tcp"]))
def test_three_launches_at_once_while_ports_are_scanned(tmp_path, transport):
    """Only forming ranks listen, for milliseconds: connect/test_strangers meets them there for sure."""
    script = tmp_path / "job.py"
    script.write_text(JOB)
    with scanner():
        jobs = [
            start([*LAUNCH, "-n", str(n), "--transport", transport, "--label", "none",
                   str(script), str(job), "200", "60"])
            for job, n in enumerate([2, 3, 2])
        ]  # fmt: skip
        for job, (n, (out, err, code)) in enumerate(zip([2, 3, 2], ends(jobs), strict=True)):
            assert (code, err) == (0, "")
            assert sorted(out.splitlines()) == [f"job {job} rank {r} of {n}" for r in range(n)]
