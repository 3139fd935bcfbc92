"""The line between a root and a host over wires that break: nothing is lost, nothing comes twice."""

from __future__ import annotations

import asyncio
import random
import types
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st
from proxy import Proxy

from phalanx.protocol.host_letters import FromHostLetter, ToHostLetter
from phalanx.protocol.hosts import Beat, Bye, Disowned, HostBoot, HostUp, Refreshed, SignalRank
from phalanx.supervisor import _host_door, _host_role, _root_link
from phalanx.supervisor._host_door import HostDoor
from phalanx.supervisor._host_role import HostRole
from phalanx.supervisor._letters import Letters, Nonsense
from phalanx.supervisor._reach import Reached
from phalanx.supervisor._root_link import RootLink

UP, FIRST = HostUp("1", 1, "b", 1, ()), SignalRank(0, 64)  # what each end says at once
N = 300


class Line:
    """A root's door and a host's link with a proxy between them, and what came out at both ends."""

    def __init__(self):
        self.at_root, self.at_host, self.failures = [], [], []
        self.door = HostDoor()
        self.key, self.secret = zmq.curve_keypair()

    async def __aenter__(self):
        self.door.open(["127.0.0.1"])
        self.proxy = Proxy(self.door.endpoints[0])
        endpoint = await self.proxy.open()
        self.door.expect(self.key, self.at_root.append, self.failures.append)
        boot = HostBoot(
            "1", "w", 0, "b", (0,), 1, (endpoint,), "a", self.door.public_key, self.key,
            self.secret, "/", 0.0, 1.0,
        )  # fmt: skip
        self.context = zmq.asyncio.Context()
        self.link = RootLink(self.context, boot, endpoint)
        self.link.say(UP)
        self.running = asyncio.ensure_future(self.link.run(self.at_host.append))
        await until(lambda: self.at_root)
        self.door.say(self.key, FIRST)
        await until(lambda: self.at_host)
        return self

    async def __aexit__(self, *_):
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        self.link.close()
        await self.proxy.close()
        self.door.close()
        self.context.destroy(linger=0)


async def until(condition, timeout_s=10.0):
    async def wait():
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(wait(), timeout_s)


def play(scene):
    async def main():
        async with Line() as line:
            await scene(line)

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_or_comes_twice_over_connections_that_are_reset(seed):
    chance = random.Random(seed)

    async def scene(line):
        n_resets = 0
        for number in range(N):
            line.link.say(Refreshed(number))
            line.door.say(line.key, SignalRank(number, 1))
            if chance.random() < 0.02:
                line.proxy.reset()
                n_resets += 1
            if chance.random() < 0.2:
                await asyncio.sleep(chance.random() * 0.02)
        line.proxy.reset()
        line.door.note(line.key, Beat(1))  # a root that says nothing does not find out
        await until(lambda: len(line.at_root) > N and len(line.at_host) > N)
        await asyncio.sleep(0.1)
        said = [message.id for message in line.at_root if isinstance(message, Refreshed)]
        told = [its.rank for its in line.at_host if isinstance(its, SignalRank)]
        assert said == list(range(N))
        assert told == [0, *range(N)]
        assert n_resets
        assert line.proxy.n_came > n_resets // 2
        assert set(line.failures) <= {""}

    play(scene)


def test_a_connection_that_says_nothing_any_more_is_replaced(monkeypatch):
    """As after a firewall has forgotten it: nobody is told that it has broken."""

    async def scene(line):
        line.proxy.swallow()
        line.link.say(Refreshed(7))
        line.door.say(line.key, SignalRank(7, 1))
        line.link.doubt()
        await until(lambda: SignalRank(7, 1) in line.at_host)
        await until(lambda: Refreshed(7) in line.at_root)

    play(scene)


def test_who_finds_nobody_listening_knows_that_the_root_is_over():
    async def scene(line):
        line.door.close()
        line.proxy._server.close()
        line.proxy.reset()
        assert await asyncio.wait_for(line.running, _root_link.REFUSED_S + 1.0)

    play(scene)


def test_a_root_that_ends_while_it_is_looked_for_is_known_to_be_over(monkeypatch):
    """As a process ends, its connections are closed before what listens, at times well before."""

    async def scene(line):
        real = _root_link.reach

        async def a_moment_ago(endpoints, timeout_s, **options):
            monkeypatch.setattr(_root_link, "reach", real)
            return Reached(endpoints[0], "127.0.0.1", "", is_refused=False)

        monkeypatch.setattr(_root_link, "reach", a_moment_ago)
        line.door.close()
        line.proxy._server.close()
        line.proxy.reset()
        assert await asyncio.wait_for(line.running, _root_link.REFUSED_S + 1.0)

    play(scene)


