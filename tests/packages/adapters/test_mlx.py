"""MLX's own groups on our ranks: scripts that import MLX and no phalanx."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from support.programs.launching import launch, write_script
from support.runs.tiers import deep, deep_but

pytest.importorskip("mlx.core")
pytestmark = pytest.mark.slow

BEGIN = """
import mlx.core as mx, mlx.nn as nn, numpy as np
world = mx.distributed.init(strict=True)
rank, size = world.rank(), world.size()
"""

OPERATIONS = """
names = "bool_ int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 complex64"

def inputs(dtype, n):
    every = [np.random.default_rng([7, r]).integers(0, 9, n) for r in range(size)]
    return [mx.array(x).astype(dtype) for x in every]

def check(got, want, what):
    same = mx.array_equal(got, want).item()
    assert same and got.dtype == want.dtype, (what, got, want)

for name in names.split():
    dtype = getattr(mx, name)
    for n in (1, 5, 70_001):
        xs = inputs(dtype, n)
        mine = xs[rank]
        if dtype != mx.bool_:
            total = sum((x.astype(mx.float32 if name.endswith("float16") else dtype) for x in xs[1:]), xs[0])
            check(mx.distributed.all_sum(mine), total.astype(dtype), ("sum", name, n))
        if dtype != mx.complex64:  # MLX compares complex numbers in another way than numpy
            stack = mx.stack(xs)
            check(mx.distributed.all_max(mine), stack.max(axis=0).astype(dtype), ("max", name, n))
            check(mx.distributed.all_min(mine), stack.min(axis=0).astype(dtype), ("min", name, n))
        check(mx.distributed.all_gather(mine), mx.concatenate(xs), ("gather", name, n))

complexes = mx.array([complex(rank, -rank), complex(-rank, 1)])
most = mx.distributed.all_max(complexes)
assert most.tolist() == [complex(size - 1, 1 - size), complex(0, 1)], most
least = mx.distributed.all_min(complexes)
assert least.tolist() == [0, complex(1 - size, 1)], least

ring = mx.distributed.send(mx.arange(5) + rank, (rank + 1) % size)
mx.eval(ring) if rank % 2 == 0 else None
came = mx.distributed.recv_like(mx.arange(5), (rank - 1) % size)
mx.eval(came, ring)
check(came, mx.arange(5) + (rank - 1) % size, "recv")

part = world.split(rank % 2)
check(mx.distributed.all_sum(mx.array(rank), group=part), mx.array(sum(range(rank % 2, size, 2))), "split")
assert part.size() == len(range(rank % 2, size, 2)), part.size()

# In a compiled function, and through a gradient.
@mx.compile
def step(x):
    return nn.average_gradients({"w": x * 2, "b": [x, x + 1]})

for _ in range(3):
    mean = step(mx.ones(3) * rank)
    check(mean["w"], mx.ones(3) * (size - 1), "average")
slope = mx.grad(lambda x: mx.distributed.all_sum(x * x).sum())(mx.array([1.0, 2.0]))
assert slope.shape == (2,)
print("right", rank, size)
"""


@pytest.mark.parametrize(("n", "transport"), [(2, "tcp"), (3, "any")])
def test_all_operations_of_mlx_give_its_results(n, transport, tmp_path):
    script = write_script(tmp_path, BEGIN + OPERATIONS)
    ended = launch("-n", str(n), "--transport", transport, script)
    assert ended.returncode == 0, ended.stderr.decode()
    said = sorted(ended.stdout.decode().splitlines())
    assert said == [f"[{rank}] right {rank} {n}" for rank in range(n)]
    assert ended.stderr == b""


def test_a_rank_that_dies_is_named_in_the_main_thread_of_the_others(tmp_path):
    script = write_script(
        tmp_path,
        BEGIN
        + """
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
""",
    )
    ended = launch("-n", "3", script)
    said = sorted(ended.stdout.decode().splitlines())
    assert said == ["[0] RankFailure True True", "[2] RankFailure True True"], ended.stderr.decode()


@pytest.mark.parametrize(
    "last",
    [
        "mx.async_eval(y)",
        "import atexit; atexit.register(mx.eval, y)",
        "import threading; threading.Thread(target=lambda: mx.eval(differ())).start()",
        pytest.param("mx.async_eval(y); raise SystemExit(0)", marks=deep),
        pytest.param("mx.eval(mx.distributed.all_sum(y, group=part), y)", marks=deep),
    ],
)
def test_a_failure_after_the_last_instruction_is_one_error_of_the_script(last, tmp_path):
    begin = """
