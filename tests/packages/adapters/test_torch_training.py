"""torch's own training layers on our ranks equal the same training in one process."""

from __future__ import annotations

import pytest
from support.programs.launching import of_each, printed
from support.runs.tiers import deep, deep_but

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

# The sums of a few dozen float64 of size 1, added in another order, differ by less than 1e-12.
BEGIN = """
import copy
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()

def exact(module):
    draw = torch.Generator().manual_seed(3)
    for p in module.parameters():
        p.data = torch.randint(-4, 5, p.shape, generator=draw).double() / 8
    return module

def model():
    return exact(nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 6, bias=False), nn.ReLU(),
                               nn.Linear(6, 4)).double())

draw = torch.Generator().manual_seed(5)
batches = [torch.randint(-2, 3, (4 * size, 8), generator=draw).double() for _ in range(3)]

def train(module, of_rank, scale=1.0, grads=None):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.125)
    for whole in batches:
        optimizer.zero_grad()
        x = whole.chunk(size)[rank] if of_rank else whole
        (module(x).sum() * scale).backward()
        if grads is not None:
            grads.append([p.grad.clone() for p in module.parameters()])
        optimizer.step()
    return module

def close(got, want, what):
    off = (got.detach() - want.detach()).abs().max().item()
    assert got.shape == want.shape and off < 1e-12, (what, off)

def same(module, other, what):
    for (name, p), q in zip(module.named_parameters(), other.parameters()):
        p = p.full_tensor() if hasattr(p, "full_tensor") else p
        close(p, q, (what, name))

alone = train(model(), False, 1 / size)
"""

DDP = """
from torch.nn.parallel import DistributedDataParallel as DDP
for options in ({}, {"bucket_cap_mb": 1e-4}, {"static_graph": True}, {"gradient_as_bucket_view": True}):
    same(train(DDP(model(), **options), True).module, alone, ("DDP", options))

# Gradients are added up over two batches without communication in between.
ddp, plain = DDP(model()), model()
with ddp.no_sync():
    ddp(batches[0].chunk(size)[rank]).sum().backward()
ddp(batches[1].chunk(size)[rank]).sum().backward()
(plain(torch.cat(batches[:2])).sum() / size).backward()
for p, q in zip(ddp.parameters(), plain.parameters()):
    close(p.grad, q.grad, "no_sync")

# A hook of torch that compresses what is sent, and one that chains futures.
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
ddp = DDP(model())
ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
train(ddp, True)
ddp = DDP(model().float())
state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
for whole in batches * 2:
    ddp.zero_grad()
    ddp(whole.chunk(size)[rank].float()).sum().backward()

# Parameters that a rank does not use, and buffers of rank 0.
class Sometimes(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(2, 2).double(), nn.Linear(2, 2).double()
        self.norm = nn.BatchNorm1d(2).double()
    def forward(self, x):
        return self.norm(self.one(x) if rank == 0 else self.one(x) + self.two(x))
ddp = DDP(exact(Sometimes()), find_unused_parameters=True)
for _ in range(2):
    ddp(torch.ones(4, 2).double() * torch.arange(4.0).double()[:, None]).sum().backward()
means = [None] * size
dist.all_gather_object(means, ddp.module.two.weight.grad.tolist())
assert means == [means[0]] * size

# Sparse gradients.
table, plain = nn.Embedding(7, 3, sparse=True).double(), nn.Embedding(7, 3).double()
exact(table), exact(plain)
ddp = DDP(table)
for r in range(size):
    (plain(torch.arange(r + 2)) * (r + 1)).sum().backward()
(ddp(torch.arange(rank + 2)) * (rank + 1)).sum().backward()
close(table.weight.grad.to_dense(), plain.weight.grad / size, "sparse")

# Ranks with unequal numbers of batches end without a hang.
from torch.distributed.algorithms.join import Join
ddp = DDP(model())
with Join([ddp]):
    for x in [torch.ones(2, 8).double()] * (1 + rank):
        ddp(x).sum().backward()
"""

FSDP = """
from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy
for reshard in (True, False):
    sharded = model()
    for layer in sharded:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, reshard_after_forward=reshard)
    fully_shard(sharded)
    assert all(p.to_local().shape[0] <= -(-p.shape[0] // size) for p in sharded.parameters())
    same(train(sharded, True), alone, ("FSDP2", reshard))
    total = nn.utils.clip_grad_norm_(sharded.parameters(), 1.0).full_tensor()
    assert total > 0
half = model().float()
fully_shard(half, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
for x in batches:
    half(x.chunk(size)[rank].float()).float().sum().backward()
from torch.distributed.checkpoint.state_dict import get_model_state_dict, StateDictOptions
state = get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True))
if rank == 0:
    close(state["0.weight"], alone[0].weight, "state")

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
same_sums = train(FSDP1(model(), use_orig_params=True, device_id=torch.device("cpu")), True)
with FSDP1.summon_full_params(same_sums):
    same(same_sums.module, alone, "FSDP1")
"""