def test_who_finds_somebody_else_there_goes_on_trying_without_haste():
    """It is not let in, or not understood; that may pass, as after a proxy was set up anew."""

    async def scene(line):
        other = HostDoor()
        other.open(["127.0.0.1"])
        line.door.close()
        line.proxy._port = int(other.endpoints[0].rpartition(":")[2])
        line.proxy.reset()
        await asyncio.sleep(1.0)
        n_came, is_over = line.proxy.n_came, line.running.done()
        other.close()
        assert is_over or 2 < n_came < 30

    play(scene)


def test_who_cannot_reach_the_root_goes_on_trying(monkeypatch):
    async def scene(line):
        real = _root_link.reach
        is_cut = True

        async def cut(endpoints, timeout_s, **options):
            if is_cut:
                return Reached("", "", "no way", is_refused=False)
            return await real(endpoints, timeout_s, **options)

        monkeypatch.setattr(_root_link, "reach", cut)
        line.proxy.reset()
        line.link.say(Refreshed(8))
        await asyncio.sleep(2 * _root_link.REFUSED_S)
        assert not line.running.done()
        is_cut = False
        await until(lambda: Refreshed(8) in line.at_root)

    play(scene)


def test_who_was_given_up_is_told_on_its_new_connection():
    async def scene(line):
        line.proxy.swallow()
        line.door.give_up(line.key)
        line.link.doubt()
        await until(lambda: Disowned() in line.at_host)
        line.link.say(Bye())
        await asyncio.sleep(0.1)
        assert Bye() not in line.at_root

    play(scene)


def test_a_connection_that_was_replaced_leaves_nothing_open():
    async def scene(line):
        n_open = []
        for number in range(30):
            line.proxy.reset()
            line.link.say(Refreshed(number))
            await until(lambda number=number: Refreshed(number) in line.at_root)
            n_open.append(len([*Path("/proc/self/fd").iterdir()]))
        assert max(n_open[-5:]) <= max(n_open[:10]) + 5

    play(scene)


def test_a_host_that_never_tells_what_it_has_heard_is_put_out(monkeypatch):
    monkeypatch.setattr(_host_door, "KEPT_MAX_NBYTES", 2000)

    async def scene(line):
        for number in range(100):  # more than that, and heard
            line.door.say(line.key, SignalRank(number, 1))
            line.link.say(Refreshed(number))
            await until(lambda number=number: SignalRank(number, 1) in line.at_host)
            await until(lambda number=number: Refreshed(number) in line.at_root)
        assert line.failures == []
        line.proxy.swallow()
        for number in range(N):
            line.door.say(line.key, SignalRank(number, 1))
        assert line.failures == []  # not below who says something
        await until(lambda: line.failures)
        assert "what it has heard" in line.failures[0]
        line.door.give_up(line.key)
        for number in range(N):
            line.door.say(line.key, SignalRank(number, 1))
        assert line.door._visitors[line.key].letters.unheard == ()

    play(scene)


def test_a_host_looks_at_its_ranks_only_while_its_root_hears_it(monkeypatch):
    """What it says is kept until then, and it looks twenty times a second."""
    monkeypatch.setattr(_host_role, "LOOK_EVERY_S", 0.001)

    async def main():
        looked = []
        role = HostRole.__new__(HostRole)
        role._watching = asyncio.Event()
        role._watching.set()
        role._root = types.SimpleNamespace(is_joined=False)
        role._host = types.SimpleNamespace(ranks=(0,))
        role._report = looked.append
        watch = asyncio.ensure_future(role._watch_ranks())
        await asyncio.sleep(0.05)
        assert looked == []
        role._root.is_joined = True
        await until(lambda: looked)
        watch.cancel()

    asyncio.run(main())


# -- numbers --------------------------------------------------------------------------------------


def _read(letters, body, kind):
    return letters.read(msgspec.msgpack.decode(body, type=kind))


@given(st.lists(st.sampled_from(["say", "come", "break"]), max_size=60))
def test_letters_come_once_and_in_order_whatever_breaks(acts):
    """One end says; "come": the next letter on the wire arrives; "break": those on it are lost."""
    here, there, wire, n_said, came = Letters(), Letters(), [], 0, []

    def arrive():
        body = wire.pop(0)
        if _read(there, body, ToHostLetter):
            came.append(msgspec.msgpack.decode(body, type=ToHostLetter).message.number)
        _read(here, there.note(Bye()), FromHostLetter)

    for act in [*acts, "break"]:
        if act == "say":
            n_said += 1
            wire.append(here.write(Beat(n_said)))
        elif act == "come" and wire:
            arrive()
        elif act == "break":
            wire = list(here.unheard)
    while wire:
        arrive()
    assert came == list(range(1, n_said + 1))
    assert here.unheard == ()


@pytest.mark.parametrize("letter", [ToHostLetter(2, 0, Beat(1)), ToHostLetter(1, 1, Beat(1))])
def test_numbers_that_cannot_be_are_nonsense(letter):
    with pytest.raises(Nonsense):
        Letters().read(letter)
