"""What the supervisor of another host may say to its root: any frames, in any order, at any time.

It has the key that the root gave it, so it is ours; but it may be broken, or in a stranger's hands.
Whatever it says, it speaks for its own ranks only, the world lives on without it, every question is
answered, nothing escapes into the loop, no descriptor is left open at the end.
"""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import msgspec
from fuzz.stage import actors
from fuzz.supply import Supply
from fuzz.targets.supervisor import Play, encoded, run_play
from support.hosts.far_hosts import Door, Process
from support.inside import dead_ranks, host_server, is_booted
from support.ranks.loops import JumpingLoop

import phalanx
from phalanx.protocol import (
    Activity,
    AskRoot,
    BootOptions,
    EngineReady,
    GetOutput,
    GetStacks,
    GetTopology,
    GetTrace,
    Hello,
    HostPlan,
    Register,
    RemoteOptions,
    Samples,
    WatchSamples,
    WorldConfig,
    pack_frame,
)
from phalanx.protocol.host import (
    Envelope,
    FromCommand,
    FromHost,
    FromRankEnvelope,
    HostPing,
    HostPong,
    HostReport,
    HostUp,
    RankFrozen,
    RankGone,
    RankReport,
    Spawn,
    StopHost,
    ToHost,
)
from phalanx.supervisor.hosts import connection as connection_module
from phalanx.supervisor.hosts import remote_host as remote_host_module
from phalanx.supervisor.hosts.connection import ReliableSession
from phalanx.supervisor.root.workspace_root import WorkspaceRoot

_HERE, _THERE = 0, 1  # ranks
_OF_RANKS = FromRankEnvelope | RankGone | RankFrozen | FromCommand
_BOOT = BootOptions(
    WorldConfig("fuzz", 2), 600.0, "/",
    hosts=(HostPlan("a", 1, is_local=True), HostPlan("b", 1)),
    remote=RemoteOptions(launcher="local"),
)  # fmt: skip
_QUESTIONS = (
    GetTopology(),
    GetTrace(),
    GetStacks((0, 1)),
    GetOutput(1),
)


class _Door(Door):
    """A server without a socket: messages to the host are kept, and beats are answered."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []
        self._theirs = ReliableSession(self.hear)

    def hear(self, body: bytes) -> None:
        """Let the newest host send something."""
        self._hear(list(self._sessions)[-1], "", [body])

    def says(self, message: Any) -> None:
        self._theirs.send(message)

    def transmit(self, session: Any, body: bytes) -> None:
        envelope = msgspec.msgpack.decode(body, type=Envelope[ToHost])
        self._theirs.receive(envelope)
        self.told.append(envelope.message)
        if isinstance(envelope.message, HostPing):
            asyncio.get_running_loop().call_soon(self.says, HostPong(envelope.message.sent_ns, 1))


def _names_others(message: Any) -> bool:
    if isinstance(message, HostReport):
        return any(report.rank != _THERE for report in message.ranks)
    return isinstance(message, _OF_RANKS) and getattr(message, "rank", _THERE) != _THERE


def _own(supply: Supply) -> bytes:
    """Some message of its own ranks: what comes after the first check."""
    message = supply.record(FromHost)
    if isinstance(message, HostReport):
        ranks = tuple(msgspec.structs.replace(report, rank=_THERE) for report in message.ranks)
        message = msgspec.structs.replace(message, ranks=ranks)
    elif _names_others(message):
        message = msgspec.structs.replace(message, rank=_THERE)
    return msgspec.msgpack.encode(message)


class _Play(Play):
    def __init__(self) -> None:
        super().__init__(lambda: WorkspaceRoot(_BOOT))
        self.door: Any = host_server(self.root)

    async def boot(self) -> None:
        while not self.door.endpoints:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        actors[_HERE].say(pack_frame(Register(1, 1)) + pack_frame(EngineReady()))
        self.door.says(HostUp(phalanx.__version__, 1, "b", 2, ("127.0.0.1",)))
        await asyncio.sleep(0.1)
        assert any(isinstance(said, Spawn) for said in self.door.told)
        report = RankReport(_THERE, 7, Activity(1, {}), "", 0, 0)
        self.door.says(HostReport((report,)))
        self.door.says(FromRankEnvelope(_THERE, Register(1, 1)))
        self.door.says(FromRankEnvelope(_THERE, EngineReady()))
        await asyncio.sleep(0.1)
        assert is_booted(self.root)

    async def turn(self, supply: Supply) -> None:
        self.says(WatchSamples(2.0))
        if supply.below(4) == 0:
            self._asked += 1
            self.says(AskRoot(self._asked, supply.choice(_QUESTIONS)))
        else:
            is_own = supply.below(4) > 0
            body = _own(supply) if is_own else encoded(supply, FromHost)
            self.door.says(msgspec.Raw(body))
            try:
                message = msgspec.msgpack.decode(body, type=FromHost)
            except (ValueError, RecursionError):
                message = None
            if message is None or _names_others(message):
                assert _THERE in dead_ranks(self.root)
                assert any(isinstance(said, StopHost) for said in self.door.told)
        assert _HERE not in dead_ranks(self.root)
        await asyncio.sleep((0.0, 0.0, 0.3, 3.0)[supply.below(4)])

    def check_samples(self) -> None:
        """Whatever a host says of its ranks, a client can read what becomes of it."""
        told = [said for said in self.told if said["type"] == "Samples"]
        assert all(msgspec.convert(said, Samples).ranks for said in told)


async def _play(loop: JumpingLoop, supply: Supply) -> None:
    play = _Play()
    running = loop.create_task(play.root.run())
    booting = loop.create_task(play.boot())
    await asyncio.wait({running, booting}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()  # why it has ended
    await booting
    play.says(Hello())
    await asyncio.sleep(0)
    await play.go_on(supply)
    await asyncio.sleep(20.0)
    play.check_samples()
    await play.finish(loop, running)


async def _launch(wanted: Any) -> Process:
    return Process(wanted.first_line)


def one(data: bytes) -> None:
    """Run one input."""
    with (
        mock.patch.object(connection_module, "HostServer", _Door),
        mock.patch.object(remote_host_module, "launch_host", _launch),
    ):
        run_play(_play, data)
