"""Run the tests that torch ships in its wheel on a backend; print one line a test.

`phalanx launch -n 3 tests/adapters/torch_own_tests.py phalanx RESULTS [WORD]`, and the same with
``gloo``. The tests take their skips from gloo, whose tensors are on the CPU as ours are. A run goes
on where RESULTS, a file, ends: a test may end the process.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import unittest
from datetime import timedelta
from pathlib import Path

backend, results, word = sys.argv[1], Path(sys.argv[2]), (sys.argv[3:] or [""])[0]
os.environ["BACKEND"] = "gloo"
os.environ.setdefault("TEMP_DIR", str(results) + ".temp")
LIMIT_S = 30

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import TEST_SKIPS
from torch.testing._internal.distributed import distributed_test

import phalanx as px

SKIPS = {skip.exit_code for skip in TEST_SKIPS.values()}
group = px.init()
rank, size = group.rank(), group.size()


class Tests(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def _barrier(self, *args, **kwargs):
        px.barrier()


def out_of_time(*_):
    msg = f"the test took more than {LIMIT_S} s"
    raise TimeoutError(msg)


def outcome_of(name):
    test = Tests(name)
    test.rank, test.file_name = rank, files[0]
    signal.alarm(LIMIT_S)
    try:
        if backend == "gloo":
            dist.init_process_group(
                "gloo",
                init_method=f"file://{files[0]}",
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=15),
            )
        else:
            dist.init_process_group(backend, timeout=timedelta(seconds=15))
        torch.manual_seed(1234)
        getattr(test, name)()
    except unittest.SkipTest as skip:
        return f"skip: {skip}"
    except SystemExit as end:
        return "skip" if end.code in SKIPS else f"exit {end.code}"
    except BaseException as error:  # noqa: BLE001
        return f"FAIL: {type(error).__name__}: {str(error).strip()[:200]!r}"
    finally:
        signal.alarm(0)
    return "pass"


signal.signal(signal.SIGALRM, out_of_time)
Path(os.environ["TEMP_DIR"]).mkdir(exist_ok=True)
for folder in ("barrier", "test_dir"):
    (Path(os.environ["TEMP_DIR"]) / folder).mkdir(exist_ok=True)
(Path(os.environ["TEMP_DIR"]) / "lockfile").touch()
names = sorted(name for name in dir(Tests) if name.startswith("test_") and word in name)
begun = set(results.read_text().split("\n")) if results.exists() else set()
done = {line.split(" ", 1)[0] for line in begun if line}
px.barrier()
for name in names:
    if name in done:
        continue
    files = [tempfile.mktemp(dir=os.environ["TEMP_DIR"])] if rank == 0 else [""]
    files = px.broadcast_object(files)
    if rank == 0:
        with results.open("a") as file:
            file.write(f"{name} begun\n")
    outcome = outcome_of(name)
    px.recover(60)
    try:
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException as error:  # noqa: BLE001
        outcome += f" ({type(error).__name__} in destroy_process_group)"
    every = px.all_gather_object(outcome)
    worst = next((one for one in every if one.startswith(("FAIL", "exit"))), every[0])
    if rank == 0:
        with results.open("a") as file:
            file.write(f"{name} {worst}\n")
