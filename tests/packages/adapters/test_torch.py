"""torch.distributed on our ranks: scripts that import torch and no phalanx."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.programs.launching import of_each, printed, run_script
from support.promise import PATIENCE_S
from support.runs.tiers import deep

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

BEGIN = """
import os
for name in ("MASTER_ADDR", "MASTER_PORT"):
    os.environ.pop(name, None)
import torch, torch.distributed as dist
dist.init_process_group("phalanx")
rank, size = dist.get_rank(), dist.get_world_size()
"""

OPERATIONS = """
names = "bool int8 uint8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128"

def inputs(dtype, *shape):
    draw = torch.Generator().manual_seed(7)
    return [torch.randint(0, 5, shape, generator=draw).to(dtype) for _ in range(size)]

def check(got, want, *what):
    assert got.dtype == want.dtype and torch.equal(got, want), (*what, got, want)

def total(xs, dtype):
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    return sum((x.to(wide) for x in xs[1:]), xs[0].to(wide)).to(dtype)

def variants(x):
    "The tensor itself, with gaps, and transposed."
    gaps = torch.zeros(*x.shape, 2, dtype=x.dtype)[..., 0].copy_(x)
    return x.clone(), gaps, x.t().contiguous().t()

R = dist.ReduceOp
for name in names.split():
    dtype = getattr(torch, name)
    for shape in ((0, 3), (1, 3), (5, 4), (300, 235)):
        xs = inputs(dtype, *shape)
        for is_async in (False, True):
            def done(work):
                assert (work is not None) == is_async
                if is_async:
                    assert work.wait() and work.is_completed() and work.is_success()
            for x in variants(xs[rank]):
                if name != "bool":
                    y = x.clone(memory_format=torch.preserve_format)
                    done(dist.all_reduce(y, async_op=is_async))
                    check(y, total(xs, dtype), "sum", name, shape)
                if name in ("float32", "float64"):
                    y = x.clone(memory_format=torch.preserve_format)
                    done(dist.all_reduce(y, R.AVG, async_op=is_async))
                    check(y, total(xs, dtype) / size, "avg", name)
                if not dtype.is_complex:
                    most = torch.stack(xs).amax(0)
                    y = x.clone(memory_format=torch.preserve_format)
                    done(dist.all_reduce(y, R.MAX, async_op=is_async))
                    check(y, most, "max", name)
                y = torch.empty_like(x)
                y = x.clone() if rank == size - 1 else torch.zeros_like(x)
                done(dist.broadcast(y, size - 1, async_op=is_async))
                check(y, xs[-1], "broadcast", name)
                out = torch.zeros(size, *shape, dtype=dtype)
                done(dist.all_gather_into_tensor(out, x, async_op=is_async))
                check(out, torch.stack(xs), "all_gather_into_tensor", name)
                apart = [torch.zeros(shape, dtype=dtype) for _ in xs]
                done(dist.all_gather(apart, x, async_op=is_async))
                for got, want in zip(apart, xs):
                    check(got, want, "all_gather", name)
                views = list(torch.zeros(size, *shape, dtype=dtype).unbind())
                done(dist.all_gather(views, x, async_op=is_async))
                for got, want in zip(views, xs):
                    check(got, want, "all_gather of views", name)
                if name != "bool":
                    y = torch.zeros(shape, dtype=dtype)
                    xs2 = [torch.cat([x + r for r in range(size)]) for x in xs]
                    done(dist.reduce_scatter_tensor(y, xs2[rank], async_op=is_async))
                    check(y, total([x + rank for x in xs], dtype), "reduce_scatter_tensor", name)
                    parts = list(xs2[rank].clone().chunk(size))
                    done(dist.reduce_scatter(y, parts, async_op=is_async))
                    check(y, total([x + rank for x in xs], dtype), "reduce_scatter", name)
                    y = x.clone()
                    done(dist.reduce(y, 0, async_op=is_async))
                    check(y, total(xs, dtype) if rank == 0 else xs[rank], "reduce", name)
                got = [torch.zeros(shape, dtype=dtype) for _ in xs] if rank == 0 else None
                done(dist.gather(x, got, 0, async_op=is_async))
                for one, want in zip(got or [], xs):
                    check(one, want, "gather", name)
                y = torch.zeros(shape, dtype=dtype)
                done(dist.scatter(y, xs if rank == 0 else None, 0, async_op=is_async))
                check(y, xs[rank], "scatter", name)