TENSOR_PARALLEL = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, Partial, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module)
mesh = init_device_mesh("cpu", (size,))
plain = exact(nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 6)).double())
parallel = parallelize_module(copy.deepcopy(plain), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
for x in batches:
    want, got = plain(x), parallel(x)
    close(got, want, "forward")
    want.sum().backward(), got.sum().backward()
for p, q in zip(parallel.parameters(), plain.parameters()):
    close(p.grad.full_tensor(), q.grad, "gradient")

x = torch.arange(5 * 7).reshape(5, 7).double()  # not divisible
d = distribute_tensor(x, mesh, [Shard(0)])
assert torch.equal(d.full_tensor(), x)
assert torch.equal(d.redistribute(mesh, [Shard(1)]).full_tensor(), x)
assert torch.equal((d @ d.t()).full_tensor(), x @ x.t())
assert d.sum().full_tensor() == x.sum() and d.max().full_tensor() == x.max()
part = DTensor.from_local(torch.ones(4) * rank, mesh, [Partial()])
assert part.redistribute(mesh, [Replicate()]).to_local().tolist() == [float(sum(range(size)))] * 4
"""

MESH = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
assert (mesh["dp"].size(), mesh["tp"].get_local_rank()) == (2, rank % 2)
net = model()
parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(net, mesh=mesh["dp"])
optimizer = torch.optim.SGD(net.parameters(), lr=0.125)
for whole in batches:
    optimizer.zero_grad()
    x = whole.chunk(2)[mesh["dp"].get_local_rank()]
    (net(x).sum() / 2).backward()
    optimizer.step()
same(net, alone, "2D")
hybrid = fully_shard(model(), mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("all", "shard")))
same(train(hybrid, True), alone, "HSDP")
"""


def check(n, code, tmp_path):
    assert printed(tmp_path, n, BEGIN + code + "\nprint('right')\n") == of_each(n, "right")


@pytest.mark.parametrize("n", deep_but([2], [2, 3]))
def test_ddp_equals_one_process(n, tmp_path):
    check(n, DDP, tmp_path)


@pytest.mark.parametrize("n", deep_but([3], [2, 3]))
def test_fsdp_and_tensor_parallel_equal_one_process(n, tmp_path):
    check(n, FSDP + TENSOR_PARALLEL, tmp_path)


@deep
def test_a_mesh_of_two_dimensions_equals_one_process(tmp_path):
    check(4, MESH, tmp_path)


REPLACED = """
import os, signal
import torch, torch.distributed as dist
import phalanx as px
from torch.nn.parallel import DistributedDataParallel as DDP

module, step = torch.nn.Linear(3, 1).double(), 0
with torch.no_grad():
    module.weight.fill_(1.0), module.bias.fill_(0.0)
while step < 6:
    try:
        dist.init_process_group()
        rank, size = dist.get_rank(), dist.get_world_size()
        # The ranks that lived on give the new one their steps and weights.
        steps = px.all_gather_object(step)
        step = max(steps)
        for p in module.parameters():
            dist.broadcast(p.detach(), steps.index(step))
        ddp = DDP(module)
        while step < 6:
            if step == 3 and rank == 0 and os.environ.get("PHALANX_RESTART_COUNT", "0") == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            ddp.zero_grad()
            ddp(torch.full((2, 3), rank + 1.0).double()).sum().backward()
            with torch.no_grad():
                for p in module.parameters():
                    p -= p.grad / 8
            step += 1
    except px.RankFailure as error:
        assert error.rank == 0, error
        print("lost", error.rank, "in step", step, flush=True)
        px.recover()
        dist.destroy_process_group()
print(step, module.weight.tolist(), module.bias.tolist())
"""


def test_a_replaced_rank_trains_on_with_the_others(tmp_path):
    said = printed(tmp_path, 2, REPLACED, "--max-restarts", "1")
    right = "6 [[-1.25, -1.25, -1.25]] [-1.5]"  # of six steps that nothing disturbed
    assert said == [f"[0] {right}", f"[1] {right}", "[1] lost 0 in step 3"]
