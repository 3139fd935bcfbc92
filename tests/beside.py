"""Which tests may run at the same time: `tests/run` runs three parts, one after the other.

BESIDE, three files at a time: they hold nobody to a time that is short, and look at no processes but
their own. Those in a browser have one of the three to themselves. IN_PAIRS, two at a time: they hold
to times of seconds, and wait for most of theirs; the longest first. A new file runs alone, one by
one, until it is named here.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["PARTS", "place_of"]

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
            "meeting", "mpi", "mpi_contract", "package", "reductions", "rendezvous", "sites", "split", "stripes",
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
            "again", "asking", "bench", "come_back", "io", "leaks", "merge", "newcomers", "questions",
            "restart", "run", "status", "stopping", "text", "trace", "watch",
        )
    ),
)  # fmt: skip

IN_PAIRS = (
    "supervisor/test_nothing_left.py",
    "hosts/test_slurm.py",
    "distributed/test_mpi_work.py",
    *(f"cli/test_{name}.py" for name in ("detach", "doctor", "launch_ssh", "lab_in_browser")),
    *(
        f"hosts/test_{name}.py"
        for name in ("grid_engine", "mpirun", "notebook_over_ssh")
    ),
    *(f"magics/test_{name}.py" for name in ("front_ends", "magics", "stdin", "tmux", "typing")),
    "security",
    *(
        f"supervisor/test_{name}.py"
        for name in ("reach", "remote_host", "root_link", "ssh", "stack_pipe")
    ),
    "test_bed.py",
    "test_jupyter_servers.py",
    "test_readme.py",
    *(
        f"workspace/test_{name}.py"
        for name in (
            "attach", "help", "life", "lone_messages", "samples", "samples_of_hosts", "splits",
        )
    ),
)  # fmt: skip

PARTS = {"beside": BESIDE, "pairs": IN_PAIRS, "alone": ()}


def place_of(path: Path) -> tuple[str, int]:
    """The part of a run that a file's tests belong to, and where the file is named in it."""
    within = path.relative_to(_TESTS)
    ways = {str(way) for way in (within, *within.parents)}
    for part, names in PARTS.items():
        for index, name in enumerate(names):
            if name in ways:
                return part, index
    return "alone", 0
