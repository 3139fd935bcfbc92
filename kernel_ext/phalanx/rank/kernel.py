"""Run the cells of one rank in ipyparallel's kernel.

`RankKernel` adds to ipykernel: typed input, stops, output records, the workspace's own requests,
and notices before and after each cell (`CellBegan`, `CellEnded`).
"""

from __future__ import annotations

import bdb
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
from ipyparallel.engine.kernel import IPythonParallelKernel

from phalanx.adapters import mlx
from phalanx.distributed.bootstrap.supervised import count_threads, current_loss
from phalanx.distributed.bootstrap.user_threads import prepare_threads
from phalanx.errors import DistributedError
from phalanx.protocol import (
    ENTRY,
    AskDebugger,
    CellBegan,
    CellEnded,
    Channel,
    ChannelClosed,
    DebuggerSays,
    EndRank,
    Entered,
    EnterWorld,
    LetIn,
    LineNeed,
    LineNotNeeded,
    OutputDrawn,
    RankNews,
    RankOrder,
    RefuseInput,
    StopCell,
    TypeLine,
)

from .cell import from_cell, runs_cell, uninterrupted
from .debugging.debugger import DebuggerState, asks_for_commands
from .debugging.visual_debugger import VisualDebugger
from .input import CellInput, DebuggerStopped, TypedLines
from .kernel_help import KernelHelp
from .output.cell_errors import CellErrors
from .output.error_text import cut, escape_surrogates, name_of, packs_anything, text_of
from .output.streams import RankOutput, speak_for
from .shell import OwnNames, prepare_shell, say_left
from .signals import SignalHandlers
from .stops import CellStops
from .tasks import PastCells, call_task
from .values.packed_calls import call_packed

STDIN_PROMPT = "stdin: "  # a read of sys.stdin has no prompt of its own, and a user needs one
DEBUGGER_QUIT = "the debugger was quit"
ANSWER_LOST = "the call was made, but its values were lost on their way: ask again"
NOT_RUN = "the rank did not run the cell"

# A client repeats only the request that it waits for, and a connection keeps the order. So a copy
# comes after at most a few other requests.
KEPT_NAMES = 64


class _NoSubshells:
    """Stand in for the shell channel thread (an engine has none).

    ipykernel 7 reads ``parent_thread`` whenever a cell awaits at top level, and loses the reply if
    there is none (ipkernel.py, do_execute).
    """

    parent_thread = threading.main_thread()

    def __bool__(self) -> bool:
        return False