for reduce_op, function in ((R.PRODUCT, torch.mul), (R.BAND, torch.bitwise_and),
                            (R.BOR, torch.bitwise_or), (R.BXOR, torch.bitwise_xor)):
    xs = inputs(torch.int32, 4, 5)
    want = xs[0]
    for x in xs[1:]:
        want = function(want, x)
    y = xs[rank].clone()
    dist.all_reduce(y, reduce_op)
    check(y, want, reduce_op)
    y, x = torch.zeros(4, 5, dtype=torch.int32), torch.cat([xs[rank]] * size)
    dist.reduce_scatter_tensor(y, x, reduce_op)
    check(y, want, "scatter", reduce_op)
y, x = torch.zeros(3), torch.arange(3.0 * size) * (rank - 1)
dist.reduce_scatter_tensor(y, x, R.MIN)
check(y, torch.stack([torch.arange(3.0 * size) * (r - 1) for r in range(size)]).amin(0).chunk(size)[rank], "min")
odd = torch.full((4,), rank, dtype=torch.uint8).view(torch.float8_e5m2)
out = torch.zeros(size * 4, dtype=torch.float8_e5m2)
dist.all_gather_into_tensor(out, odd)
assert out.view(torch.uint8).tolist() == [r for r in range(size) for _ in range(4)]

# Exchanges of equal and of different sizes.
x = torch.arange(size * 2) + 100 * rank
y = torch.empty_like(x)
dist.all_to_all_single(y, x)
check(y, torch.cat([torch.arange(2 * rank, 2 * rank + 2) + 100 * r for r in range(size)]), "all_to_all_single")
ins = [(rank + r) % 3 for r in range(size)]
x = torch.full((sum(ins), 2), float(rank))
y = torch.empty(sum(ins), 2)
work = dist.all_to_all_single(y, x, ins, ins, async_op=True)
work.wait()
check(y, torch.cat([torch.full(((rank + r) % 3, 2), float(r)) for r in range(size)]), "uneven")
got = [torch.empty(1 + r) for r in range(size)]
dist.all_to_all(got, [torch.full((1 + rank,), float(rank)) for r in range(size)])
for r, one in enumerate(got):
    check(one, torch.full((1 + r,), float(r)), "all_to_all")
mine = [torch.empty(r + 1) for r in range(size)]
dist.all_gather(mine, torch.full((rank + 1,), float(rank)))
assert [one.tolist() for one in mine] == [[float(r)] * (r + 1) for r in range(size)]

# Coalesced.
xs = [torch.full((n,), float(rank + n)) for n in (1, 2, 3)]
with dist.distributed_c10d._coalescing_manager():
    for x in xs:
        dist.all_reduce(x)
for n, x in zip((1, 2, 3), xs):
    check(x, torch.full((n,), float(sum(range(size)) + n * size)), "coalesced")
outs = [torch.zeros(size * n) for n in (1, 2)]
with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
    for n, out in zip((1, 2), outs):
        dist.all_gather_into_tensor(out, torch.full((n,), float(rank)))
manager.wait()
assert outs[1].tolist() == [float(r) for r in range(size) for _ in range(2)]

# Futures.
x = torch.ones(3) * rank
future = dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
check(future.wait(), torch.ones(3) * sum(range(size)) * 2, "future")

# Objects.
every = [None] * size
dist.all_gather_object(every, {"rank": rank})
assert every == [{"rank": r} for r in range(size)]
word = ["said" if rank == 0 else None]
dist.broadcast_object_list(word, 0)
assert word == ["said"]
one = [None]
dist.scatter_object_list(one, list(range(size)) if rank == 0 else None, 0)
assert one == [rank]
all_of_them = [None] * size if rank == 0 else None
dist.gather_object(rank, all_of_them, 0)
assert rank or all_of_them == list(range(size))
dist.barrier()
dist.barrier(async_op=True).wait()

