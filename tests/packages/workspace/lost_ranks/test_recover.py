"""`px.recover()` in cells: the group forms anew in the midst of one; who will not come is named."""

from __future__ import annotations

import pytest
from support.promise import within

from phalanx.errors import CellError, RankFailure

FAIL = """
try:
    px.all_sum(np.ones(3 + (rank == 1)))
except px.CollectiveMismatch:
    pass
"""


def texts(ws, code, **options):
    """What each rank's value is, or the error it ended in."""
    try:
        return [result.value for result in ws.run(code, **options)]
    except CellError as error:
        return {rank: f"{ename}: {evalue}" for rank, (ename, evalue, _) in error.failures.items()}


def test_all_ranks_go_on_within_one_cell_and_splits_with_them(ws):
    texts(ws, "part = world.split(None if rank == 0 else 1)")
    found = texts(
        ws,
        FAIL + "same = px.recover() is world\n"
        "(same, px.all_sum(rank), px.all_gather(rank, group=part).tolist() if part else 0)",
    )
    assert found == ["(True, 3, 0)", "(True, 3, [1, 2])", "(True, 3, [1, 2])"]
    assert texts(ws, "px.all_sum(1)") == ["3"] * 3


@pytest.mark.promise
@pytest.mark.parametrize(
    ("code", "ranks", "reason"),
    [
        ("if rank != 1: px.recover()", None, "ended its cell"),
        ("px.recover()", [0, 2], "is not asked to run this cell"),
        ("if rank == 1: raise ValueError\npx.recover()", None, "ended its cell with an error"),
    ],
)
def test_who_asks_in_vain_is_freed_and_told_why(ws, code, ranks, reason):
    with within():
        found = texts(ws, code, ranks=ranks)
    for rank in (0, 2):
        assert found[rank].startswith("RankFailure: rank 1 on ")
        assert found[rank].endswith(f"{reason}; px.recover() of the others can never complete")
    assert texts(ws, "px.all_sum(1)") == ["3"] * 3


@pytest.mark.promise
def test_who_waits_for_a_rank_in_recover_is_freed_and_all_recover(ws):
    with within():
        found = texts(
            ws,
            "said = ''\nif rank:\n    try: px.all_sum(1)\n"
            "    except px.RankFailure as error: said = error.reason\n"
            "px.recover()\n(said.partition(';')[0], px.all_sum(1))",
        )
    assert found == ["('', 3)", *["('waits in px.recover()', 3)"] * 2]


def test_a_stop_in_recover_leaves_a_good_world(ws):
    with pytest.raises(TimeoutError):
        ws.run("if rank: px.recover(None)\nelse:\n    while True: pass", timeout=0.5)
    assert texts(ws, "px.all_sum(1)") == ["3"] * 3


def test_a_closed_world_is_joined_again_by_all(ws):
    found = texts(ws, "world.close()\npx.init() is world, px.all_sum(1)")
    assert found == ["(True, 3)"] * 3


PLACE = """
import os
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT"
" ".join(os.environ[name] for name in names.split())
"""
GLOO = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(2)
dist.all_reduce(x)
dist.destroy_process_group()
x.tolist()
"""


def test_torch_meets_where_each_epoch_says(ws):
    pytest.importorskip("torch")
    ports = set()
    for _ in range(2):
        places = [text.strip("'").split() for text in texts(ws, PLACE)]
        ports.add(places[0][-1])
        assert places == [
            [str(rank), "3", str(rank), "3", "127.0.0.1", places[0][-1]] for rank in range(3)
        ]
        assert texts(ws, GLOO) == ["[3.0, 3.0]"] * 3
        texts(ws, "world.close()\npx.recover()")  # the next epoch
    assert len(ports) == 2


OTHER_PLACES = """
import os
names = "PHALANX_RANK PHALANX_SIZE PHALANX_LOCAL_RANK PHALANX_LOCAL_SIZE JAX_PROCESS_ID JAX_NUM_PROCESSES"
is_at_master = os.environ["JAX_COORDINATOR_ADDRESS"] == f"127.0.0.1:{os.environ['MASTER_PORT']}"
" ".join(os.environ[name] for name in names.split()), is_at_master
"""


def test_ranks_have_their_place_as_in_a_script_and_as_jax_reads_it(ws):
    assert texts(ws, OTHER_PLACES) == [f"('{r} 3 {r} 3 {r} 3', True)" for r in range(3)]


def test_a_dead_rank_is_named(breakable):
    with pytest.raises(RankFailure):
        breakable.run("import os\nif rank == 1: os._exit(3)\npx.all_sum(1)")
    found = texts(breakable, "px.recover()")
    for rank in (0, 2):
        assert "rank 1" in found[rank]
        assert "exited with status 3" in found[rank]
        assert "start the ranks anew" in found[rank]
