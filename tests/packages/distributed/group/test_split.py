"""Splits: who comes together, at work beside the world, and what becomes of them."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest
from distributed.cells import cells, split_cells
from distributed.farm.formations import FOUR, worlds
from support.programs.memory import least_growth
from support.runs.tiers import deep, deep_but

import phalanx as px
from phalanx import _native
from phalanx.distributed.connect.handshake import LinkPart, LinkPurpose
from phalanx.distributed.control import Deadline
from phalanx.distributed.group.epoch import group_of_one
from phalanx.distributed.group.group import Group
from phalanx.distributed.group.registry import GroupRegistry, Membership
from phalanx.distributed.world_spec import MappedHostMemory

world = worlds(FOUR)


@pytest.mark.parametrize("colors", [[0, 0, 1, 1], [5, 6, 5, 6], [7, 7, 7, 7], [1, 0, 0, 0]])
def test_ranks_of_one_color_come_together(world, colors):
    found = world.run(split_cells.split_by, colors)
    for rank, (members, place, transports) in enumerate(found):
        assert members == [peer for peer in range(4) if colors[peer] == colors[rank]]
        assert members[place] == rank
        hosts = world.plan.hosts if world.plan.transport == "any" else range(4)
        for member, transport in zip(members, transports, strict=True):
            shared = "arena" if hosts[member] == hosts[rank] else "tcp"
            assert transport == ("self" if member == rank else shared)


def test_smaller_keys_become_smaller_ranks_and_equal_ones_keep_their_order(world):
    found = world.run(split_cells.split_by, [0, 0, 0, 0], [9, 1, 1, 0])
    assert [members for members, _, _ in found] == [[3, 1, 2, 0]] * 4
    assert [place for _, place, _ in found] == [3, 1, 2, 0]
    found = world.run(split_cells.split_by, [0, 0, 0, 0], [-1, 7, -5, -1])  # as keys 0, 7, 2, 3
    assert found[0][0] == [0, 2, 3, 1]


def test_ranks_without_a_color_are_left_out(world):
    found = world.run(split_cells.split_by, [None, 3, -7, 3])
    assert found[0] is None
    assert found[2] is None
    assert found[1][0] == found[3][0] == [1, 3]
    assert world.run(split_cells.split_by, [None] * 4) == [None] * 4


@pytest.mark.parametrize(
    ("hosts", "transport"),
    [
        ((0, 1) * 4, "any"),
        pytest.param((0,) * 8, "any", marks=deep),
        pytest.param((0,) * 8, "tcp", marks=deep),
    ],
)
@pytest.mark.slow
def test_splits_of_splits_down_to_one_rank(rank_pool, hosts, transport):
    found = rank_pool(8, hosts, transport).run(split_cells.split_of_a_split)
    for rank, said in enumerate(found):
        half = list(range(rank // 4 * 4, rank // 4 * 4 + 4))
        pair = [rank // 2 * 2 + 1, rank // 2 * 2]
        assert said[:3] == [half, pair, list(range(8))]
        assert said[3:6] == [[rank], [rank], 1]
        assert said[6] == "Cannot split the distributed group further."
        assert said[7:] == [pair, half]


@pytest.mark.parametrize("who", [0, 3])
def test_a_split_that_meets_another_operation_is_a_mismatch(world, who):
    for error in world.errors(split_cells.split_or_sum, who):
        assert isinstance(error, px.CollectiveMismatch), error
        assert "split #" in str(error)
        assert "all_sum #" in str(error)
    assert len(world.notices()) == 4


def test_wrong_arguments_are_refused_before_anything_is_said(world):
    for said in world.run(split_cells.wrong_splits):
        assert said == split_cells.WRONG


def test_two_threads_may_split_two_groups(world):
    for found in world.run(split_cells.splits_at_once, 10):
        assert found == [[0, 1, 2, 3]] * 20


def test_channels_of_garbage_come_back(world):
    for channels in world.run(split_cells.split_twice_by_garbage):
        assert len(channels) == _native.Group.CHANNELS + 4
        assert len(set(channels)) < _native.Group.CHANNELS


def test_what_was_submitted_to_garbage_is_still_done(world):
    assert world.run(split_cells.submit_to_garbage) == [[4.0, 4 * 99_999.0]] * 4


def test_too_many_splits_are_refused_and_closing_one_helps(world):
    for said in world.run(split_cells.too_many_splits):
        assert said[0] == str(_native.Group.CHANNELS - 1)
        assert "close splits" in said[1]
        assert said[1] == said[2]
        assert said[3] == "[0, 1, 2, 3]"


def test_a_failure_in_a_split_names_ranks_of_the_world_and_frees_all(world):
    found = world.run(split_cells.fail_in_split, [0, 1, 0, 1])
    world.is_good = False
    for said in found:
        assert said.startswith("CollectiveMismatch: "), said
        assert "rank 1: all_sum #1" in said
        assert "rank 3: all_sum #1" in said


def test_without_a_supervisor_the_links_of_the_world_carry_a_failure_of_a_split(rank_pool):
    world = rank_pool(4, transport="tcp", with_memory=False)
    found = world.run(split_cells.fail_in_split, [0, 1, 0, 1])
    world.is_good = False
    assert all("all_sum #1" in said and "CollectiveMismatch" in said for said in found), found


def test_splits_go_on_in_the_next_epoch_and_closed_ones_do_not(farm, rank_pool):
    for transport in ("any", "tcp"):
        rank_pool(3, (0, 0, 1), transport).run(split_cells.hold_split)
        renewed = farm.unformed(3, (0, 0, 1), transport)
        renewed.run(cells.join)
        for said in renewed.run(split_cells.use_held):
            assert said[0].endswith(" of 3>")
            assert said[1] == said[2] == "[0, 1, 2]"
            assert said[3].endswith(" of 3, closed>")


def test_no_split_is_made_of_an_epoch_that_is_over():
    """A thread that comes late would reset memory in which the next epoch is at work."""
    spec = group_of_one()._current.spec
    family = GroupRegistry(spec, MappedHostMemory(spec))
    family.make(replace(spec, channel=1, number=5), {}).engine.close()
    family.settle_epoch(Deadline(1.0))
    ours, theirs = socket.socketpair()
    with pytest.raises(px.DistributedError, match="epoch 1 is over"):
        family.make(replace(spec, channel=2, number=6), {LinkPart(1, LinkPurpose.PAIR): theirs})
    assert theirs.fileno() == -1
    ours.close()


class FakeEngine:
    """An engine that calls ``meanwhile`` in the first operation, or when it is closed."""

    is_closed, is_idle, timeout = False, True, None

    def __init__(self, failure=None):
        self.failure, self.ran, self.aborted = failure, [], []
        self.meanwhile = lambda: None

    def run(self, op, x=None, out=None, *rest, **options):
        self.ran.append(op)
        self._meanwhile()
        if self.failure is not None:
            raise px.DistributedError(self.failure[2])
        out[...] = 0

    def abort(self, *failure):
        self.aborted.append(failure)

    def close(self):
        self.is_closed = True
        self._meanwhile()

    def _meanwhile(self):
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()

    def all_members_left(self):
        return self.is_closed


class TwoEpochs:
    """A group and another one, in epoch 1; `recover` enters epoch 2."""

    def __init__(self, *engines, number=0):
        channel = int(number > 0)
        one = replace(group_of_one()._current.spec, number=number, channel=channel)
        self.specs = {epoch: replace(one, epoch=epoch) for epoch in (1, 2)}
        self.said = {1: [], 2: []}
        self.registries = {
            epoch: GroupRegistry(spec, MappedHostMemory(spec), self.said[epoch].append)
            for epoch, spec in self.specs.items()
        }
        self.groups = [Group(self._formed(engine, 1)) for engine in engines]
        self.next = [FakeEngine() for _ in engines]

    def recover(self):
        for group, engine in zip(self.groups, self.next, strict=True):
            group._enter(self._formed(engine, 2))

    def _formed(self, engine, epoch):
        return Membership(engine, self.specs[epoch], self.registries[epoch])


def test_a_late_thread_does_not_end_the_next_epoch_for_a_failure_of_the_last():
    """As one that waits for the same operation as the thread that has recovered meanwhile."""
    failure = (1, 0, "rank 0 failed")
    late = FakeEngine(failure)
    epochs = TwoEpochs(late, FakeEngine())
    late.meanwhile = epochs.recover
    with pytest.raises(px.DistributedError, match="rank 0 failed"):
        epochs.groups[0].barrier()
    assert [news.epoch for news in epochs.said[1]] == [1]
    assert epochs.said[2] == []
    assert [engine.aborted for engine in epochs.next] == [[], []]


def test_the_second_message_of_an_object_does_not_go_into_the_next_epoch():
    late = FakeEngine()
    epochs = TwoEpochs(late)
    late.meanwhile = epochs.recover
    with pytest.raises(px.DistributedError, match="cannot be loaded"):
        px.all_gather_object("x", group=epochs.groups[0])
    assert late.ran == ["all_gather", "all_gather"]
    assert epochs.next[0].ran == []


@pytest.mark.parametrize("first", ["close", "recover"])
def test_a_split_that_a_thread_closes_while_another_recovers_stays_closed(first):
    old = FakeEngine()
    epochs = TwoEpochs(old, number=5)
    close, recover = epochs.groups[0].close, epochs.recover
    old.meanwhile = recover if first == "close" else close
    close() if first == "close" else recover()
    assert epochs.next[0].is_closed
    assert [type(news).__name__ for news in epochs.said[2]] == ["SplitFormed", "SplitClosed"]


@pytest.mark.parametrize("world", deep_but(["2+2 composed"], FOUR), indirect=True)
def test_a_forked_child_is_refused_and_does_no_harm(world):
    for said in world.run(split_cells.fork_with_splits):
        assert said.count("this process is a fork of process") == 3


@pytest.mark.parametrize("transport", ["any", "tcp"])
@pytest.mark.slow
def test_splits_leave_no_descriptor_and_no_thread_behind(rank_pool, transport):
    world = rank_pool(4, (0, 0, 1, 1), transport)
    for before, *_, after in world.run(split_cells.split_many, 5):
        assert after[:2] == before[:2]


@deep
@pytest.mark.parametrize("transport", ["any", "tcp"])
def test_two_hundred_splits_leave_no_memory_behind(rank_pool, transport):
    world = rank_pool(4, (0, 0, 1, 1), transport)
    for found in world.run(split_cells.split_many, 70):
        assert found[-1][:2] == found[0][:2]
        assert least_growth([kib for *_, kib in found]) < 1024