# Messages with tags, and some that all ranks send first.
if size > 1:
    after, before = (rank + 1) % size, (rank - 1) % size
    big = torch.arange(200_000.0) + rank
    sent = [dist.isend(big, after, tag=1), dist.isend(torch.tensor([rank]), after, tag=2)]
    small, came = torch.tensor([-1]), torch.zeros(200_000)
    dist.recv(small, before, tag=2)
    dist.recv(came, before, tag=1)
    for work in sent:
        work.wait()
    assert small.item() == before
    check(came, torch.arange(200_000.0) + before, "message")
    y = torch.zeros(5, dtype=torch.bfloat16)
    ops = [dist.P2POp(dist.isend, torch.full((5,), rank).bfloat16(), after),
           dist.P2POp(dist.irecv, y, before)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    check(y, torch.full((5,), before).bfloat16(), "batch")
    c = torch.zeros(2, dtype=torch.complex64)
    work = dist.isend(torch.full((2,), 1j) * rank, after)
    dist.recv(c, before)
    work.wait()
    check(c, torch.full((2,), 1j) * before, "complex message")

# Groups.
evens = dist.new_group(list(range(0, size, 2)))
if rank % 2 == 0:
    x = torch.tensor([rank])
    dist.all_reduce(x, group=evens)
    assert x.item() == sum(range(0, size, 2)) and dist.get_world_size(evens) == (size + 1) // 2
else:
    assert evens is dist.GroupMember.NON_GROUP_MEMBER
mine = list(range(rank % 2, size, 2))[::-1]
part = dist.group.WORLD.split_group(mine)
x = torch.tensor([rank])
part.allreduce([x]).wait()
assert x.item() == sum(mine) and part.rank() == mine.index(rank) and part.size() == len(mine)
every = dist.new_group()
x = torch.tensor([1])
dist.all_reduce(x, group=every)
assert x.item() == size
if rank % 2 == 0:
    dist.destroy_process_group(evens)
for _ in range(40):  # no more channels are taken than are given back
    again = dist.new_group()
    dist.destroy_process_group(again)

# Functional collectives.
import torch.distributed._functional_collectives as fc
world = dist.group.WORLD
check(fc.all_reduce(torch.ones(2) * rank, "sum", world) * 1, torch.ones(2) * sum(range(size)), "fc")
check(fc.all_gather_tensor(torch.ones(2) * rank, 0, world) * 1,
      torch.cat([torch.ones(2) * r for r in range(size)]), "fc")
check(fc.reduce_scatter_tensor(torch.ones(size), "avg", 0, world) * 1, torch.ones(1), "fc")
got = fc.all_to_all_single(torch.arange(size) + 10 * rank, None, None, world) * 1
check(got, torch.tensor([10 * r + rank for r in range(size)]), "fc")
check(fc.broadcast(torch.ones(2) * rank, 0, world) * 1, torch.zeros(2), "fc")
print("right")
dist.destroy_process_group()
dist.init_process_group()
x = torch.ones(1)
dist.all_reduce(x)
assert x.item() == size
"""


@pytest.mark.parametrize(
    ("n", "transport"),
    [pytest.param(1, "any", marks=deep), (2, "tcp"), pytest.param(3, "any", marks=deep)],
)
def test_all_operations_of_torch_give_its_results(n, transport, tmp_path):
    ended = run_script(tmp_path, n, BEGIN + OPERATIONS, "--transport", transport)
    assert ended.returncode == 0  # also after the lines
    assert sorted(ended.stdout.decode().splitlines()) == of_each(n, "right")


FAULTS = """
import signal, sys, threading
from datetime import timedelta
import phalanx as px
import torch.distributed._functional_collectives as fc
from torch.nn.parallel import DistributedDataParallel as DDP

def fails(kind, *words):
    "Run on every rank; the error must have this type and these words. Then go on."
    def run(function):
        try:
            function()
        except BaseException as error:
            assert type(error) is kind, (function.__name__, type(error), error)
            assert all(word in str(error) for word in words), (function.__name__, error)
        else:
            raise AssertionError(function.__name__ + " raised nothing")
        px.recover()
        x = torch.ones(2)
        dist.all_reduce(x)
        assert x.tolist() == [size] * 2
    return run

both = ("all_sum", "shape (3,)", "shape (4,)")

@fails(px.CollectiveMismatch, *both)
def at_the_call():
    dist.all_reduce(torch.ones(3 + rank))

@fails(px.CollectiveMismatch, *both)
def in_wait():
    work = dist.all_reduce(torch.ones(3 + rank), async_op=True)
    try:
        work.wait()
    finally:
        assert work.is_completed() and not work.is_success()
        assert isinstance(work.exception(), px.CollectiveMismatch)

@fails(px.CollectiveMismatch, *both)
def in_a_future():
    dist.all_reduce(torch.ones(3 + rank), async_op=True).get_future().wait()

@fails(px.CollectiveMismatch, *both)
def in_a_functional_collective():
    fc.all_reduce(torch.ones(3 + rank), "sum", dist.group.WORLD).tolist()

ddp = DDP(torch.nn.Linear(3, 4))
for _ in range(2):  # DDP sends its order of gradients after the first pass
    ddp(torch.ones(2, 3)).sum().backward()
@fails(px.CollectiveMismatch, "shape (5,)", "shape (16,)")
def in_a_backward_pass():
    if rank == 1:
        dist.all_reduce(torch.ones(5))
    ddp(torch.ones(2, 3)).sum().backward()
ddp(torch.ones(2, 3)).sum().backward()  # the same module goes on

@fails(px.CollectiveMismatch, "broadcast", "all_gather")
def in_another_operation():
    dist.broadcast(torch.ones(3), 0) if rank else dist.all_gather_into_tensor(torch.ones(6), torch.ones(3))

@fails(px.CollectiveMismatch, "shape (3,)", "shape (4,)")
def in_a_message():
    dist.send(torch.ones(3), 1) if rank == 0 else dist.recv(torch.ones(4), 0)
    dist.barrier()

@fails(ValueError, "rank 0 sends 1 elements to rank 1, which expects 2")
def in_sizes_that_do_not_fit():
    dist.all_to_all_single(torch.ones(2 + rank), torch.ones(2), [1 + rank, 1], [1, 1])

short = dist.new_group(timeout=timedelta(seconds=0.05))
@fails(px.CollectiveTimeout, "missing: rank 1")
def in_time():
    if rank == 0:
        dist.all_reduce(torch.ones(1), group=short)
    else:
        while "failed" not in repr(short.group):
            pass
        dist.all_reduce(torch.ones(1), group=short)

@fails(px.RankFailure if rank == 0 else px.DistributedError)
def by_abort():
    other = dist.new_group()
    if rank == 1:
        other.abort()
    dist.all_reduce(torch.ones(1), group=other)

def interrupt_once_in(function):
    "Interrupt rank 0 when its main thread waits in a function of the adapter."
    main = threading.get_ident()
    def run():
        while sys._current_frames()[main].f_code.co_name != function:
            pass
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=run).start()

