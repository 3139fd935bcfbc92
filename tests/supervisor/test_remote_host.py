"""The root's end of a line to another host: who gets in, what it may say, whether it lives."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st

import phalanx
from phalanx.protocol import Activity, BootOptions, EngineReady, HostPlan, Notice, RemoteOptions
from phalanx.protocol.host_commands import RunCommand
from phalanx.protocol.host_samples import HostSample, HostSamples
from phalanx.protocol.hosts import (
    Beaten,
    Disowned,
    FromHost,
    HostBoot,
    HostReport,
    HostUp,
    RankFrozen,
    RankGone,
    RankReport,
    RankSaid,
    Spawn,
    ToHost,
)
from phalanx.supervisor import _host_line
from phalanx.supervisor._beats import ClockOffset
from phalanx.supervisor._hosts import Hosts

OPTIONS = BootOptions(
    "test", 2, 0, b"", "any", 0.0, 1.0, "/",
    hosts=(HostPlan("b", 1), HostPlan("c", 1)),
    remote=RemoteOptions(launcher="local", timeout_s=5.0),
)  # fmt: skip


class Events:
    """What a root is told."""

    def __init__(self):
        self.lost, self.said, self.frozen, self.news, self.not_up = [], [], [], [], []

    def on_message(self, rank, message):
        self.said.append((rank, message))

    def on_lost(self, rank, reason, tail):
        self.lost.append((rank, reason))

    def on_frozen(self, rank, reason):
        self.frozen.append((rank, reason))

    def on_news(self, message):
        self.news.append(message)

    def on_not_up(self, reasons):
        self.not_up += reasons


class Process:
    """What has started a host; the host is the test."""

    def __init__(self, line):
        self.boot = msgspec.json.decode(line, type=HostBoot)
        self.over = asyncio.get_running_loop().create_future()
        self.is_killed = False

    async def ended(self):
        return await asyncio.shield(self.over)

    def look(self):
        pass

    def farewell(self):
        pass

    def kill(self):
        self.is_killed = True
        if not self.over.done():
            self.over.set_result("its supervisor was killed by signal 9 (SIGKILL)")


class Far:
    """A host's end of the line, over a real socket."""

    def __init__(self, context, process, *, keys=None):
        boot = process.boot
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.curve_serverkey = boot.root_key
        self.socket.curve_publickey, self.socket.curve_secretkey = keys or (
            boot.public_key,
            boot.secret_key,
        )
        self.socket.connect(boot.endpoints[0])

    def say(self, message):
        self.say_bytes(msgspec.msgpack.encode(message))

    def say_bytes(self, *bodies):
        self.socket.send_multipart(bodies)

    def come(self):
        self.say(HostUp(phalanx.__version__, 1, "far", 2, ("127.0.0.1",)))

    async def hear(self, kind, timeout_s=3.0):
        """Return the next message of a kind."""

        async def wait():
            while True:
                (body,) = await self.socket.recv_multipart()
                message = msgspec.msgpack.decode(body, type=ToHost)
                if isinstance(message, kind):
                    return message

        return await asyncio.wait_for(wait(), timeout_s)


async def until(condition, timeout_s=5.0):
    async def wait():
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(wait(), timeout_s)


def play(monkeypatch, scene):
    """Run a scene with two hosts, b with rank 0 and c with rank 1, that are about to come."""
    processes = []

    async def launch(plan, line, remote, *, on_slow):
        processes.append(Process(line))
        return processes[-1]

    monkeypatch.setattr(_host_line, "launch_host", launch)

    async def main():
        events = Events()
        hosts = Hosts(OPTIONS, events)
        try:
            hosts.spawn(0)
            hosts.spawn(1)
            await until(lambda: len(processes) == 2)
            with zmq.asyncio.Context() as context, contextlib.ExitStack() as undo:

                def visit(process, **options):
                    far = Far(context, process, **options)
                    undo.callback(far.socket.close)
                    return far

                await scene(hosts, events, visit, processes)
        finally:
            for process in processes:
                process.kill()
            await hosts.stop()

    asyncio.run(main())


def report(rank):
    return RankReport(rank, 9, Activity(1, {}), "", 1, 1)


BAD = [
    HostReport((report(1),)),
    HostReport((report(0), report(7))),
    RankSaid(1, EngineReady()),
    RankGone(1, 0, "exited", ""),
    RankFrozen(1, "frozen"),
    HostSamples((HostSample(1, 9, 0, 0, 0, 0, {}, (), 0, b""),)),
]


