"""Messages that nobody will ever send or take: who waits for one is freed, and what was sent stays."""

from __future__ import annotations

import pytest
from support.promise import within
from support.ranks.cells import BackgroundCell, wait_idle, wait_in
from support.runs.tiers import deep_but

from phalanx.errors import CellError
from phalanx.workspace import Workspace

LARGE = "np.zeros(40_000_000, np.uint8)"  # no socket takes that while nobody reads


# Over tcp in the first tier: connection/test_hosts.py, between two hosts.
@pytest.fixture(scope="module", params=deep_but(["any"], ["any", "tcp"]))
def ranks(request):
    with Workspace.start(n=3, transport=request.param) as workspace:
        yield workspace


def failures(workspace, code, chosen=None):
    """Run a cell that fails within the bound; return which rank failed with what."""
    with within(), pytest.raises(CellError) as caught:
        workspace.run(code, ranks=chosen)
    return {rank: failure[:2] for rank, failure in caught.value.failures.items()}


def assert_good(workspace):
    """The next cell is right: collectives, and messages in both directions."""
    found = workspace.run(
        "if rank: px.send(np.full(3, rank), 0)\n"
        "int(px.all_sum(1)) if rank else [int(px.recv((3,), np.int64, r).sum()) for r in (1, 2)] "
        "+ [int(px.all_sum(1))]"
    )
    assert [result.value for result in found] == ["[3, 6, 3]", "3", "3"]


@pytest.mark.promise
@pytest.mark.parametrize(
    ("code", "chosen", "how", "what"),
    [
        (
            "if rank == 0: px.recv((3,), np.float32, 1)",
            None,
            "ended its cell;",
            "recv #1 from rank 1, in which rank 0 waits, can never complete",
        ),
        (
            "if rank == 0: px.recv_like(np.ones(3), 1)",
            None,
            "ended its cell;",
            "recv #1 from rank 1, in which rank 0 waits, can never complete",
        ),
        (
            "if rank == 1: 1 / 0\nif rank == 0: px.recv((3,), np.float32, 1)",
            None,
            "ended its cell with an error;",
            "recv #1 from rank 1",
        ),
        (
            "px.recv((3,), np.float32, 1)",
            [0],
            "is not asked to run this cell;",
            "recv #1 from rank 1",
        ),
        (f"if rank == 0: px.send({LARGE}, 1)", None, "ended its cell;", "send #1 to rank 1"),
        (f"px.send({LARGE}, 1)", [0], "is not asked to run this cell;", "send #1 to rank 1"),
        (  # of three that are waited for two have come
            (
                "x = np.ones(3)\nif rank == 1:\n    for _ in range(2): px.send(x, 0)\n"
                "if rank == 0:\n    for _ in range(3): px.recv_like(x, 1)"
            ),
            None,
            "ended its cell;",
            "recv #3 from rank 1",
        ),
        (  # the other direction, and another rank, do not count
            (
                "if rank == 0: px.send(np.ones(3), 1)\nif rank == 2: px.send(np.ones(3), 0)\n"
                "if rank == 1: px.recv((3,), np.float64, 0)\nelse: px.recv((3,), np.float64, 1)"
            ),
            [0, 1],
            "ended its cell;",
            "recv #1 from rank 1, in which rank 0 waits",
        ),
    ],
)
def test_who_waits_for_a_message_of_a_rank_that_is_gone_is_freed(ranks, code, chosen, how, what):
    failures(ranks, "px.all_sum(np.ones(1 + rank))")  # a new epoch, which counts from 1
    ename, evalue = failures(ranks, code, chosen)[0]
    assert ename == "RankFailure"
    assert evalue.startswith("rank 1 ")
    assert f"{how} {what}" in evalue
    assert_good(ranks)


def test_what_was_sent_before_a_cell_ended_is_received_at_leisure(ranks, gate):
    # Rank 0 receives after rank 1 has ended, and is slow between the messages.
    code = (
        "import time\n"
        "if rank == 1:\n    for i in range(4): px.send(np.full(1000, i), 0)\n"
        f"if rank == 0:\n    {gate.wait}\n"
        "    for i in range(4):\n"
        "        time.sleep(0.05)\n"
        "        assert (px.recv((1000,), np.int64, 1) == i).all()"
    )
    with BackgroundCell(ranks, code) as cell:
        wait_idle(ranks, 1, 2)
        gate.open()
    assert cell.error is None
    assert_good(ranks)


