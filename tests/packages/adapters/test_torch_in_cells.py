"""torch.distributed in the cells of a notebook's ranks."""

from __future__ import annotations

import re

import pytest
from support.programs.restarting import failures, stop_begun, values
from support.promise import PATIENCE_S

from phalanx.errors import CellError, RankFailure
from phalanx.workspace import Workspace
from phalanx.workspace.cells import stopping

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

BEGIN = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
if dist.is_initialized():
    dist.destroy_process_group()
dist.init_process_group()
torch.manual_seed(0)
ddp, n = DDP(nn.Linear(4, 1, bias=False)), 0
def train(steps):
    global n
    for step in range(steps):
        ddp.zero_grad()
        ddp(torch.full((1, 4), rank + 1.0)).sum().backward()
        with torch.no_grad():
            for p in ddp.parameters():
                p -= p.grad
        n += 1
def reduced():
    x = torch.tensor([rank])
    dist.all_reduce(x)
    return x.item()
"""


@pytest.fixture(scope="module")
def ws():
    """Two ranks with torch's process group, which the tests of this file share."""
    with Workspace.start(n=2) as workspace:
        workspace.run(BEGIN)
        yield workspace


def weights(ws):
    """Return how far the weights of each rank have moved, per step."""
    return values(ws, "[round(w, 3) for w in ddp.module.weight.flatten().tolist()]")


def test_cells_have_the_ranks_of_phalanx(ws):
    assert values(ws, "dist.get_rank() == rank, dist.get_world_size()") == ["(True, 2)"] * 2
    assert values(ws, "reduced()") == ["1"] * 2
    ws.run("before = ddp.module.weight.detach().clone()\ntrain(3)")
    moved = "(before - ddp.module.weight.detach()).flatten().tolist()"
    assert values(ws, f"[round(w, 3) for w in {moved}]") == ["[4.5, 4.5, 4.5, 4.5]"] * 2
    assert values(ws, "px.all_sum(1)") == ["2"] * 2


def test_a_stop_keeps_ranks_in_step(ws, monkeypatch):
    monkeypatch.setattr(stopping, "STEP_S", PATIENCE_S)
    for _ in range(2):
        error, texts = stop_begun(ws, "n = 0\ntrain(20)\nprint('begun', flush=True)\ntrain(10**7)")
        assert isinstance(error, CellError)
        assert not [text for text in texts if "may differ" in text]
        assert len(set(values(ws, "n, ddp.module.weight.tolist()"))) == 1
        assert values(ws, "reduced()") == ["1"] * 2


def test_an_fsdp_module_goes_on_after_a_stop(ws, monkeypatch):
    monkeypatch.setattr(stopping, "STEP_S", PATIENCE_S)
    ws.run("""
from torch.distributed.fsdp import fully_shard
net, m = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), 0
fully_shard(net[0]), fully_shard(net[2]), fully_shard(net)
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
def train_sharded(steps):
    global m
    for step in range(steps):
        optimizer.zero_grad()
        net(torch.ones(2, 8) * rank).pow(2).sum().backward()
        optimizer.step()
        m += 1
def sums():
    return [p.full_tensor().sum().item() for p in net.parameters()]
train_sharded(3)""")
    for _ in range(2):
        code = "train_sharded(3)\nprint('begun', flush=True)\ntrain_sharded(10**7)"
        assert isinstance(stop_begun(ws, code)[0], CellError)
        assert len(set(values(ws, "m, sums()"))) == 1


def test_a_rank_that_raises_frees_the_other_and_the_next_cell_works(ws):
    text = failures(ws, "if rank == 1: raise ValueError('no')\ntrain(3)")
    assert "ValueError: no" in text
    assert re.search(r"RankFailure: .*rank 1", text), text
    assert values(ws, "reduced()") == ["1"] * 2
    ws.run(
        "ddp = DDP(ddp.module)\ntrain(2)"
    )  # a failure in its backward pass has ended the old one


def test_ranks_that_call_differently_are_told_on_all(ws):
    text = failures(ws, "dist.all_reduce(torch.ones(3 + rank))")
    assert re.search(r"CollectiveMismatch.*shape \(4,\).*shape \(3,\)", text), text
    assert values(ws, "reduced()") == ["1"] * 2
    ws.run("train(2)")


def test_after_a_restart_all_ranks_make_their_groups_anew(ws):
    kill_0 = "import os, signal\nif rank == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
    with pytest.raises(RankFailure, match="rank 0"):
        ws.run(kill_0 + "try: train(3)\nexcept px.RankFailure as error: seen = error.rank")
    assert ws.pull("seen", ranks=[1]) == [0]
    ws.restart()
    text = failures(ws, "if rank == 1: train(1)")
    assert "make DDP and FSDP modules anew" in text, text
    ws.run(BEGIN + "train(3)")
    assert values(ws, "reduced()") == ["1"] * 2
    assert len(set(weights(ws))) == 1
