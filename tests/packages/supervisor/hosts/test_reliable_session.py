"""The line between a root and a host over wires that break: nothing is lost, nothing comes twice."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st
from support.hosts.proxy import Proxy
from support.ranks.loops import as_test, held, run_held
from zmq.utils.monitor import recv_monitor_message

from phalanx.protocol import WorldConfig
from phalanx.protocol.host import (
    Envelope,
    HostAnswered,
    HostBoot,
    HostLeaving,
    HostPing,
    HostUp,
    Refreshed,
    Resend,
    SignalRank,
    StopHost,
    ToHost,
)
from phalanx.supervisor.hosts import connection as connection_module
from phalanx.supervisor.hosts.addresses import ReachResult
from phalanx.supervisor.hosts.connection import (
    AGAIN_S,
    REFUSED_S,
    HostServer,
    ProtocolError,
    ReliableSession,
    RootConnection,
)

UP, FIRST = HostUp("1", 1, "b", 1, ()), SignalRank(0, 64)  # what each end says at once
N = 300
STEP_S = 0.002  # of the loop's clock at each look: no faster than what the sockets do
FAST_STEP_S = 0.01  # where nothing but time-outs is waited for


class Line:
    """A root's server and a host's link with a proxy between them, and what came out at both ends.

    Sockets are real, and time passes only when a test says so.
    """

    def __init__(self, loop):
        self.loop = loop
        self.at_root, self.at_host, self.failures = [], [], []
        self.door = HostServer()

    async def __aenter__(self):
        self.door.open(["127.0.0.1"])
        self.proxy = Proxy(self.door.endpoints[0])
        endpoint = await self.proxy.open()
        self.session = self.door.expect(self.at_root.append, self.failures.append)
        boot = HostBoot(
            "1", WorldConfig("w", 1, heartbeat_timeout_s=1.0), 0, "b", (0,), (endpoint,), "a",
            self.door.public_key, *self.session.keys, "/", 0.0,
        )  # fmt: skip
        self.context = zmq.asyncio.Context()
        self.link = RootConnection(self.context, boot, endpoint)
        self.link.send(UP)
        self.running = asyncio.ensure_future(self.link.run(self.at_host.append))
        await self.until_at_root(UP)
        self.session.send(FIRST)
        await self.until_at_host(FIRST)
        return self

    async def __aexit__(self, *_):
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        self.link.close()
        await self.proxy.close()
        self.door.close()
        self.context.destroy(linger=0)

    async def until_at_root(self, message):
        await self.loop.until(lambda: message in self.at_root, f"{message}", step_s=STEP_S)

    async def until_at_host(self, message):
        await self.loop.until(lambda: message in self.at_host, f"{message}", step_s=STEP_S)

    def end_root(self):
        """Close all that a root has open, as its end does."""
        self.door.close()
        self.proxy.stop()


class Tries:
    """Counts how often a link looks whether its root can be reached; ``answers`` come first."""

    def __init__(self, monkeypatch, *answers):
        self._real, self._answers = connection_module.reach, list(answers)
        self.n = 0
        self.is_cut = False
        monkeypatch.setattr(connection_module, "reach", self._reach)

    async def _reach(self, endpoints, timeout_s, **options):
        self.n += 1
        if self.is_cut:
            return ReachResult("", "", "no way", is_refused=False)
        if self._answers:
            return self._answers.pop()
        return await self._real(endpoints, timeout_s, **options)


def on_line(scene):
    """Run a test with a ``line``."""

    async def main(scene, loop):
        async with Line(loop) as line:
            await scene(line=line)

    return as_test(scene, lambda scene: run_held(lambda loop: main(scene, loop)), "line")


async def knock(undo, context, door, keys):
    """Say something with these keys; return what becomes of the handshake."""
    sock = undo.enter_context(context.socket(zmq.DEALER))
    sock.linger = 0
    sock.curve_serverkey = door.public_key
    sock.curve_publickey, sock.curve_secretkey = keys
    session = ReliableSession(lambda body: sock.send_multipart([body]))
    ends = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    monitor = undo.enter_context(sock.get_monitor_socket(ends))
    undo.callback(sock.disable_monitor)
    sock.connect(door.endpoints[0])
    session.send(UP)
    return (await recv_monitor_message(monitor))["event"]


@held
async def test_nobody_comes_in_without_the_key_it_was_given(loop):
    door, came = HostServer(), []
    door.open(["127.0.0.1"])
    _, two = (door.expect(lambda _, n=n: came.append(n), came.append) for n in (1, 2))
    with zmq.asyncio.Context() as context, contextlib.ExitStack() as undo:
        where = undo, context, door
        assert await knock(*where, zmq.curve_keypair()) == zmq.EVENT_HANDSHAKE_FAILED_AUTH
        assert await knock(*where, two.keys) == zmq.EVENT_HANDSHAKE_SUCCEEDED
        await loop.until(lambda: came, "what the second host says")
    assert came == [2]
    door.close()


@pytest.mark.parametrize("seed", range(3))
@on_line
async def test_nothing_is_lost_or_comes_twice_over_connections_that_are_reset(line, seed):
    chance = random.Random(seed)
    n_resets = 0
    for number in range(N):
        line.link.send(HostAnswered(number, Refreshed()))
        line.session.send(SignalRank(number, 1))
        if chance.random() < 0.05 and line.proxy.is_used:  # a new connection comes after 0.1 s
            line.proxy.reset()
            n_resets += 1
        if chance.random() < 0.2:  # or all would be said before anything has come
            await line.loop.run_in_executor(None, time.sleep, chance.random() * 0.02)
    line.proxy.reset()
    line.session.send_unreliable(HostPing(1))  # a root that says nothing does not find out
    await line.until_at_root(HostAnswered(N - 1, Refreshed()))
    await line.until_at_host(SignalRank(N - 1, 1))
    # What would come twice comes before what is said now.
    line.link.send(HostAnswered(N, Refreshed()))
    line.session.send(SignalRank(N, 1))
    await line.until_at_root(HostAnswered(N, Refreshed()))
    await line.until_at_host(SignalRank(N, 1))
    said = [message.id for message in line.at_root if isinstance(message, HostAnswered)]
    told = [its.rank for its in line.at_host if isinstance(its, SignalRank)]
    assert said == list(range(N + 1))
    assert told == [0, *range(N + 1)]
    assert n_resets
    assert line.proxy.n_came > n_resets
    assert set(line.failures) <= {""}


@on_line
async def test_what_a_root_says_twice_is_taken_once(line):
    line.session.send(SignalRank(7, 1))
    line.session.receive(Envelope(0, 0, False, Resend()))
    line.session.send(SignalRank(8, 1))
    await line.until_at_host(SignalRank(8, 1))
    assert line.at_host.count(SignalRank(7, 1)) == 1


@on_line
async def test_a_connection_that_says_nothing_any_more_is_replaced(line):
    """As after a firewall has forgotten it: nobody is told that it has broken."""
    line.proxy.swallow()
    line.link.send(HostAnswered(7, Refreshed()))
    line.session.send(SignalRank(7, 1))
    await line.until_at_host(SignalRank(7, 1))
    await line.until_at_root(HostAnswered(7, Refreshed()))


@on_line
async def test_who_finds_nobody_listening_knows_that_the_root_is_over(line, monkeypatch):
    """When it has been refused for so long, and not before."""
    tries = Tries(monkeypatch)
    line.end_root()
    begun_s = line.loop.time()
    await line.loop.until(line.running.done, "its end", step_s=FAST_STEP_S)
    assert line.running.result()
    assert line.loop.time() - begun_s > REFUSED_S
    assert tries.n <= 2 + REFUSED_S / AGAIN_S


@on_line
async def test_a_root_that_ends_while_it_is_looked_for_is_known_to_be_over(line, monkeypatch):
    """As a process ends, its connections are closed before what listens, at times well before."""
    a_moment_ago = ReachResult(line.link._endpoint, "127.0.0.1", "", is_refused=False)
    tries = Tries(monkeypatch, a_moment_ago)
    line.end_root()
    await line.loop.until(line.running.done, "its end", step_s=FAST_STEP_S)
    assert line.running.result()
    assert tries.n > 1


@on_line
async def test_who_finds_somebody_else_there_goes_on_trying_without_haste(line, monkeypatch):
    """It is not let in, or not understood; that may pass, as after a proxy was set up anew."""
    tries = Tries(monkeypatch)
    other = HostServer()
    other.open(["127.0.0.1"])
    line.door.close()
    line.proxy._port = int(other.endpoints[0].rpartition(":")[2])
    line.proxy.reset()
    begun_s = line.loop.time()
    await line.loop.until(lambda: tries.n >= 11, "ten more tries", step_s=FAST_STEP_S)
    assert line.loop.time() - begun_s > 9 * AGAIN_S
    assert not line.running.done()
    other.close()


@on_line
async def test_who_cannot_reach_the_root_goes_on_trying(line, monkeypatch):
    tries = Tries(monkeypatch)
    tries.is_cut = True
    line.proxy.stop()
    line.link.send(HostAnswered(8, Refreshed()))
    await line.loop.until(lambda: tries.n == 1, "a first try", step_s=STEP_S)
    for n in range(2, 2 + int(2 * REFUSED_S / AGAIN_S)):
        await line.loop.pass_s(AGAIN_S)
        assert tries.n == n
    assert not line.running.done()
    tries.is_cut = False
    await line.proxy.open()
    await line.until_at_root(HostAnswered(8, Refreshed()))


@on_line
async def test_who_was_given_up_is_told_on_its_new_connection(line):
    line.proxy.swallow()
    line.session.give_up()
    await line.until_at_host(StopHost())
    line.at_host.clear()
    # A host that does not listen, and speaks on.
    line.link.send(HostLeaving())
    await line.until_at_host(StopHost())  # the answer to that
    assert HostLeaving() not in line.at_root


@on_line
async def test_a_connection_that_was_replaced_leaves_nothing_open(line):
    n_open = []
    for number in range(30):
        line.proxy.reset()
        line.link.send(HostAnswered(number, Refreshed()))
        await line.until_at_root(HostAnswered(number, Refreshed()))
        n_open.append(len([*Path("/proc/self/fd").iterdir()]))
    assert max(n_open[-5:]) <= max(n_open[:10]) + 5


# -- numbers --------------------------------------------------------------------------------------


ACTS = [("say", 0), ("say", 1), ("come", 0), ("come", 1), ("break", 0)]


@given(st.lists(st.sampled_from(ACTS), max_size=60))
def test_letters_come_once_and_in_order_whatever_breaks(acts):
    """An end says; "come": the next envelope of an end arrives; "break": those on the way are lost."""
    wires: tuple[list[bytes], ...] = [], []
    ends = [ReliableSession(wire.append) for wire in wires]
    n_said, came = [0, 0], ([], [])

    def arrive(of):
        envelope = msgspec.msgpack.decode(wires[of].pop(0), type=Envelope[ToHost])
        if ends[1 - of].receive(envelope) and isinstance(envelope.message, HostPing):
            came[of].append(envelope.message.sent_ns)

    def arrive_all():
        while any(wires):
            for of in 0, 1:
                if wires[of]:
                    arrive(of)

    for act, of in acts:
        if act == "say":
            n_said[of] += 1
            ends[of].send(HostPing(n_said[of]))
        elif act == "break":
            for wire in wires:
                wire.clear()
        elif wires[of]:
            arrive(of)
    for end in (*ends, *ends):  # the second time acknowledges the last words
        end.send_unreliable(Resend())
        arrive_all()
    assert list(came) == [list(range(1, n + 1)) for n in n_said]
    assert not any(end._kept for end in ends)


def test_what_was_never_said_cannot_be_acknowledged():
    with pytest.raises(ProtocolError):
        ReliableSession(lambda _: None).receive(Envelope(1, 1, True, HostPing(1)))
