"""The root's end of a line to another host: who gets in, what it may say, whether it lives."""

from __future__ import annotations

import asyncio
import signal
from importlib import metadata

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hosts.far_hosts import OPTIONS, Events, played, until
from support.ranks.loops import run_jumping

import phalanx
from phalanx.protocol import Activity, EngineReady, Notice, Register
from phalanx.protocol.host import (
    Envelope,
    FromHost,
    FromRankEnvelope,
    HostPing,
    HostPong,
    HostReport,
    HostUp,
    RankFrozen,
    RankGone,
    RankReport,
    Resend,
    RunCommand,
    SignalRank,
    Spawn,
    StopHost,
    Versions,
)
from phalanx.supervisor.hosts.host_set import HostSet, say_differing, versions_here
from phalanx.supervisor.hosts.remote_host import LOOK_EVERY_S
from phalanx.supervisor.hosts.samples import ClockOffset


def report(rank):
    return RankReport(rank, 9, Activity(1, {}), "", 1, 1)


BAD = [
    HostReport((report(1),)),
    HostReport((report(0), report(7))),
    FromRankEnvelope(1, EngineReady()),
    RankGone(1, 0, "exited", ""),
    RankFrozen(1, "frozen"),
]


@pytest.mark.parametrize("bad", [*BAD, b"nonsense", (b"two", b"parts")])
@played
async def test_a_host_that_speaks_for_others_or_nonsense_is_put_out(events, processes, far, bad):
    far.say(HostReport((report(0),)))
    if isinstance(bad, bytes):
        far.say_bytes(bad)
    elif isinstance(bad, tuple):
        far.say_bytes(*bad)
    else:
        far.say(bad)
    await far.hear(StopHost)
    await until(lambda: events.lost)
    assert [rank for rank, _ in events.lost] == [0]
    assert events.lost[0][1].startswith("lost its host: it has s")
    assert processes[0].is_killed
    assert events.said == events.frozen == []
    far.say(FromRankEnvelope(0, EngineReady()))  # it is not heard any more
    await far.hear(StopHost)
    assert events.said == []
    assert not processes[1].is_killed


@played
async def test_nonsense_before_a_host_is_up_is_why_it_is_not(events, visit, processes):
    far = visit(processes[0])
    far.say_bytes(b"nonsense")
    processes[1].over.set_result("no phalanx")
    await until(lambda: events.not_up)
    assert events.not_up == ["b: it has said what its root cannot understand", "c: no phalanx"]
    assert processes[0].is_killed


@played
async def test_a_rank_whose_host_is_lost_before_the_others_are_up_is_lost(
    hosts, events, processes, far
):
    processes[0].kill()
    await until(lambda: events.lost)
    hosts.take(RunCommand(0, (b"true",), {}, False))
    assert events.lost[1:] == [(0, "lost its host before it was started")]
    assert hosts.statuses[0] == -9


def test_a_mistake_while_a_host_is_started_is_told(monkeypatch):
    def fail(self, *_):
        raise KeyError

    monkeypatch.setattr(HostSet, "first_line", fail)

    async def main():
        events = Events()
        hosts = HostSet(OPTIONS, events)
        await hosts.boot()
        await hosts.stop()
        return events.not_up

    told = run_jumping(main)
    assert len(told) == 2
    assert "could not be started from here: KeyError()" in str(told)


@played
async def test_a_host_speaks_for_itself_only_whatever_it_says_of_itself(hosts, visit, processes):
    """Who has which key is the socket's to know: test_reliable_session.py."""
    far = visit(processes[1])
    far.come()
    await far.hear(Spawn)
    assert [info.cores for info in hosts.infos] == [0, 2]


@played
async def test_ranks_reach_this_machine_at_the_address_at_which_their_host_has(
    hosts, visit, processes, monkeypatch
):
    """Not all hosts reach it at the same address; one that is not ours is not believed."""
    reached = ("10.1.0.1", "10.2.0.1")
    monkeypatch.setattr(hosts, "addresses", reached)
    for process, address in zip(processes, ("10.2.0.1", "10.3.0.1"), strict=True):
        far = visit(process)
        far.say(HostUp(phalanx.__version__, 1, "far", 2, ("127.0.0.1",), address))
        await far.hear(Spawn)
    assert hosts.root_address(0) == "10.2.0.1"
    assert hosts.root_address(1) == "10.1.0.1"


@played
async def test_a_host_that_says_nothing_is_lost_in_time_and_told_when_it_comes_back(
    events, processes, far
):
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while loop.time() - began_s < 5.0:
        far.say(HostPong((await far.hear(HostPing)).sent_ns, 1))
    assert events.lost == []
    began_s = loop.time()
    await until(lambda: events.lost)
    # As it is looked at a few times a second; the promise is half a second.
    assert 1.0 <= loop.time() - began_s <= 1.0 + 2 * LOOK_EVERY_S
    assert events.lost == [(0, "lost its host: it has not answered for 1 s")]
    assert not processes[0].is_killed  # it may be on its way
    far.say(HostPong(1, 1))
    await far.hear(StopHost)