class RankKernel(IPythonParallelKernel):  # type: ignore[misc]
    """Run the cells of one rank; `serve` prepares the kernel after registration.

    Cells are execute requests with a cell's name in their metadata
    (``{"phalanx": {"cell": ...}}``); ``"lost"`` lists the dead ranks that the cell runs without,
    and ``"number"`` is that of the notebook's cell.
    A request to call a packed function (ipyparallel's) is a cell too if its metadata have
    ``"is_cell"``, and is answered between cells if not. With ``"is_task"`` the function is ours
    (`phalanx.rank.tasks`). Requests without the name of a cell run as in any engine.

    Orders (`RankOrder`) come from the supervisor on ``channel``. The control thread takes them,
    which is free while a cell runs.
    """

    _supports_kernel_subshells = False
    is_serving = False

    @property
    def is_ending(self) -> bool:
        return self.is_serving and self._gate.is_closed

    def serve(self, rank: int, size: int, channel: Channel, output: RankOutput) -> None:
        """Prepare the kernel to serve as a rank."""
        self.rank = rank
        self._threads = count_threads()
        self._channel = channel
        self._pid = os.getpid()
        self._output = output
        output.throttle.never_in(self.control_thread.ident)
        self._begun: deque[str] = deque(maxlen=KEPT_NAMES)  # the last requests by name
        self._lines = TypedLines(rank, self._ask, current_loss)
        self._stdin = CellInput(self._next_of_stdin)
        self._names = OwnNames(self.shell, rank, size)
        self.past = PastCells()
        self._untold: deque[str] = deque(maxlen=64)  # texts of `tell_soon`
        self._cell_parent: dict[str, Any] = {}
        self.shell_channel_thread = _NoSubshells()
        sys.stdin = self._stdin
        self.session.pack = packs_anything(self.session.pack)
        self._debugger = VisualDebugger(
            self.shell, lambda message: self._notify(DebuggerSays(message))
        )
        self._name_cell = prepare_shell(self.shell, self._debugger, lambda: output.widgets.is_on)
        control_loop = self.control_thread.io_loop
        stops = self.stops = CellStops(
            rank, self._lines, self._debugger, self._notify, control_loop, self.io_loop
        )
        self._gate = stops.gate
        self._handlers = SignalHandlers(self.tell_soon)  # after the gate, which sets one of ours
        os.register_at_fork(after_in_child=self._handlers.open)
        mlx.raise_only_while(
            runs_cell, is_held=lambda: bool(stops.holding), is_stopped=self._gate.is_stopped
        )
        prepare_threads(self._hand_over_names)
        self._errors = CellErrors(self.shell, on_end=self._debugger.end)
        # IPython transforms the syntax tree of a cell right before it runs the code.
        self.shell.ast_transformers.append(SimpleNamespace(visit=self._begin_code))
        for kind in ("comm_open", "comm_msg", "comm_close"):
            self.shell_handlers[kind] = partial(self._call_back, self.shell_handlers[kind])
        self._help = KernelHelp(self.shell, self.do_inspect, self._notify)
        self._orders_fd = channel.serve(self._on_order)
        handler = self._orders_fd, self._on_readable, control_loop.READ
        control_loop.add_callback(control_loop.add_handler, *handler)
        self.is_serving = True

    def _begin_code(self, tree: Any = None) -> Any:
        """Begin the user's code; return its syntax tree unchanged."""
        self._handlers.open()
        self._errors.install()
        self._gate.begin_code()
        if self._gate.running is not None:
            self._debugger.begin()
        return tree

    def tell_soon(self, text: str) -> None:
        """Show a text below the last cell; signal handlers may call this."""
        self._untold.append(text)
        self.io_loop.add_callback_from_signal(self._tell_untold)

    def _tell_untold(self) -> None:
        while self._untold:
            self._output.stderr.write(f"{self._untold.popleft()}\n")

    def _hand_over_names(self) -> Callable[[], None]:
        """Return a function that assigns a thread's output to a cell.

        The cell is the one to which output of the starting thread belongs.
        """
        header = self._output.stdout.parent_header

        def inherit() -> None:
            speak_for(header)
            # From ipykernel 7.4 on. In earlier versions displays of threads belong to the last
            # request.
            display_for = getattr(self.shell.display_pub, "set_thread_parent", None)
            if display_for is not None:
                display_for(header)

        return inherit

    def should_handle(self, stream: Any, msg: dict[str, Any], idents: Any) -> bool:
        """Run each request of the workspace once, and drop copies.

        A copy of a call is answered, because only the first reply had the values.
        """
        name = ((msg.get("metadata") or {}).get("phalanx") or {}).get("cell")
        if name in self._begun:
            if msg["header"]["msg_type"] == "apply_request":
                reply = self._failed("AnswerLost", ANSWER_LOST)
                self.session.send(stream, "apply_reply", reply, msg, idents)
            return False
        if not super().should_handle(stream, msg, idents):
            return False
        if isinstance(name, str):
            self._begun.append(name)
        return True

    # The parameter names are ipykernel's, which inspects them.
    async def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: Any = None,
        allow_stdin: bool = False,
        *,
        cell_meta: Any = None,
        cell_id: Any = None,
    ) -> dict[str, Any]:
        arguments = (code, silent, store_history, user_expressions, allow_stdin)
        said = (cell_meta or {}).get("phalanx") or {}
        cell = said.get("cell")
        self.past.cell = cell or ""
        if not isinstance(cell, str):
            try:
                plain: dict[str, Any] = await super().do_execute(
                    *arguments, cell_meta=cell_meta, cell_id=cell_id
                )
            finally:
                self._handlers.close()
            return plain
        before = self._enter_cell(cell, said)
        reply: dict[str, Any] = {}
        try:
            self._gate.begin(cell)
            reply = await super().do_execute(*arguments, cell_meta=cell_meta, cell_id=cell_id)
            self._handlers.close()
            self._say_pages(reply)
            reply = self._wait_for_evaluations(reply)
            # From here on an interrupt is too late; this call raises a pending one.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if reply.get("ename") == "KeyboardInterrupt":
                reply |= self._errors.ended_in
            reply = self._in_plain_words(reply, before)
        except (KeyboardInterrupt, DebuggerStopped):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            reply = self._failed("KeyboardInterrupt") | self._errors.ended_in
        except bdb.BdbQuit:  # from a debugger that had stepped out of the cell
            reply = self._failed("BdbQuit", DEBUGGER_QUIT)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - of a signal handler, after the code
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            # Or of the cell's error itself, which ipykernel asks for its text and its class's name.
            failed = self._reply("error") | self._errors.ended_in
            reply = self._in_plain_words(
                failed if self._errors.ended_in else self._say_failed(error), before
            )
        finally:
            self._leave_cell(cell, reply, before, code)
        return reply

    def apply_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Call a function; as a stoppable cell if the metadata say so."""
        said = (parent.get("metadata") or {}).get("phalanx") or {}
        if "cell" not in said:
            self._handlers.open()
            try:
                super().apply_request(stream, ident, parent)
            finally:
                self._handlers.close()
            return
        metadata = self.init_metadata(parent)
        call = self._call if said["is_cell"] else self._call_between_cells
        reply, values = call(said, parent["buffers"])
        metadata = self.finish_metadata(parent, metadata, reply)
        named = {"parent": parent, "ident": ident, "buffers": values, "metadata": metadata}
        self.session.send(stream, "apply_reply", reply, **named)

    def _call_between_cells(
        self, said: dict[str, Any], packed: list[Any]
    ) -> tuple[dict[str, Any], list[Any]]:
        """Call a task that needs no world; return as `_call` does."""
        self._handlers.open()
        try:
            return self._reply("ok"), list(call_task(packed))
        except BaseException as error:  # noqa: BLE001 - the workspace raises it
            return self._failed_in(error), []
        finally:
            self._handlers.close()

    def _call(self, said: dict[str, Any], packed: list[Any]) -> tuple[dict[str, Any], list[Any]]:
        """Call what is packed as a cell; return reply and packed values."""
        cell, is_task = said["cell"], said["is_task"]
        before = self._enter_cell(cell, said)
        reply, values = self._failed("KeyboardInterrupt"), list[Any]()
        try:
            try:
                self._gate.begin(cell)
                if is_task:
                    values = call_task(packed)
                else:
                    self._begin_code()
                    values = call_packed(packed, self.shell.user_ns)
                self._handlers.close()
                mlx.wait_for_evaluations()
                # From here on an interrupt is too late; this call raises a pending one.
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                reply = self._reply("ok")
            except BaseException as error:  # noqa: BLE001 - the workspace raises it
                self._errors.make_room(error)
                with uninterrupted():
                    failed = self._failed_in(error) if is_task else self._say_failed(error)
                    reply = self._in_plain_words(failed, before)
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        except KeyboardInterrupt:  # it came while the error was handled
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        finally:
            self._leave_cell(cell, reply, before)
        return reply, values if reply["status"] == "ok" else []

    def _wait_for_evaluations(self, reply: dict[str, Any]) -> dict[str, Any]:
        """Wait for what the cell has submitted to MLX.

        A failure there is the cell's error.
        """
        is_ok = reply["status"] == "ok"
        try:
            mlx.wait_for_evaluations(raises=is_ok)
        except DistributedError as error:
            return self._say_failed(error)
        return reply

    def _say_failed(self, error: BaseException) -> dict[str, Any]:
        """Show an error that did not come through IPython; return the reply."""
        shown = self._errors.show_failed(error)
        reply = self._failed(name_of(type(error)), text_of(error))
        return reply | {"traceback": shown or reply["traceback"]}

    def _enter_cell(self, cell: str, said: dict[str, Any]) -> DebuggerState:
        """Prepare the start of a cell; the caller then opens the gate."""
        self._notify(CellBegan(cell))
        self._cell_parent = self.get_parent("shell")
        self._name_cell(cell.rpartition(":")[0], said.get("number", 0))
        self._lines.begin(cell, said.get("lost", ()))
        self._stdin.forget()
        self._names.restore()
        self._errors.begin()
        mlx.cut_evaluations(False)
        self._output.begin(has_page=bool(said.get("widgets")))
        self._tell_untold()
        self.stops.begin_cell(cell, was_stopped=bool(said.get("stopped")))
        return DebuggerState()

    def _leave_cell(
        self, cell: str, reply: dict[str, Any], before: DebuggerState, code: str = ""
    ) -> None:
        """End a cell, and notify the supervisor."""
        self._debugger.end()
        before.end_debuggers(self.shell.user_ns)
        self.past.keep_error(cell, code, reply, before)
        self._handlers.close()
        is_over = self.stops.end_cell()
        self._lines.end()
        if text := self._names.warning():
            self._output.stderr.write(f"{text}\n")
        self._output.end()
        is_ok, error = reply.get("status") == "ok", ("", "")
        if not is_ok:
            error = str(reply.get("ename", "Aborted")), str(reply.get("evalue", NOT_RUN))
        if is_over and error[0] == "KeyboardInterrupt":
            return  # nobody has stopped the cell: the supervisor says why this rank has ended
        # A lone surrogate cannot be encoded in a message and must not prevent the notice.
        ename, evalue, *traceback = [
            escape_surrogates(text) for text in (*error, *map(str, reply.get("traceback", ())))
        ]
        has_threads, n_shown = self._threads.are_alive(), self._output.n_shown(self._cell_parent)
        self._notify(CellEnded(cell, is_ok, has_threads, ename, evalue, tuple(traceback), n_shown))

    def _in_plain_words(self, reply: dict[str, Any], before: DebuggerState) -> dict[str, Any]:
        """Return a reply for users: clear reasons for an end, bounded text."""
        if reply.get("ename") == DebuggerStopped.__name__:
            before.restore_error()
            reply = self._failed("KeyboardInterrupt")
        elif reply.get("ename") == "BdbQuit":
            reply["evalue"] = DEBUGGER_QUIT
        elif reply.get("ename") == "SystemExit":
            before.drop_own_frames()
            reply = self._failed("SystemExit", say_left(reply["evalue"]))
        if "ename" in reply:
            reply["evalue"] = cut(reply["evalue"])
            reply["traceback"] = [cut(line) for line in reply["traceback"]]
        return reply

    def _failed_in(self, error: BaseException) -> dict[str, Any]:
        return self._failed(name_of(type(error)), cut(text_of(error)))

    def _failed(self, ename: str, evalue: str = "") -> dict[str, Any]:
        traceback = [f"{ename}: {evalue}" if evalue else ename]
        return {**self._reply("error"), "ename": ename, "evalue": evalue, "traceback": traceback}

    def _reply(self, status: str) -> dict[str, Any]:
        return {
            "status": status,
            "execution_count": self.shell.execution_count,
            "user_expressions": {},
            "payload": [],
        }

    def _call_back(
        self, handle: Callable[..., None], stream: Any, ident: Any, message: dict[str, Any]
    ) -> None:
        """Handle a page's message to a widget; its callbacks can be stopped."""
        try:
            self._gate.begin(message["header"]["msg_id"], is_callback=True)
            handle(stream, ident, message)
        except KeyboardInterrupt as error:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self._errors.ended_in = {}
            users = from_cell(error.__traceback__)
            self.shell.showtraceback((KeyboardInterrupt, error, users), tb_offset=0)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self.stops.end_cell()

    def _enter_world(self, order: EnterWorld) -> None:
        """Join the present epoch between two cells; report the result."""
        error: BaseException | None = None
        before = signal.getsignal(signal.SIGINT)
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._gate.begin(ENTRY)
            self._names.enter()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        except BaseException as its:  # noqa: BLE001 - the workspace raises it
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            error = its
        self.stops.end_cell()
        signal.signal(signal.SIGINT, before)
        failed = () if error is None else (name_of(type(error)), cut(text_of(error)))
        self._notify(Entered(order.id, *failed))

    def _notify(self, notice: CellBegan | Entered | RankNews) -> None:
        if os.getpid() != self._pid:  # the code has forked, and the child came to the cell's end
            return
        try:
            self._channel.notify(notice)
        except ChannelClosed as error:
            # The supervisor is gone. The operating system ends this process with it.
            self.log.warning("%s", error)

    # -- input --------------------------------------------------------------------------------

    def raw_input(self, prompt: object = "") -> str:
        is_command = asks_for_commands(sys._getframe(1))
        self._output.flush()
        return self._lines.next_line(str(prompt), is_command=is_command)

    def getpass(
        self, prompt: object = "Password: ", stream: object = None, *, echo_char: object = None
    ) -> str:
        self._output.flush()
        return self._lines.next_line(str(prompt), password=True)

    def _next_of_stdin(self) -> str:
        self._output.flush()
        return self._lines.next_line(STDIN_PROMPT)

    def _ask(self, need: LineNeed | LineNotNeeded) -> None:
        if isinstance(need, LineNeed):
            need = msgspec.structs.replace(need, n_shown=self._output.n_shown(self._cell_parent))
        self._notify(need)

    def _say_pages(self, reply: dict[str, Any]) -> None:
        """Publish the result of `obj?`: Jupyter's pager text in the reply."""
        for payload in reply.get("payload") or ():
            if payload.get("source") == "page":
                self.session.send(
                    self.iopub_socket,
                    "phalanx_page",
                    {"text": str(payload["data"].get("text/plain", ""))},
                    parent=self._cell_parent,
                    ident=self._topic("page"),
                )

    def _on_readable(self, _fd: int, _events: int) -> None:
        if not self._channel.read():  # the supervisor is gone, and soon this process
            self.control_thread.io_loop.remove_handler(self._orders_fd)

    def _on_order(self, order: RankOrder) -> None:
        if isinstance(order, StopCell):
            self.stops.stop(order)
        elif isinstance(order, EndRank):
            self.stops.end()
        elif isinstance(order, EnterWorld):
            self.io_loop.add_callback(self._enter_world, order)
        elif isinstance(order, LetIn):
            self.stops.let_in(order)
        elif isinstance(order, TypeLine):
            self._lines.feed(order.cell, order.entry)
        elif isinstance(order, RefuseInput):
            self._lines.refuse(order.cell, order.message)
        elif isinstance(order, OutputDrawn):
            self._output.throttle.on_drawn(order.sent)
        elif isinstance(order, AskDebugger):
            self._debugger.take(order.message)
        else:
            self._help.answer(order)