@pytest.mark.parametrize("bad", [*BAD, b"nonsense", (b"two", b"parts")])
def test_a_host_that_speaks_for_others_or_nonsense_is_put_out(monkeypatch, bad):
    async def scene(hosts, events, visit, processes):
        far = visit(processes[0])
        far.come()
        await far.hear(Spawn)
        far.say(HostReport((report(0),)))
        if isinstance(bad, bytes):
            far.say_bytes(bad)
        elif isinstance(bad, tuple):
            far.say_bytes(*bad)
        else:
            far.say(bad)
        await far.hear(Disowned)
        await until(lambda: events.lost)
        assert [rank for rank, _ in events.lost] == [0]
        assert events.lost[0][1].startswith("lost its host: it has s")
        assert processes[0].is_killed
        assert events.said == events.frozen == []
        far.say(RankSaid(0, EngineReady()))  # it is not heard any more
        await far.hear(Disowned)
        assert events.said == []
        assert not processes[1].is_killed

    play(monkeypatch, scene)


def test_a_rank_whose_host_is_lost_before_the_others_are_up_is_lost(monkeypatch):
    async def scene(hosts, events, visit, processes):
        far = visit(processes[0])
        far.come()
        await far.hear(Spawn)
        processes[0].kill()
        await until(lambda: events.lost)
        (host,) = [host for host in hosts._remote.values() if 0 in host.ranks]
        host.run_command(RunCommand(0, ("true",), {}, False))
        assert events.lost[1:] == [(0, "lost its host before it was started")]
        assert hosts.status(0) == -9

    play(monkeypatch, scene)


def test_a_mistake_while_a_host_is_started_is_told(monkeypatch):
    async def fail(self):
        raise KeyError

    monkeypatch.setattr(Hosts, "reached_at", fail)

    async def main():
        events = Events()
        hosts = Hosts(OPTIONS, events)
        hosts.spawn(0)
        hosts.spawn(1)
        await until(lambda: events.not_up)
        await hosts.stop()
        return events.not_up

    told = asyncio.run(main())
    assert len(told) == 2
    assert "could not be started from here: KeyError()" in str(told)


def test_a_rank_that_waits_for_its_host_can_be_given_up(monkeypatch):
    async def scene(hosts, events, visit, processes):
        assert await hosts.kill(0, 0.1)
        far = visit(processes[0])
        far.come()
        with pytest.raises(asyncio.TimeoutError):
            await far.hear(Spawn, 0.3)

    play(monkeypatch, scene)


def test_nobody_comes_in_without_the_key_it_was_given(monkeypatch):
    async def scene(hosts, events, visit, processes):
        stranger = visit(processes[0], keys=zmq.curve_keypair())
        stranger.come()
        far = visit(processes[1])
        far.come()
        await far.hear(Spawn)
        with pytest.raises(asyncio.TimeoutError):
            await stranger.hear(Spawn, 0.2)
        # Who has a key speaks for its own host only, whatever it says of itself.
        assert [info.cores for info in hosts.infos] == [0, 2]

    play(monkeypatch, scene)


def test_a_host_that_says_nothing_is_lost_in_time_and_told_when_it_comes_back(monkeypatch):
    async def scene(hosts, events, visit, processes):
        far = visit(processes[0])
        far.come()
        await far.hear(Spawn)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await until(lambda: events.lost)
        assert 0.9 <= loop.time() - began_s < 2.0
        assert events.lost == [(0, "lost its host: it has not answered for 1 s")]
        assert not processes[0].is_killed  # it may be on its way
        far.say(Beaten(1, 1))
        await far.hear(Disowned)

    play(monkeypatch, scene)


def test_another_version_is_not_up_and_both_are_named(monkeypatch):
    async def scene(hosts, events, visit, processes):
        far = visit(processes[0])
        far.say(HostUp("0.0.1", 1, "far", 2, ()))
        processes[1].over.set_result("no phalanx")
        await until(lambda: events.not_up)
        mine = phalanx.__version__
        assert events.not_up == [f"b: its phalanx is 0.0.1, this one is {mine}", "c: no phalanx"]
        await far.hear(Disowned)

    play(monkeypatch, scene)


@given(st.binary(max_size=200))
def test_what_a_host_says_is_understood_or_refused(data):
    try:
        message = msgspec.msgpack.decode(data, type=FromHost)
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
        msgspec.msgpack.decode(msgspec.msgpack.encode(Notice("x")), type=FromHost)
