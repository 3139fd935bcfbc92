"""What the fuzzers have found in the supervisors, each as the story that it is.

The seeds (`test_seeds.py`) hold more; here is what must happen instead of the end of all ranks.
"""

from __future__ import annotations

import asyncio

import pytest
from fuzz.stage import actors, staged
from fuzz.targets.supervisor import Play, raise_first, workspace
from support.inside import abort_reason, root_end
from support.ranks.loops import JumpingLoop

import phalanx
from phalanx.protocol import (
    AskRoot,
    BeginCell,
    BootOptions,
    CancelCell,
    EngineReady,
    Entered,
    EpochAborted,
    FromRoot,
    GetStacks,
    GetTopology,
    Hello,
    Join,
    Register,
    WorldConfig,
    pack_frame,
)
from phalanx.supervisor.root.workspace_root import WorkspaceRoot


def told_by(root, story, *, is_up=True):
    """What a root has told its clients in a story; it must live at the end of it."""
    loop = JumpingLoop()
    asyncio.set_event_loop(loop)

    async def tell() -> list[FromRoot]:
        play = Play(root)
        running = loop.create_task(play.root.run())
        await asyncio.sleep(0)
        for actor in actors.values() if is_up else ():
            actor.say(pack_frame(Register(1, 1)) + pack_frame(EngineReady()))
        play.says(Hello())
        await asyncio.sleep(0.1)
        await story(play)
        await asyncio.sleep(10)
        raise_first(loop.thrown)
        assert not running.done()
        root_end(play.root).set()
        await running
        return play.told

    try:
        with staged():
            return loop.run_until_complete(tell())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def answer_to(told, number):
    return next(said["answer"] for said in told if said.get("id") == number)


@pytest.mark.parametrize(
    "body",
    [
        b"\x82\xa4type\xa3Ask\xa2id\xa1\xff",  # a text that is no UTF-8
        b"\x81\xa4type\xa3Ask",
        b"",
    ],
)
def test_what_is_no_message_of_ours_ends_no_workspace(body):
    async def story(play):
        play.client_says("owner", body)

    told_by(workspace, story)


def test_a_cell_for_a_rank_that_is_not_there_is_refused():
    async def story(play):
        play.says(AskRoot(5, BeginCell("a", (0, 9))))
        await asyncio.sleep(1)
        play.says(CancelCell("a", (9, -1)))
        play.says(AskRoot(6, BeginCell("b", (0, 1))))
        await asyncio.sleep(1)
        for actor in actors.values():
            actor.say(pack_frame(Entered(1)))

    told = told_by(workspace, story)
    assert answer_to(told, 5)["message"] == "there is no rank 9"
    assert answer_to(told, 6)["type"] == "CellAllowed"


def test_stacks_of_ranks_that_are_not_there_are_left_out():
    async def story(play):
        play.says(AskRoot(5, GetStacks((1, 9, -1, 1))))

    assert list(answer_to(told_by(workspace, story), 5)["stacks"]) == [1]


@pytest.mark.parametrize(
    "message",
    [
        Join(1, 1 << 40, phalanx.__version__),
        EpochAborted(0, 1, 0, ""),
        EpochAborted(1, 1 << 40, 0, ""),
    ],
)
def test_a_rank_that_says_what_cannot_be_is_ended_and_named(message):
    async def story(play):
        actors[1].say(pack_frame(message))
        await asyncio.sleep(1)
        play.says(AskRoot(5, GetStacks((0, 1))))

    told = told_by(workspace, story)
    (lost,) = [said for said in told if said["type"] == "RankLost"]
    assert lost["rank"] == 1
    assert "cannot understand" in lost["reason"]
    assert "dead" in answer_to(told, 5)["stacks"][1]["note"]


def test_a_rank_that_dies_as_it_says_that_it_is_ready_is_told_of():
    async def story(play):
        actors[0].say(pack_frame(Register(1, 1)) + pack_frame(EngineReady()))
        await asyncio.sleep(0.1)
        actors[1].say(pack_frame(EngineReady()))
        actors[1]._forget_child(0)

    told = told_by(workspace, story, is_up=False)
    assert [said["rank"] for said in told if said["type"] == "RankLost"] == [1]


def test_a_rank_that_takes_no_answers_holds_nobody_up():
    async def story(play):
        for _ in range(200):
            actors[1].say(pack_frame(Join(1, 1, phalanx.__version__)) * 50)
            await asyncio.sleep(0.01)
        play.says(AskRoot(7, GetTopology()))

    told = told_by(workspace, story)
    (lost,) = [said for said in told if said["type"] == "RankLost"]
    assert (lost["rank"], lost["reason"]) == (1, "did not take what its supervisor answered")
    assert answer_to(told, 7)["type"] == "TopologyIs"


@pytest.mark.parametrize("size", [1, 2])
def test_a_frozen_rank_ends_the_epoch_only_if_others_may_wait_for_it(size):
    options, found = BootOptions(WorldConfig("frozen", size), 600.0, "/"), []

    async def story(play):
        play.says(AskRoot(3, BeginCell("a", tuple(range(size)))))
        await asyncio.sleep(0.1)
        play.root.on_frozen(0, "has been stopped")
        found.append(abort_reason(play.root, 1))

    told_by(lambda: WorkspaceRoot(options), story)
    assert [reason is not None for reason in found] == [size > 1]