@fails(KeyboardInterrupt if rank == 0 else px.DistributedError)
def by_a_signal():
    if rank == 0:
        interrupt_once_in("_run_parts")
        ddp(torch.ones(2, 3)).sum().backward()
    else:
        while "failed" not in repr(dist.group.WORLD.group):
            pass
        dist.barrier()
ddp(torch.ones(2, 3)).sum().backward()

@fails(KeyboardInterrupt if rank == 0 else px.DistributedError)
def by_a_signal_in_a_message():
    if rank == 0:
        interrupt_once_in("move")
        dist.recv(torch.ones(3), 1)
    else:
        while "failed" not in repr(dist.group.WORLD.group):
            pass
        dist.barrier()

try:
    dist.all_reduce(torch.ones(2, device="meta"))
except px.NotSupported as error:
    assert "meta" in str(error), error
try:
    dist.all_reduce(torch.ones(2).to_sparse(), dist.ReduceOp.MAX)
except px.NotSupported as error:
    assert "sparse" in str(error), error
try:
    dist.recv(torch.ones(2))
except px.NotSupported as error:
    assert "src" in str(error), error
print("right", flush=True)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    for _ in range(1000):
        ddp(torch.ones(2, 3)).sum().backward()
except px.RankFailure as error:
    assert error.rank == 1
    raise SystemExit(0)