@pytest.mark.parametrize("is_broken_first", [True, False])
@played
async def test_a_host_whose_launcher_tells_nothing_is_looked_at_when_its_connection_breaks(
    events, processes, far, is_broken_first
):
    """An ssh that was killed, or whose far shell was, tells no exit status."""
    processes[0].is_over, processes[0].looked = False, "its supervisor has died"
    ends = [far.close, lambda: processes[0].over.set_result("its ssh was killed")]
    for end in ends if is_broken_first else ends[::-1]:
        end()
        assert events.lost == []
        await asyncio.sleep(0.3)  # more than a beat, and less than the silence limit
    assert events.lost == [(0, "lost its host: its supervisor has died")]


@played
async def test_a_host_comes_in_again_and_neither_end_misses_a_word(hosts, events, far):
    far.close()  # what is said now finds no way
    far.say(FromRankEnvelope(0, EngineReady()))
    hosts.take(SignalRank(0, signal.SIGUSR1))
    hosts.take(SignalRank(0, signal.SIGUSR2))
    for _ in range(2):  # the second time for nothing
        far.rejoin()
    assert [(await far.hear(SignalRank)).number for _ in range(2)] == [
        signal.SIGUSR1,
        signal.SIGUSR2,
    ]
    await far.hear(Resend)
    await until(lambda: events.said)
    await far.hear(HostPing)
    assert events.said == [(0, EngineReady())]
    assert events.lost == []


@played
async def test_a_host_is_asked_for_words_that_are_missing(events, far):
    said = [(0, Register(1, 1)), (0, EngineReady())]
    far.close()
    far.say(FromRankEnvelope(*said[0]))
    far.connect()
    far.say(FromRankEnvelope(*said[1]))
    await far.hear(Resend)
    await until(lambda: len(events.said) == 2)
    assert events.said == said


@played
async def test_another_version_is_not_up_and_both_are_named(events, visit, processes):
    far = visit(processes[0])
    far.say(HostUp("0.0.1", 1, "far", 2, ()))
    processes[1].over.set_result("no phalanx")
    await until(lambda: events.not_up)
    mine = phalanx.__version__
    assert events.not_up == [f"b: its phalanx is 0.0.1, this one is {mine}", "c: no phalanx"]
    await far.hear(StopHost)


def test_another_torch_or_mlx_is_named_whatever_its_build(monkeypatch):
    installed = {"torch": "2.9.0+cpu", "mlx": "0.32"}

    def version(name):
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", version)
    here = versions_here()
    assert (here.numpy, here.torch, here.mlx) == ("", "2.9.0", "0.32")
    there = {"b": Versions("9.9", here.python, "2.8.0"), "c": Versions(torch="2.9.0", mlx="0.1")}
    assert say_differing(here, there) == (
        "torch is 2.8.0 on b and 2.9.0 here: results may differ; "
        "there: python -m pip install torch==2.9.0. "
        "mlx is 0.1 on c and 0.32 here: results may differ; "
        "there: python -m pip install mlx==0.32"
    )


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ([Versions("0.1", "3.2"), Versions("0.1", "3.2")], ["numpy is 0.1 on b, c and "]),
        ([None, Versions(python="3.2")], ["Python is 3.2 on c and "]),
        ([None, None], []),
    ],
)
@played
async def test_versions_that_differ_are_told_in_one_line_when_all_hosts_are_up(
    hosts, events, visit, processes, versions, said
):
    """None: those of this machine. The start goes on."""
    for process, its in zip(processes, versions, strict=True):
        far = visit(process)
        theirs = its or versions_here()
        far.say(HostUp(phalanx.__version__, 1, "far", 2, ("127.0.0.1",), versions=theirs))
        await far.hear(Spawn)
    await asyncio.sleep(0.1)
    notices = [news.text for news in events.news if isinstance(news, Notice)]
    assert len(notices) == len(said)
    for text, begin in zip(notices, said, strict=True):
        assert text.startswith(begin)
        assert "\n" not in text
    assert events.not_up == events.lost == []


@given(st.binary(max_size=200))
def test_what_a_host_says_is_understood_or_refused(data):
    try:
        message = msgspec.msgpack.decode(data, type=Envelope[FromHost])
    except (ValueError, RecursionError):
        return
    assert isinstance(message, msgspec.Struct)


@given(
    st.integers(-(10**15), 10**15),
    st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)), min_size=1, max_size=20),
)
def test_a_clock_is_never_said_to_be_nearer_than_it_is(offset_ns, trips):
    """``offset_ns``: what is to be found, by round trips of any two halves."""
    clock, now_ns = ClockOffset(), 10**18
    for there, back in trips:
        came_ns = now_ns + there + back
        clock.learn(sent_ns=now_ns, came_ns=came_ns, theirs_ns=now_ns + there - offset_ns)
        now_ns = came_ns + 10**6
        found, uncertainty = clock.at(now_ns)
        assert abs(found - offset_ns) <= uncertainty + 1
    assert uncertainty <= min(sum(trip) for trip in trips) // 2 + 10**7


def test_notices_are_no_part_of_what_hosts_say():
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(
            msgspec.msgpack.encode((1, 0, True, Notice("x"))), type=Envelope[FromHost]
        )
