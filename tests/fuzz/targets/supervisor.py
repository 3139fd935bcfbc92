"""What ranks and clients may say to a root supervisor: any frames, in any order, at any time.

They have its channel or its key, so they are ours; but a rank may be broken, a client another
version's. Whatever they say, the workspace lives on until its owner stops it, every question is
answered once, nothing escapes into the loop, no descriptor is left open at the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
from fuzz.quiet import quiet
from fuzz.stage import StageClient, actors, staged
from fuzz.supply import Supply
from support.inside import root_end, spawn_in
from support.ranks.loops import JumpingLoop

from phalanx.cli.launch.console import Launch
from phalanx.cli.launch.script_root import ScriptRoot
from phalanx.cli.main import _parser
from phalanx.protocol import (
    AskRoot,
    BootOptions,
    EngineReady,
    GetCellStatus,
    GetOutput,
    GetStacks,
    GetTopology,
    Hello,
    Register,
    Stop,
    ToRoot,
    ToSupervisor,
    WorldConfig,
    pack_frame,
)
from phalanx.protocol.host import CommandOutput
from phalanx.supervisor.root.workspace_root import WorkspaceRoot
from phalanx.workspace import Placement

_RANKS = 2
_QUESTIONS = GetTopology | GetStacks | GetOutput | GetCellStatus
_CLIENTS = ("owner", "other")
_MOST_TURNS = 24
_SETTLED_S = 10.0  # of the loop's clock: longer than a cell waits for leave, shorter than a restart
_BOOT = BootOptions(WorldConfig("fuzz", _RANKS), 600.0, "/")


class _Failures(logging.Handler):
    """What tasks of a root have ended in: it logs that, and ends."""

    thrown: list[BaseException] = []  # noqa: RUF012

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.thrown.append(record.exc_info[1])


class Play:
    """One run of a root: what its clients have asked, and whether it may end."""

    def __init__(self, make_root: Callable[[], WorkspaceRoot | ScriptRoot]) -> None:
        self.told: list[Any] = []
        self.root = make_root()
        self._clients: dict[str, StageClient] = {}
        self._connect(_CLIENTS[0])
        self.may_end = False
        self._asked = 0

    async def turn(self, supply: Supply) -> None:
        who = supply.below(6)
        if who < 2:
            self._rank_says(who, supply, frame_of(supply, ToSupervisor))
        elif who == 2:
            self._rank_says(supply.below(_RANKS), supply, supply.piece())
        elif who < 5 and isinstance(self.root, ScriptRoot):
            self._launcher_says(self.root, supply)
        elif who < 5:
            self.client_says(_CLIENTS[who - 3], encoded(supply, ToRoot), supply.below(16))
        elif supply.below(8) == 0:
            actors[supply.below(_RANKS)].end(-9)
            self.may_end |= isinstance(self.root, ScriptRoot)
        await asyncio.sleep((0.0, 0.0, 0.3, 3.0)[supply.below(4)])

    def _rank_says(self, rank: int, supply: Supply, data: bytes) -> None:
        actors[rank].hear()  # so that its channel is never full for long
        actors[rank].say(data)

    def _launcher_says(self, root: ScriptRoot, supply: Supply) -> None:
        what = supply.below(3)
        if what == 0:
            root.input(supply.piece())
        elif what == 1:
            root.output_shown(supply.record(CommandOutput))
        else:
            spawn_in(root, root.say_stacks())

    def says(self, message: msgspec.Struct, name: str = _CLIENTS[0]) -> None:
        self._send(name, msgspec.msgpack.encode(message))

    def _send(self, name: str, body: bytes) -> None:
        """Let a client say something; it connects when it is first needed."""
        self._connect(name)
        assert isinstance(self.root, WorkspaceRoot)
        self.root.on_request(self._clients[name], body)

    def _connect(self, name: str) -> None:
        if name not in self._clients and isinstance(self.root, WorkspaceRoot):
            self._clients[name] = StageClient(self.told)
            self.root.on_client(self._clients[name])

    def client_says(self, name: str, body: bytes, odd: int = 0) -> None:
        times = 2 if odd == 15 else 1
        for _ in range(times):
            self._send(name, body)
        try:
            message = msgspec.msgpack.decode(body, type=ToRoot)
        except (ValueError, RecursionError):
            return
        if isinstance(self.root, WorkspaceRoot) and isinstance(message, AskRoot):
            self._asked += times * isinstance(message.request, _QUESTIONS)
            self.may_end |= isinstance(message.request, Stop)

    async def go_on(self, supply: Supply) -> None:
        """Take turns until the input is used up."""
        for _ in range(_MOST_TURNS):
            if not supply:
                break
            await self.turn(supply)

    async def finish(self, loop: JumpingLoop, running: asyncio.Task[None]) -> None:
        """Check the root, and end it."""
        self.check(loop, running)
        root_end(self.root).set()
        await running
        await asyncio.sleep(1.0)  # what was cancelled has gone
        raise_first(loop.thrown + _Failures.thrown)

    def check(self, loop: JumpingLoop, running: asyncio.Task[None]) -> None:
        raise_first(loop.thrown + _Failures.thrown)
        if self.may_end:
            return
        if running.done():
            running.result()
            msg = "it has ended, and nobody has told it to"
            raise AssertionError(msg)
        assert not root_end(self.root).is_set(), "it ends, and nobody has told it to"
        answers = [said for said in self.told if said["type"] == "RootAnswered"]
        assert len(answers) >= self._asked, (self._asked, self.told)


def encoded(supply: Supply, kind: Any) -> bytes:
    """A record as bytes, as it should be, a little other, or not at all."""
    how = supply.below(4)
    if how == 3:
        return supply.piece()
    body = msgspec.msgpack.encode(supply.record(kind))
    return body if how < 2 else supply.edited(body)


def frame_of(supply: Supply, kind: Any) -> bytes:
    body = encoded(supply, kind)
    return len(body).to_bytes(4, "little") + body


def workspace() -> WorkspaceRoot:
    return WorkspaceRoot(_BOOT)


def script() -> ScriptRoot:
    options = _parser().parse_args(["launch", "--max-restarts", "1"])
    launch = Launch(options, (), ("x",), {}, Placement(_RANKS), "/")
    return ScriptRoot(_BOOT, launch, mock.MagicMock())  # a console that shows nothing


async def _play(loop: JumpingLoop, supply: Supply) -> None:
    is_script = supply.below(4) == 3
    play = Play(script if is_script else workspace)
    running = loop.create_task(play.root.run())
    await asyncio.sleep(0)
    if not is_script:
        for rank in range(_RANKS):
            actors[rank].say(pack_frame(Register(1, 1)) + pack_frame(EngineReady()))
    await asyncio.sleep(0.01)
    if not is_script:
        play.says(Hello())
    await asyncio.sleep(0)
    await play.go_on(supply)
    await asyncio.sleep(_SETTLED_S)
    await play.finish(loop, running)


def raise_first(thrown: list[BaseException]) -> None:
    if thrown:
        raise thrown[0]


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def run_play(play: Callable[[JumpingLoop, Supply], Coroutine[Any, Any, None]], data: bytes) -> None:
    """Run a play by the choices of an input; no descriptor may be left open."""
    before = _descriptors()
    _Failures.thrown.clear()
    loop = JumpingLoop()
    asyncio.set_event_loop(loop)
    try:
        with staged(), quiet(_Failures(logging.CRITICAL)):
            loop.run_until_complete(play(loop, Supply(data)))
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(1.0))
        asyncio.set_event_loop(None)
        loop.close()
    assert _descriptors() <= before, "descriptors are left open"


def one(data: bytes) -> None:
    """Run one input."""
    run_play(_play, data)