"""


def test_errors_are_those_of_phalanx_and_the_group_goes_on(tmp_path):
    ended = run_script(tmp_path, 2, BEGIN + FAULTS)
    assert sorted(ended.stdout.decode().splitlines()) == of_each(2, "right")
    assert b"rank 1 killed by signal 9" in ended.stderr
    assert b"Traceback" not in ended.stderr


GLOO = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
assert type(dist.group.WORLD) is dist.ProcessGroup
x = torch.ones(2)
dist.all_reduce(x)
assert x.tolist() == [2, 2]
dist.destroy_process_group()
for options in ({"rank": 5, "world_size": 2}, {"world_size": 7, "rank": 0}):
    try:
        dist.init_process_group("phalanx", **options)
    except ValueError as error:
        assert "in its world of Phalanx" in str(error), error
dist.init_process_group("phalanx", rank=int(os.environ["RANK"]), world_size=2)
store = dist.distributed_c10d._get_default_store()  # torch's, at its first use
store.set(f"key{dist.get_rank()}", "value")
assert store.get(f"key{1 - dist.get_rank()}") == b"value"
print("right")
"""


def test_gloo_works_as_before_and_the_store_is_torchs(tmp_path):
    assert printed(tmp_path, 2, GLOO) == of_each(2, "right")


ALONE = """
import logging, os, sys, time
logging.basicConfig(format="log: %(message)s")
{before}
import torch, torch.distributed as dist
assert "phalanx.distributed" not in sys.modules and not dist.is_initialized()
from phalanx.adapters.torch import entry
began = time.perf_counter()
entry.register()
print(time.perf_counter() - began < 0.005, "phalanx.distributed" in sys.modules)
{after}
"""

BROKEN = """
import importlib.abc
class Refuses(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in ("phalanx._native", "phalanx.distributed"): raise ImportError("broken " + name)
sys.meta_path.insert(0, Refuses())
"""

OLD = """
import torch
torch.__version__ = "2.1.0"
entry.register()
torch.distributed.Backend.register_backend = None
torch.__version__ = "2.99.0"
entry.register()
"""


def run_alone(before="", after="", **env):
    code = ALONE.format(before=before, after=after)
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 3,
        check=False,
        env=os.environ | env,
    )


def test_importing_torch_only_registers_the_backend_and_one_that_does_not_fit_is_a_line_of_log():
    after = "dist.init_process_group('phalanx')\nx = torch.ones(2)\ndist.all_reduce(x)\nprint(x.tolist())"
    ended = run_alone(after=after + OLD)
    assert ended.stdout.splitlines() == ["True False", "[1.0, 1.0]"], ended.stderr
    old, other = ended.stderr.splitlines()
    assert old == "log: the backend 'phalanx' needs torch 2.13 or newer, this is torch 2.1.0"
    assert other.startswith("log: the backend 'phalanx' of torch.distributed is not registered:")


def test_torch_is_imported_also_with_a_broken_phalanx():
    after = "try: dist.init_process_group('phalanx')\nexcept ImportError as error: print(error)"
    ended = run_alone(BROKEN, after)
    assert ended.stdout.splitlines() == ["True False", "broken phalanx.distributed"], ended.stderr


def test_ranks_of_another_launcher_are_told_how_to_start():
    after = "try: dist.init_process_group('phalanx')\nexcept Exception as error: print(error)"
    ended = run_alone(after=after, RANK="0", WORLD_SIZE="4")
    assert "phalanx launch" in ended.stdout, ended.stderr
