"""MLX's own groups on our ranks: scripts that import MLX. What operations give: system/mlx_tests."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from support.programs.launching import of_each, printed, run_script
from support.runs.tiers import deep, deep_but

pytest.importorskip("mlx.core")
pytestmark = pytest.mark.slow

BEGIN = """
import mlx.core as mx, mlx.nn as nn, numpy as np
world = mx.distributed.init(strict=True)
rank, size = world.rank(), world.size()
"""

DIES = """
import os, signal
steps = 0
try:
    for steps in range(1000):
        x = mx.distributed.all_sum(mx.ones(1000))
        if steps == 3 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        mx.eval(x)
except RuntimeError as error:
    # Rank 1 may have left the operation before when others were still in it.
    print(type(error).__name__, "rank 1" in str(error), steps in (2, 3))
    raise SystemExit(0)
print("went on")
"""


def test_a_rank_that_dies_is_named_in_the_main_thread_of_the_others(tmp_path):
    said = printed(tmp_path, 3, BEGIN + DIES)
    assert said == ["[0] RankFailure True True", "[2] RankFailure True True"]


DIFFER = """
def differ(): return mx.distributed.all_sum(mx.ones(3 + rank))
part, y = world.split(0), differ()
"""
WAIT_IN_VAIN = """
import phalanx as px
if rank == 1:
    mx.async_eval(mx.distributed.all_sum(mx.ones(3)))
    raise SystemExit(3)
px.barrier()
"""
ONE_RAISES = """
mx.async_eval(mx.distributed.all_sum(mx.ones(3)))
raise ValueError("no") if rank == 1 else SystemExit(0)
"""


@pytest.mark.parametrize(
    ("code", "error", "ranks"),
    [
        (DIFFER + "mx.async_eval(y)", "CollectiveMismatch", "01"),
        (DIFFER + "import atexit; atexit.register(mx.eval, y)", "CollectiveMismatch", "01"),
        (DIFFER + "import threading; threading.Thread(target=lambda: mx.eval(differ())).start()", "CollectiveMismatch", "01"),
        pytest.param(DIFFER + "mx.async_eval(y); raise SystemExit(0)", "CollectiveMismatch", "01", marks=deep),
        pytest.param(DIFFER + "mx.eval(mx.distributed.all_sum(y, group=part), y)", "CollectiveMismatch", "01", marks=deep),
        (WAIT_IN_VAIN, "CollectiveMismatch: ranks 0-1 wait for each other: rank 0 in barrier", "01"),
        (ONE_RAISES, "ValueError: no", "1"),
    ],
)  # fmt: skip
def test_a_failure_after_the_last_instruction_is_one_error_of_the_script(
    code, error, ranks, tmp_path
):
    ended = run_script(tmp_path, 2, BEGIN + code, "--grace", "30")
    lines = ended.stderr.decode().splitlines()
    assert sorted(line[:3] for line in lines if error in line) == [f"[{rank}]" for rank in ranks]
    for rank in ranks:
        assert error in [line for line in lines if line.startswith(f"[{rank}]")][-1]
    assert ended.returncode == 1


WAITS = """
import os, psutil
pids = mx.distributed.all_gather(mx.array([os.getpid()])).tolist()
x = mx.distributed.all_sum(mx.ones(1000))
if rank == 1:
    mx.async_eval(x)
else:
    try:
        psutil.Process(pids[1]).wait(timeout=1)  # it would end before rank 0 does its part
    except psutil.TimeoutExpired:
        mx.eval(x)
        print(x[0].item())
"""


@pytest.mark.parametrize(
    ("n", "code", "said"),
    [(2, WAITS, b"[0] 2.0\n"), (1, "print(size)", b"[0] 1\n")],
    ids=["waits for what it has submitted", "alone"],
)
def test_a_script_ends_well(n, code, said, tmp_path):
    ended = run_script(tmp_path, n, BEGIN.replace("strict=True", "") + code)
    assert (ended.stdout, ended.stderr, ended.returncode) == (said, b"", 0)


RECOVERS = """
import phalanx as px
part = world.split(rank // 2)
try:
    px.all_sum(np.ones(2 + rank))
except px.CollectiveMismatch:
    px.recover()
total = mx.distributed.all_sum(mx.array(rank))
print(total.item(), mx.distributed.all_sum(mx.array(rank), group=part).item())
"""


def test_after_recover_mlx_has_the_new_epoch(tmp_path):
    said = printed(tmp_path, 4, BEGIN + RECOVERS)
    assert said == ["[0] 6 1", "[1] 6 1", "[2] 6 5", "[3] 6 5"]


MIXED = """
import phalanx as px
for i in range(200):
    lazy = mx.distributed.all_sum(mx.array(i + rank))
    if rank % 2:
        mx.async_eval(lazy)
    assert px.all_max(i + rank) == i + size - 1
    assert lazy.item() == size * i + sum(range(size)), i
print("right")
"""


def test_calls_of_phalanx_beside_mlx_do_not_mix(tmp_path):
    """MLX evaluates on a thread of its own, in another order than the main thread calls."""
    assert printed(tmp_path, 3, BEGIN + MIXED) == of_each(3, "right")


WITHOUT_PHALANX = """
import sys, importlib.abc
class Refuses(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "phalanx": raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Refuses())
import mlx.core as mx
try:
    mx.distributed.init()
    for _ in range(1000): pass
except ImportError as error:
    print(error)
"""
REFUSES_LIBRARY = """
import ctypes, os
import mlx.core as mx
# As a version that asks for the library's version, and misses a function then.
mx.distributed.is_available = lambda backend="any": False
library = ctypes.PyDLL(os.environ["MLX_MPI_LIBNAME"])
try:
    library.MPI_Get_library_version(ctypes.create_string_buffer(256), ctypes.byref(ctypes.c_int()))
    for _ in range(1000): pass
except RuntimeError as error:
    print(type(error).__name__, error)
else:
    print("alone")
"""


def test_a_python_without_phalanx_says_what_to_install(tmp_path):
    assert printed(tmp_path, 2, WITHOUT_PHALANX) == of_each(
        2,
        "mx.distributed has the ranks of phalanx launch only where phalanx can be imported: "
        "install phalanx for this Python",
    )


@pytest.mark.parametrize("n", deep_but([2], [1, 2]))
def test_a_version_of_mlx_that_refuses_the_library_is_named(n, tmp_path):
    words = f"NotSupported mlx {version('mlx')} does not take phalanx as its MPI, so mx.distributed has one rank"
    begins = of_each(n, words if n > 1 else "alone")
    for line, begin in zip(printed(tmp_path, n, REFUSES_LIBRARY), begins, strict=True):
        assert line.startswith(begin)
