"""Files (and folders) whose tests may run beside others: `tests/run` runs them first, three at a time.

They hold nobody to a time that is short, look at no processes but their own, and do not fork (JAX,
once some test has loaded it, warns of that). A new file runs alone until it is named here.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["BESIDE", "is_beside"]

_TESTS = Path(__file__).parent
BESIDE = (
    "benchmarks",
    *(f"cli/test_{name}.py" for name in ("cli", "launch_mpi", "launch_parts")),
    *(
        f"distributed/test_{name}.py"
        for name in (
            "arguments", "bad_input", "bench", "bench_fit", "collectives", "contract", "environment", "farm",
            "frameworks", "gradients", "handshake", "key_file", "lanes", "meeting", "mpi", "package", "reductions",
            "rendezvous", "sites", "split", "stripes", "trace",
        )
    ),
    "fuzz",
    "hosts/test_jobs.py",
    *(
        f"magics/test_{name}.py"
        for name in (
            "attach", "bad_input", "bandwidth", "cells", "figures", "restart", "status", "trace", "words",
            "wrong_arguments",
        )
    ),
    "notebooks",
    "protocol",
    "rank",
    *(
        f"supervisor/test_{name}.py"
        for name in (
            "hopeless_simulated", "places", "quiet", "runtime_folder", "script_parts", "shown",
            "sweeper", "world",
        )
    ),
    "test_errors.py",
    "test_examples.py",
    "test_kernel_driver.py",
    "test_layers.py",
    "test_package.py",
    "widgets/test_live_bandwidth.py",
    "widgets/test_pictures.py",
    *(
        f"workspace/test_{name}.py"
        for name in ("asking", "bench", "io", "merge", "questions", "run", "status", "stopping", "text")
    ),
)  # fmt: skip


def is_beside(path: Path) -> bool:
    """Whether the tests of a file may run beside others."""
    within = path.relative_to(_TESTS)
    return any(str(way) in BESIDE for way in (within, *within.parents))