def test_a_small_message_may_be_taken_in_the_next_cell(ranks):
    ranks.run("px.send(np.arange(4000), 1)", ranks=[0])
    found = ranks.run("int(px.recv((4000,), np.int64, 0).sum())", ranks=[1])
    assert [result.value for result in found] == [str(sum(range(4000)))]


def test_a_rank_that_is_busy_is_waited_for(ranks, gate):
    code = (
        f"if rank == 1:\n    {gate.wait}\n    px.send(np.ones(3), 0)\n"
        "if rank == 0: px.recv((3,), np.float64, 1)"
    )
    with BackgroundCell(ranks, code) as cell:
        wait_idle(ranks, 2)
        wait_in(ranks, "recv", 0)
        gate.open()
    assert cell.error is None


def test_a_thread_that_outlives_its_cell_may_send_yet(ranks, gate):
    code = (
        "import threading\n"
        f"def work():\n    {gate.wait}\n    px.send(np.ones(3), 0)\n"
        "if rank == 1:\n    thread = threading.Thread(target=work)\n    thread.start()\n"
        "if rank == 0: px.recv((3,), np.float64, 1)"
    )
    with BackgroundCell(ranks, code) as cell:
        wait_idle(ranks, 1, 2)
        wait_in(ranks, "recv", 0)
        gate.open()
    assert cell.error is None
    ranks.run("if rank == 1: thread.join()")


def test_beside_a_wait_that_may_end_another_that_cannot_is_found(ranks, gate):
    code = (
        "import threading\n"
        "if rank == 1: px.recv((3,), np.float64, 0)\n"  # it might still send, before or after
        "if rank == 0:\n"
        "    def work():\n        try: px.recv((3,), np.float64, 1)\n"
        "        except px.RankFailure as error: first = error\n"
        "    thread = threading.Thread(target=work)\n    thread.start()\n"
        f"    {gate.wait}\n"
        "    try: px.recv((3,), np.float64, 2)\n    finally: thread.join()"
    )
    with BackgroundCell(ranks, code, ranks=[0, 1]) as cell:
        wait_in(ranks, "recv", 0, 1)
        gate.open()
    assert isinstance(cell.error, CellError)
    said = cell.error.failures[0][1]
    assert "recv #" in said
    assert "from rank 2, in which rank 0 waits" in said
    assert_good(ranks)


@pytest.mark.promise
def test_ranks_that_wait_for_each_other_are_told_so(ranks):
    failures(ranks, "px.all_sum(np.ones(1 + rank))")  # a new epoch, which counts from 1
    failed = failures(
        ranks, "if rank == 0: px.recv((3,), np.float64, 1)\nelse: px.all_sum(np.ones(3))"
    )
    assert {ename for ename, _ in failed.values()} == {"CollectiveMismatch"}
    (said,) = {evalue for _, evalue in failed.values()}
    assert said.startswith(
        "ranks 0-1 wait for each other: rank 0 in recv #1 from rank 1 at cell line 1, "
        "ranks 1-2 in all_sum #1 at cell line 2; "
    )
    assert_good(ranks)


@pytest.mark.promise
@pytest.mark.parametrize("how", ["ends", "closes"])
def test_in_a_split_too(ranks, how):
    ranks.run("part = px.init().split(0 if rank else None)")
    leave = "part.close()" if how == "closes" else "pass"
    failed = failures(
        ranks, f"if rank == 2: {leave}\nif rank == 1: px.recv((3,), np.float64, 1, group=part)"
    )
    _, evalue = failed[1]
    if how == "ends":
        assert evalue.startswith("rank 2 ")
        assert (
            "ended its cell; recv #1 from rank 2 in the split of ranks 1-2, in which rank 1 "
            in (evalue)
        )
    else:
        assert ": closed the group; rank 1 was in recv #1 from rank 2" in evalue
    assert_good(ranks)