def differ(): return mx.distributed.all_sum(mx.ones(3 + rank))
part, y = world.split(0), differ()
"""
    script = write_script(tmp_path, BEGIN + begin + last)
    ended = launch("-n", "2", "--grace", "30", script)
    errors = [line for line in ended.stderr.decode().splitlines() if "CollectiveMismatch" in line]
    ranks = sorted(line[:3] for line in errors)
    assert ranks == ["[0]", "[1]"], ended.stderr.decode()
    assert ended.returncode == 1


def test_a_script_waits_at_its_end_for_what_it_has_submitted(tmp_path):
    script = write_script(
        tmp_path,
        BEGIN
        + """
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
""",
    )
    ended = launch("-n", "2", script)
    assert (ended.stdout, ended.stderr, ended.returncode) == (b"[0] 2.0\n", b"", 0)


def test_ranks_that_wait_for_each_other_at_the_end_of_one_are_told(tmp_path):
    script = write_script(
        tmp_path,
        BEGIN
        + """
import phalanx as px
if rank == 1:
    mx.async_eval(mx.distributed.all_sum(mx.ones(3)))
    raise SystemExit(3)
px.barrier()
""",
    )
    ended = launch("-n", "2", "--grace", "30", script)
    said = ended.stderr.decode()
    deadlock = "CollectiveMismatch: ranks 0-1 wait for each other: rank 0 in barrier"
    assert said.count(deadlock) == 2, said
    assert ended.returncode == 1


def test_an_exception_of_the_script_is_its_only_error(tmp_path):
    script = write_script(
        tmp_path,
        BEGIN
        + """
mx.async_eval(mx.distributed.all_sum(mx.ones(3)))
raise ValueError("no") if rank == 1 else SystemExit(0)
""",
    )
    ended = launch("-n", "2", "--grace", "30", script)
    said = ended.stderr.decode()
    assert said.count("ValueError: no") == 1, said
    assert [line for line in said.splitlines() if line.startswith("[1] ")][
        -1
    ] == "[1] ValueError: no"
    assert ended.returncode == 1


def test_after_recover_mlx_has_the_new_epoch(tmp_path):
    script = write_script(
        tmp_path,
        BEGIN
        + """
import phalanx as px
part = world.split(rank // 2)
try:
    px.all_sum(np.ones(2 + rank))
except px.CollectiveMismatch:
    px.recover()
total = mx.distributed.all_sum(mx.array(rank))
print(total.item(), mx.distributed.all_sum(mx.array(rank), group=part).item())
""",
    )
    ended = launch("-n", "4", script)
    said = sorted(ended.stdout.decode().splitlines())
    assert said == ["[0] 6 1", "[1] 6 1", "[2] 6 5", "[3] 6 5"], ended.stderr.decode()


def test_calls_of_phalanx_beside_mlx_do_not_mix(tmp_path):
    """MLX evaluates on a thread of its own, in another order than the main thread calls."""
    script = write_script(
        tmp_path,
        BEGIN
        + """
import phalanx as px
for i in range(200):
    lazy = mx.distributed.all_sum(mx.array(i + rank))
    if rank % 2:
        mx.async_eval(lazy)
    assert px.all_max(i + rank) == i + size - 1
    assert lazy.item() == size * i + sum(range(size)), i
print("right")
""",
    )
    ended = launch("-n", "3", script)
    said = sorted(ended.stdout.decode().splitlines())
    assert said == ["[0] right", "[1] right", "[2] right"], ended.stderr.decode()


def test_a_python_without_phalanx_says_what_to_install(tmp_path):
    script = write_script(
        tmp_path,
        """
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
""",
    )
    ended = launch("-n", "2", script)
    line = (
        "mx.distributed has the ranks of phalanx launch only where phalanx can be imported: "
        "install phalanx for this Python"
    )
    said = sorted(ended.stdout.decode().splitlines())
    assert said == [f"[{rank}] {line}" for rank in range(2)], ended.stderr.decode()


@pytest.mark.parametrize("n", deep_but([2], [1, 2]))
def test_a_version_of_mlx_that_refuses_the_library_is_named(n, tmp_path):
    script = write_script(
        tmp_path,
        """
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
""",
    )
    ended = launch("-n", str(n), script)
    words = f"NotSupported mlx {version('mlx')} does not take phalanx as its MPI, so mx.distributed has one rank"
    said = sorted(ended.stdout.decode().splitlines())
    assert len(said) == n, ended.stderr.decode()
    for rank, line in enumerate(said):
        assert line.startswith(f"[{rank}] {words if n > 1 else 'alone'}"), line


def test_one_rank_is_mlx_alone(tmp_path):
    script = write_script(tmp_path, "import mlx.core as mx\nprint(mx.distributed.init().size())\n")
    ended = launch("-n", "1", script)
    assert (ended.stdout, ended.stderr, ended.returncode) == (b"[0] 1\n", b"", 0)
