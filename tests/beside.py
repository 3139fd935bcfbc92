"""Files (and folders) whose tests may run beside others: `tests/run` runs them first, three at a time.

They hold nobody to a time that is short, and look at no processes but their own. A new file runs
alone until it is named here. Those in a browser have one of the three to themselves.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["BESIDE", "is_beside"]

_TESTS = Path(__file__).parent
BESIDE = (
    "benchmarks",
    *(
        f"cli/test_{name}.py"
        for name in (
            "cli", "config", "doctor_launchers", "launch_mpi", "launch_parts", "recover", "talking_in_browser", "tune",
        )
    ),
    *(
        f"distributed/test_{name}.py"
        for name in (
            "arguments", "bad_input", "bench", "bench_fit", "collectives", "connect", "contract",
            "environment", "farm", "frameworks", "gradients", "handshake", "interface", "key_file", "lanes",
            "meeting", "mpi", "package", "reductions", "rendezvous", "sites", "split", "stripes",
            "trace",
        )
    ),
    "fuzz",
    "hosts/test_batch_job.py",
    "hosts/test_jobs.py",
    *(
        f"hosts/test_{name}.py"
        for name in (
            "discovery", "hostfile", "linux_hosts", "measured", "plan", "rings", "setup", "where",
        )
    ),
    *(
        f"magics/test_{name}.py"
        for name in (
            "attach", "bad_input", "bandwidth", "cells", "config", "figures", "hosts", "restart", "shown_errors",
            "stacks", "start_options", "status", "terminal", "trace", "words", "wrong_arguments",
        )
    ),
    "notebooks",
    "protocol",
    "rank",
    *(
        f"supervisor/test_{name}.py"
        for name in (
            "dumps", "far_samples", "hopeless", "hopeless_simulated", "hopeless_worlds", "places", "quiet",
            "process", "refused", "runtime_folder", "samplers", "script_parts", "shown", "silent_line",
            "sweeper", "world",
        )
    ),
    "test_errors.py",
    "test_examples.py",
    "test_kernel_driver.py",
    "test_layers.py",
    "test_package.py",
    "test_runners.py",
    "widgets",
    *(
        f"workspace/test_{name}.py"
        for name in (
            "again", "asking", "attach", "bench", "come_back", "io", "leaks", "merge", "newcomers", "questions",
            "restart", "run", "splits", "status", "stopping", "text", "trace", "watch",
        )
    ),
)  # fmt: skip


def is_beside(path: Path) -> bool:
    """Whether the tests of a file may run beside others."""
    within = path.relative_to(_TESTS)
    return any(str(way) in BESIDE for way in (within, *within.parents))
