"""Show the ranks in the notebook's debugger panel.

The front end sends DAP requests to the notebook's kernel (``debug_request``). This module passes on
what concerns the ranks of a cell, and merges the answers. Numbers of threads, frames and variables
are unique over the ranks and the kernel.
"""

from __future__ import annotations

import ast
import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import phalanx
from phalanx.protocol import name_ranks
from phalanx.workspace import DapMessage, RankDebuggers, Workspace

from .patches import Patches
from .typing_help import AutoDistributed, rank_text

# Numbers of ranks begin here. ipykernel's are addresses in memory, below 2**47; a number above
# 2**53 would not be exact in a browser.
FIRST_NUMBER = 1 << 50
ANSWER_S = 10.0  # an answer takes milliseconds, unless C code holds up the rank's Python
ATTACH_S = 30.0  # to load pydevd takes half a second, and longer on a busy machine

_NUMBERS = ("threadId", "frameId", "srcFrameId", "variablesReference")
_MOVES = frozenset({"continue", "next", "stepIn", "stepOut"})
_NO_ANSWER = {"success": False, "message": "the debugger did not answer in time"}

Here = Callable[[DapMessage], Coroutine[Any, Any, DapMessage]]  # the kernel's own debugger


class DebuggerPanel:
    """Adds the ranks to the debugger of a notebook's kernel.

    The kernel's control thread calls the requests, its main thread `follow`. The ranks of a cell
    are attached before the cell, and only while a front end has opened the panel.
    """

    def __init__(
        self, shell: Any, auto: AutoDistributed, workspace: Callable[[], Workspace | None]
    ) -> None:
        self._kernel: Any = getattr(shell, "kernel", None)
        self._debugger: Any = getattr(self._kernel, "debugger", None)
        self._auto = auto
        self._workspace = workspace
        self._ranks: tuple[int, ...] = ()  # of the running cell
        self._filters: DapMessage = {}  # arguments of the last setExceptionBreakpoints
        self._knows_threads = False  # the front end has asked for the threads

    def install(self, patches: Patches) -> None:
        """Take the kernel's debug requests."""
        if self._debugger is not None:
            patches.callback(self._detach)
            patches.replace(self._kernel, "do_debug_request", self._answer)

    def _detach(self) -> None:
        if (debuggers := self._debuggers()) is not None:
            debuggers.detach()

    def _debuggers(self) -> RankDebuggers | None:
        workspace = self._workspace()
        is_running = workspace is not None and workspace.is_running
        return workspace.debuggers if workspace is not None and is_running else None

    # -- cells --------------------------------------------------------------------------------

    @contextmanager
    def follow(
        self, workspace: Workspace, ranks: tuple[int, ...] | None, code: str
    ) -> Iterator[None]:
        """Debug a cell of ranks if the panel is open."""
        if self._debugger is None or not self._debugger.is_started:
            yield
            return
        debuggers = workspace.debuggers
        debuggers.on_event = partial(self._publish, workspace.size)
        chosen = range(workspace.size) if ranks is None else ranks
        self._ranks = tuple(rank for rank in chosen if rank not in debuggers.lost)
        try:
            self._attach(debuggers, code)
            yield
        finally:
            self._ranks = ()
            debuggers.resume()

    def _attach(self, debuggers: RankDebuggers, code: str) -> None:
        """Attach to the cell's ranks, and set all breakpoints there."""
        attached: dict[int, Future[DapMessage]] = {}
        for rank in self._ranks:
            if rank not in debuggers.attached:
                debuggers.attached.add(rank)
                debuggers.ask(rank, "initialize", clientID="phalanx", adapterID="python")
                attached[rank] = debuggers.ask(rank, "attach")
                if self._filters:
                    debuggers.ask(rank, "setExceptionBreakpoints", **self._filters)
                for path in list(self._debugger.breakpoint_list):
                    self._set_breakpoints(debuggers, (rank,), path)
                debuggers.ask(rank, "configurationDone")
        cell = self._kernel.get_parent("shell")["content"]["code"]
        first = self._first_line(cell)
        # The ranks answer in order: these are the last answers.
        mapped = {
            rank: debuggers.ask(rank, "mapCell", path=_path_of(cell), line=first, code=code)
            for rank in self._ranks
            if first
        }
        wait([*attached.values(), *mapped.values()], ATTACH_S)
        refusals: dict[str, list[int]] = {}
        for rank, answer in {**mapped, **attached}.items():
            said: DapMessage = answer.result() if answer.done() else _NO_ANSWER
            if not said["success"]:
                debuggers.attached.discard(rank)
                refusals.setdefault(said["message"], []).append(rank)
        for why, ranks in refusals.items():
            line = f"phalanx: no breakpoints on {name_ranks(ranks)}: {why}"
            print(line, file=sys.stderr, flush=True)  # noqa: T201 - as a view's notice

    def _first_line(self, cell: str) -> int:
        """Return the line where a cell's code of ranks begins; 0: none."""
        text = rank_text(cell, len(cell), self._auto.takes)
        return 0 if text is None else 1 + cell.count("\n", 0, text.start)

    def _cell_at(self, path: str) -> str | None:
        """Return the cell of ranks that was dumped at a path."""
        if Path(path).parent != Path(_path_of("")).parent or not Path(path).is_file():
            return None
        cell = Path(path).read_text(encoding="utf-8")
        return cell if self._first_line(cell) else None

    def _set_breakpoints(self, debuggers: RankDebuggers, ranks: Iterable[int], path: str) -> None:
        cell = self._cell_at(path)
        breakpoints = self._debugger.breakpoint_list.get(path, [])
        for rank in ranks:
            if cell is not None:
                first = self._first_line(cell)
                code = "\n".join(cell.split("\n")[first - 1 :])
                debuggers.ask(rank, "mapCell", path=path, line=first, code=code)
            debuggers.ask(rank, "setBreakpoints", source={"path": path}, breakpoints=breakpoints)

    def _publish(self, size: int, rank: int, event: DapMessage) -> None:
        renumbered = _renumbered(event, partial(_number_of, rank, size))
        loop = self._kernel.control_thread.io_loop
        loop.add_callback(self._kernel._publish_debug_event, renumbered)

    # -- requests -----------------------------------------------------------------------------

    async def _answer(self, here: Here, request: DapMessage) -> DapMessage:
        command, debuggers = request["command"], self._debuggers()
        arguments = request.get("arguments") or {}
        if command == "initialize":
            self._knows_threads = False
        elif command == "attach":
            own = [f"{folder}/**" for folder in phalanx.__path__]  # no code of the user
            modules = self._debugger.kernel_modules
            modules += [pattern for pattern in own if pattern not in modules]
        elif command == "setExceptionBreakpoints":
            self._filters = arguments
        if command == "setBreakpoints":
            return await self._answer_breakpoints(here, request, debuggers)
        if debuggers is None:
            return await here(request)
        if command in _MOVES and debuggers.stopped:
            return await self._move(request, debuggers)
        number = next((arguments[name] for name in _NUMBERS if arguments.get(name)), 0)
        if number >= FIRST_NUMBER:
            return await self._ask(request, debuggers, number)
        reply = await here(request)
        if command == "setExceptionBreakpoints":
            for rank in sorted(debuggers.attached):
                debuggers.ask(rank, command, **arguments)
        elif command in {"disconnect", "terminate"}:
            debuggers.detach()
        elif command == "debugInfo":
            stopped = [self._number(*place) for place in sorted(debuggers.stopped)]
            reply["body"]["stoppedThreads"] += stopped
        elif command == "threads":
            self._knows_threads = True
            reply["body"]["threads"] += await self._threads(debuggers)
        return reply

    async def _answer_breakpoints(
        self, here: Here, request: DapMessage, debuggers: RankDebuggers | None
    ) -> DapMessage:
        """Set a cell's breakpoints on the ranks only, a file's everywhere."""
        arguments = request["arguments"]
        path, breakpoints = arguments["source"]["path"], arguments["breakpoints"]
        cell = self._cell_at(path)
        if cell is None:
            reply = await here(request)
        else:
            # The kernel's debugger would move these to the line of the magic, and stop there.
            self._debugger.breakpoint_list[path] = breakpoints
            first = self._first_line(cell)
            source = {"path": path}
            made = [
                {"id": at, "verified": its["line"] >= first, "line": its["line"], "source": source}
                for at, its in enumerate(breakpoints)
            ]
            reply = _reply({"success": True, "body": {"breakpoints": made}}, request)
        if debuggers is not None:
            self._set_breakpoints(debuggers, sorted(debuggers.attached), path)
        return reply

    async def _move(self, request: DapMessage, debuggers: RankDebuggers) -> DapMessage:
        """Continue or step on all ranks that stand at breakpoints.

        One rank alone would wait in a collective. JupyterLab forgets the thread before it asks to
        continue, and names thread 1.
        """
        asked = [
            debuggers.ask(rank, request["command"], **{**request["arguments"], "threadId": thread})
            for rank, thread in sorted(debuggers.stopped)
        ]
        answers: list[DapMessage] = [await _result(answer) for answer in asked]
        return _reply(answers[0] if answers else {"success": True}, request)

    async def _ask(self, request: DapMessage, debuggers: RankDebuggers, number: int) -> DapMessage:
        """Ask the rank to which a number belongs."""
        command = request["command"]
        rank = (number - FIRST_NUMBER) % self._size
        if command == "stackTrace" and not self._knows_threads:
            return await self._stack_of_all(request, debuggers)
        arguments = _renumbered(request["arguments"], self._own)
        if command == "richInspectVariables":
            return await self._inspect(request, debuggers, rank, arguments)
        if command == "copyToGlobals":
            command = "setExpression"
            arguments = {
                "expression": f"globals()[{arguments['dstVariableName']!r}]",
                "value": arguments["srcVariableName"],
                "frameId": arguments["srcFrameId"],
            }
        answer = await _result(debuggers.ask(rank, command, **arguments))
        if command == "variables" and answer["success"]:
            named = answer["body"]["variables"]
            answer["body"]["variables"] = [
                its for its in named if self._debugger.accept_variable(its["name"])
            ]
        return _reply(self._of_rank(rank, answer), request)

    async def _stack_of_all(self, request: DapMessage, debuggers: RankDebuggers) -> DapMessage:
        """Return the frames of all ranks at breakpoints.

        JupyterLab shows no list of threads: its user chooses a rank by a frame.
        """
        places = sorted(debuggers.stopped)
        asked = [debuggers.ask(rank, "stackTrace", threadId=thread) for rank, thread in places]
        frames: list[DapMessage] = []
        for (rank, _), answer in zip(places, asked, strict=True):
            said = self._of_rank(rank, await _result(answer))
            own = said["body"]["stackFrames"] if said["success"] else ()
            frames += [{**frame, "name": f"rank {rank}: {frame['name']}"} for frame in own]
        body = {"stackFrames": frames, "totalFrames": len(frames)}
        return _reply({"success": True, "body": body}, request)

    async def _inspect(
        self, request: DapMessage, debuggers: RankDebuggers, rank: int, arguments: DapMessage
    ) -> DapMessage:
        """Return a variable's rich forms, as ipykernel does for its own."""
        name: str = arguments["variableName"]
        body: DapMessage = {"data": {}, "metadata": {}}
        if not name.isidentifier():
            return _reply({"success": name.endswith(" variables"), "body": body}, request)
        answer = await _result(
            debuggers.ask(
                rank,
                "evaluate",
                expression=f"get_ipython().display_formatter.format({name})",
                frameId=arguments["frameId"],
                context="clipboard",
            )
        )
        if answer["success"]:
            data, metadata = ast.literal_eval(answer["body"]["result"])
            body = {
                "data": data,
                "metadata": {key: metadata[key] for key in metadata if key in data},
            }
        return _reply({**answer, "body": body}, request)

    async def _threads(self, debuggers: RankDebuggers) -> list[DapMessage]:
        """Return the main threads of the cell's ranks, and others at breakpoints."""
        asked = {
            rank: debuggers.ask(rank, "threads")
            for rank in self._ranks
            if rank in debuggers.attached
        }
        found = []
        for rank, future in asked.items():
            answer = await _result(future)
            for its in answer["body"]["threads"] if answer["success"] else ():
                is_main = its["name"] == "MainThread"
                if is_main or (rank, its["id"]) in debuggers.stopped:
                    name = f"rank {rank}" if is_main else f"rank {rank}: {its['name']}"
                    found.append({"id": self._number(rank, its["id"]), "name": name})
        return found

    # -- numbers ------------------------------------------------------------------------------

    @property
    def _size(self) -> int:
        workspace = self._workspace()
        return 1 if workspace is None else workspace.size

    def _number(self, rank: int, own: int) -> int:
        return _number_of(rank, self._size, own)

    def _own(self, number: int) -> int:
        return (number - FIRST_NUMBER) // self._size

    def _of_rank(self, rank: int, answer: DapMessage) -> DapMessage:
        """Make the numbers in a rank's answer unique."""
        renumber = partial(self._number, rank)
        made: DapMessage = _renumbered(answer, renumber)
        for frame in made.get("body", {}).get("stackFrames", ()):
            frame["id"] = renumber(frame["id"])
        return made


def _number_of(rank: int, size: int, own: int) -> int:
    return FIRST_NUMBER + own * size + rank


def _renumbered(value: Any, renumber: Callable[[int], int]) -> Any:
    """Return a copy with other numbers of threads, frames and variables."""
    if isinstance(value, dict):
        return {
            name: renumber(its) if name in _NUMBERS and its else _renumbered(its, renumber)
            for name, its in value.items()
        }
    return [_renumbered(its, renumber) for its in value] if isinstance(value, list) else value


async def _result(answer: Future[DapMessage]) -> DapMessage:
    try:
        return await asyncio.wait_for(asyncio.wrap_future(answer), ANSWER_S)
    except (TimeoutError, asyncio.TimeoutError):  # two classes until Python 3.10
        return dict(_NO_ANSWER)


def _reply(answer: DapMessage, request: DapMessage) -> DapMessage:
    of = {"seq": request["seq"], "request_seq": request["seq"], "command": request["command"]}
    return {"body": {}, **answer, "type": "response", **of}


def _path_of(cell: str) -> str:
    """Return the path at which the front end dumps a cell."""
    from ipykernel.compiler import get_file_name

    return str(get_file_name(cell))
