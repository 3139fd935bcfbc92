"""Trainings that lose a rank: in a notebook, where it is replaced, and in a script that goes on."""

from __future__ import annotations

import json

import numpy as np
import pytest
from nn.test_steps import weights
from support.programs.launching import launch, write_script
from support.runs.tiers import deep_but

from phalanx.errors import RankFailure
from phalanx.workspace import Workspace

pytestmark = pytest.mark.slow

BEGIN = """
import os, signal, numpy as np
state = {"w": np.zeros(3), "seen": []}
own = {"random": np.random.default_rng([5, rank])}
"""
# The rank dies after its draw and before the sum, so that the others wait for it.
LOOP = """
for step in px.nn.steps(state, 8, own=own):
    with step:
        gradient = own["random"].random(3)
        if step.number == dies_in and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        state["w"] += px.nn.average_gradients(gradient)
        state["seen"].append(step.number)
"""


def test_a_replaced_rank_goes_on_where_the_lost_one_was():
    with Workspace.start(n=3) as ws:
        ws.run(BEGIN + "dies_in = 5")
        with pytest.raises(RankFailure, match="rank 1"):
            ws.run(LOOP)
        # Whole steps only, on those that are left. One may not know yet that all have done step 4.
        for step, seen in ws.pull("(state['step'], state['seen'])", ranks=[0, 2]):
            assert step in (4, 5)
            assert seen == list(range(step))
        ws.restart()
        ws.run(BEGIN, ranks=[1])
        ws.run("dies_in = -1")
        ws.run(LOOP)
        assert ws.pull("state['seen']") == [list(range(8))] * 3
        assert [w.tolist() for w in ws.pull("state['w']")] == [weights(3, 8)] * 3


@pytest.mark.parametrize("every", deep_but([3], [1, 3]))
def test_with_max_restarts_a_new_process_takes_the_place_of_a_dead_rank(tmp_path, every):
    script = write_script(
        tmp_path,
        "import json, phalanx as px\nrank = px.init().rank()\n"
        + BEGIN
        + "dies_in = 5 if os.environ['PHALANX_RESTART_COUNT'] == '0' else -1\n"
        + LOOP.replace("own=own", f"own=own, every={every}")
        + "print(json.dumps([state['seen'], state['w'].tolist()]))\n",
    )
    ended = launch("-n", "3", "--max-restarts", "1", script)
    assert ended.returncode == 0, ended.stderr.decode()
    after = 5 // every * every
    assert f"training goes on after step {after}" in ended.stderr.decode()
    said = sorted(ended.stdout.decode().splitlines())
    results = [json.loads(line.partition("] ")[2]) for line in said]
    assert results == [[list(range(8)), weights(3, 8)]] * 3


MODELS = {
    "mlx": """
import mlx.core as mx, mlx.nn as nn, mlx.optimizers
mx.random.seed(rank)
model = nn.Linear(8, 8)
optimizer = mlx.optimizers.Adam(0.01)
x = mx.random.normal((4, 8), key=mx.random.key(rank))
gradient = nn.value_and_grad(model, lambda x: (model(x) ** 2).mean())
def update():
    optimizer.update(model, px.nn.average_gradients(gradient(x)[1]))
    mx.eval(model.parameters(), optimizer.state)
def parameters():
    return model.weight.tolist()
""",
    "torch": """
import torch
torch.manual_seed(rank)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.Adam(model.parameters(), 0.01)
x = torch.randn(4, 8)
def update():
    optimizer.zero_grad()
    (model(x) ** 2).mean().backward()
    means = px.nn.average_gradients([p.grad for p in model.parameters()])
    for p, mean in zip(model.parameters(), means):
        p.grad = mean
    optimizer.step()
def parameters():
    return model.weight.tolist()
""",
}


@pytest.mark.parametrize("framework", deep_but(["mlx"], ["mlx", "torch"]))
def test_modules_train_on_to_the_same_bits(tmp_path, framework):
    pytest.importorskip({"mlx": "mlx.core"}.get(framework, framework))
    script = write_script(
        tmp_path,
        f"""
import json, os, signal, sys, phalanx as px
rank = px.init().rank()
dies = len(sys.argv) > 1 and os.environ["PHALANX_RESTART_COUNT"] == "0" and rank == 1
{MODELS[framework]}
for step in px.nn.steps({{"model": model, "optimizer": optimizer}}, 12):
    with step:
        if dies and step.number == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        update()
print(json.dumps(parameters()))
""",
    )
    outputs = []
    for words in ([], ["dies"]):
        ended = launch("-n", "2", "--max-restarts", "1", script, *words)
        assert ended.returncode == 0, ended.stderr.decode()
        outputs += [line.partition("] ")[2] for line in ended.stdout.decode().splitlines()]
    assert len(outputs) == 4
    assert len(set(outputs)) == 1


def test_with_keep_going_the_others_train_on(tmp_path):
    script = write_script(
        tmp_path,
        "import json, phalanx as px\nrank = px.init().rank()\ndies_in = 5\n"
        + BEGIN
        + LOOP
        + "if state['seen'] != list(range(8)): raise SystemExit(3)\n"
        + "px.print0(json.dumps(state['w'].tolist()))\n",
    )
    ended = launch("-n", "3", "--keep-going", script)
    assert ended.returncode == 0, ended.stderr.decode()
    assert "training goes on after step 5" in ended.stderr.decode()
    randoms = [np.random.default_rng([5, rank]) for rank in range(3)]
    w = np.zeros(3)
    for step in range(8):
        present = [random.random(3) for random in randoms if step < 5 or random is not randoms[1]]
        total = present[0]
        for each in present[1:]:
            total = total + each
        w += total / len(present)
    (line,) = ended.stdout.decode().splitlines()
    assert json.loads(line.partition("] ")[2]) == w.tolist()
