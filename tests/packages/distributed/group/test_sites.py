"""Errors name the callers' lines: both of a mismatch, and who is where when a deadline passes."""

from __future__ import annotations

import pytest
from distributed.cells import site_cells
from distributed.cells.site_cells import line_of
from support.waiting import wait_until

import phalanx as px
from phalanx.distributed.control import AbortKind

PLACES = {
    "arena": (3, (0, 0, 0), "any", True),
    "tcp": (3, (0, 0, 0), "tcp", True),
    "apart": (3, (0, 1, 2), "any", True),
    "composed": (4, (0, 0, 1, 1), "any", True),
    "no memory": (3, (0, 0, 0), "any", False),
}


@pytest.fixture(params=PLACES)
def world(request, rank_pool):
    size, hosts, transport, with_memory = PLACES[request.param]
    return rank_pool(size, hosts, transport, with_memory=with_memory)


# What rank `odd` does otherwise, and what the error says of it and of the others.
DIFFERENT = {
    "op": (0, ["all_max #", "all_sum #"]),
    "dtype": (1, ["float32", "float64"]),
    "shape": (2, ["shape (2, 3)", "shape (6,)"]),
    "size": (0, ["shape (400000,)", "shape (6,)"]),
    "gather": (2, ["shape (4,)", "shape (6,)"]),
    "root": (1, ["root 1", "root 0"]),
    "order": (2, ["barrier #", "all_sum #"]),
    "async": (1, ["shape (2, 3)", "shape (6,)"]),
    "split": (0, ["barrier #", "all_sum #"]),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_mismatch_names_both_calls_and_their_lines_on_every_rank(world, what):
    odd, words = DIFFERENT[what]
    texts = set()
    for error in world.errors(site_cells.differ, what, odd):
        assert isinstance(error, px.CollectiveMismatch), error
        texts.add(str(error))
    (text,) = texts
    common = f"common {what}" if what in ("gather", "root", "split") else "common"
    assert f" at {line_of(f'odd {what}')}" in text
    assert f" at {line_of(common)}" in text
    assert all(word in text for word in words), text
    assert "\n" not in text
    notices = world.notices()
    assert sorted(rank for rank, _ in notices) == list(range(world.size))
    assert {notice.kind for _, notice in notices} == {AbortKind.MISMATCH}


def test_what_is_called_behind_a_work_is_named_too(rank_pool):
    world = rank_pool(3)
    world.start(site_cells.behind_a_work, ranks=[0, 2])
    world.wait_in("all_sum", [0, 2], n_queued=2)
    world.start(site_cells.behind_a_work, ranks=[1])
    for error in world.outcomes():
        assert isinstance(error, px.CollectiveMismatch), error
        assert f" at {line_of('odd behind')}" in str(error)
        assert f" at {line_of('common behind')}" in str(error)


@pytest.mark.parametrize("count", [3, 1 << 23])
def test_a_mismatch_of_messages_names_the_receiver_and_a_sender_that_waits(world, count):
    world.start(site_cells.messages, count)
    sent, received = world.outcomes()[:2]
    for error in (sent, received):
        assert isinstance(error, px.CollectiveMismatch), error
        assert f" at {line_of('recv')} met" in str(error)
    # The receiver waits for the sender's answer for 100 ms only; and where no page is shared, the
    # sender may hear from rank 2 first, to whom the receiver has said all that it knew.
    is_page_shared = world.plan.with_memory and world.plan.hosts[0] == world.plan.hosts[1]
    if count > 3 and is_page_shared:
        assert str(sent).endswith(f" at {line_of('send')}")


def test_a_deadline_tells_who_came_and_what_the_others_do(rank_pool):
    world = rank_pool(4)
    world.start(site_cells.sum_within, None, ranks=[2])
    world.start(site_cells.messages, 1, ranks=[1])
    world.wait_in("all_sum", [2])
    world.wait_in("recv", [1])
    world.start(site_cells.sum_within, 0.3, ranks=[0])
    errors = world.outcomes([0, 1, 2])
    assert len({str(error) for error in errors}) == 1
    assert all(isinstance(error, px.CollectiveTimeout) for error in errors)
    text = str(errors[0])
    assert text.startswith("rank 0: all_sum #")
    assert (
        f"(float32, shape (4,)) at {line_of('sum')} timed out after 0.3 s; missing: "
        f"rank 1 (in recv #1 from rank 0 at {line_of('recv')}" in text
    )
    assert ", rank 3 (in no operation" in text
    assert text.endswith("; had come: ranks 0, 2")


def test_a_deadline_in_a_split_names_ranks_of_the_world(rank_pool):
    world = rank_pool(4)
    world.run(site_cells.split_without_first)
    world.start(site_cells.sum_in_part, None, ranks=[1])
    world.wait_in("all_sum", [1])
    world.start(site_cells.sum_in_part, 0.3, ranks=[3])
    for error in world.outcomes([1, 3]):
        assert isinstance(error, px.CollectiveTimeout)
        assert "missing: rank 2 (in no operation" in str(error)
        assert str(error).endswith("; had come: ranks 1, 3")


def test_a_group_has_a_limit_that_its_splits_inherit(rank_pool):
    world = rank_pool(3)
    limits = world.run(site_cells.limit_group, 0.5)
    assert limits == [[None, None, 1.0]] * 3
    # Only rank 0 keeps the limit: it comes last, so who is missing is no question of time.
    world.start(site_cells.receive_without_limit, 0, ranks=[1])
    world.start(site_cells.sum_as_group_limits, None, ranks=[2])
    world.wait_in("recv", [1])
    world.wait_in("all_sum", [2])
    world.start(site_cells.sum_as_group_limits, 0.5, ranks=[0])
    for text in world.outcomes([0, 2]):
        assert " timed out after 0.5 s; missing: rank 1 (in recv #1 from rank 0" in text
    (error,) = world.outcomes([1])
    assert isinstance(error, px.CollectiveTimeout)


def test_the_supervisor_can_read_where_a_rank_waits(rank_pool):
    world = rank_pool(2)
    world.start(site_cells.wait_to_be_seen, ranks=[0])
    page = world.page_of(0)
    seen = wait_until(lambda: page.site(0), "the place of rank 0")
    assert seen[::2] == (0, line_of("seen"))
    world.start(site_cells.wait_to_be_seen, ranks=[1])
    assert world.outcomes() == [2.0, 2.0]
    assert page.site(0) is None


@pytest.mark.parametrize("what", ["recv", "all_sum"])
@pytest.mark.parametrize("after", [0.02, 0.05])
def test_a_signal_is_not_lost_to_the_look_at_frames(rank_pool, what, after):
    world = rank_pool(2)
    world.start(site_cells.interrupted, what, after, ranks=[0])
    assert world.outcomes([0]) == ["interrupted"]
    world.is_good = False
