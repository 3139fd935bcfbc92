"""The kernel in a rank: ipyparallel's, with our beginning, input and end of a cell.

It joins ipykernel's hooks to the rank room, which knows nothing of kernels.
"""

from __future__ import annotations

import bdb
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import msgspec
from ipyparallel.engine.kernel import IPythonParallelKernel

from phalanx.distributed import current_loss
from phalanx.protocol import CellEnded, Channel, ChannelClosed, LineNeed, TypedLine
from phalanx.rank import (
    CellGate,
    CellInput,
    CopyReport,
    DebuggerStopped,
    DescriptorCapture,
    LastError,
    NoCellRuns,
    TypedLines,
    UserThreads,
    asks_for_commands,
    clear_own_frames,
    copy_names,
    cut,
    enter,
    introduce,
    leave_debuggers,
    packs_anything,
    prepare_bars,
    prepare_cell_names,
    prepare_debuggers,
    prepare_exit,
    prepare_own_magics,
    put_back,
    say_left,
    uninterrupted,
    without_own_frames,
)

from ._kernel_help import KernelHelp
from ._once import OnceOnly

__all__ = ["RankKernel"]

STDIN_PROMPT = "stdin: "  # a read of sys.stdin has none of its own, and a person wants one
DEBUGGER_QUIT = "the debugger was quit"
NUDGE_S, MAX_NUDGE_S = 0.02, 1.0  # after an interrupt, and twice as long after each nudge


class _NoSubshells:
    """Stands in for the shell channel thread, which an engine does not have.

    ipykernel 7 asks it for ``parent_thread`` whenever a cell awaits at top level, and loses the
    reply when there is none (ipkernel.py, do_execute).
    """

    parent_thread = threading.main_thread()

    def __bool__(self) -> bool:
        return False


class _BeforeCode:
    """Takes the place of a transformer of a cell's code: what IPython does last before it runs."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def visit(self, node: Any) -> Any:
        """Leave the code as it is."""
        self._tell()
        return node


def _show_error(
    shell: Any, etype: Any, error: BaseException, traceback: Any, tb_offset: int | None = None
) -> Any:
    """Show an error of a cell as IPython does, without our own frames (`set_custom_exc`).

    A debugger begins where the error's own traceback ends: in the user's code.
    """
    users = without_own_frames(traceback)
    clear_own_frames(error)
    error.__traceback__ = users
    with nullcontext() if shell.call_pdb else uninterrupted():  # of %pdb: it may be stopped
        shell.showtraceback((etype, error, users), tb_offset=tb_offset)
    return shell._last_traceback


class RankKernel(IPythonParallelKernel):  # type: ignore[misc]
    """Runs the cells of one rank; `serve` arms it once the engine is registered.

    Cells are execute requests whose metadata name a cell (``{"phalanx": {"cell": ...}}``, with
    ``"lost"``: the dead that it runs without); other requests run as in any engine. Messages come
    on the control channel, whose thread is free while a cell runs: ``phalanx_line`` (a typed
    line), ``phalanx_interrupt``, ``phalanx_greet`` (a new client), and Jupyter's
    ``complete_request`` and ``inspect_request``.
    """

    _supports_kernel_subshells = False
    captures: tuple[DescriptorCapture, ...] = ()
    copied = CopyReport(0, {})

    def serve(self, rank: int, channel: Channel) -> None:
        """Begin to serve as a rank."""
        self.rank = rank
        self._threads = UserThreads()
        self._channel = channel
        self._once = OnceOnly()
        self._stops: deque[str] = deque(maxlen=16)  # the last that came; on the control thread
        self._gate = CellGate()
        self._lines = TypedLines(rank, self._ask, self._withdraw, current_loss)
        self._stdin = CellInput(self._next_of_stdin)
        self._names: dict[str, Any] = {}
        self._cell_parent: dict[str, Any] = {}
        self.shell_channel_thread = _NoSubshells()
        sys.stdin = self._stdin
        self._own_streams = {"stdout": sys.stdout, "stderr": sys.stderr}
        self.session.pack = packs_anything(self.session.pack)
        prepare_bars()
        prepare_cell_names(self.shell)
        prepare_debuggers(self.shell)
        prepare_exit(self.shell)
        prepare_own_magics(self.shell)
        self.shell.set_custom_exc((Exception, KeyboardInterrupt), _show_error)
        self.shell.show_usage_error = self._show_usage_error
        self.shell.ast_transformers.append(_BeforeCode(self._gate.begin_code))
        self.control_handlers["phalanx_line"] = self._on_line
        self.control_handlers["phalanx_interrupt"] = self._on_interrupt
        self.control_handlers["phalanx_greet"] = self._on_greet
        self._help = KernelHelp(self)

    def enter_world(self) -> None:
        """Join the world (again); called by the workspace through a silent cell."""
        self._names = enter(self.shell.user_ns)

    def introduce(self, size: int) -> None:
        """Name this rank to its cells where there is no world to join yet; called likewise."""
        self._names = introduce(self.shell.user_ns, self.rank, size)

    def copy_names(self, source: int, ranks: tuple[int, ...]) -> None:
        """Copy the names of one rank to others; called likewise, on all of them."""
        shell = self.shell
        self.copied = copy_names(shell.user_ns, shell.user_ns_hidden, source, ranks, self.rank)

    def should_handle(self, stream: Any, msg: dict[str, Any], idents: Any) -> bool:
        """Run each request once; whoever sends it again has missed its end, and gets that again."""
        if self._once.is_new(msg):
            return bool(super().should_handle(stream, msg, idents))
        reply = self._once.reply_to(msg)
        if reply is not None:
            content, metadata = reply
            self.session.send(stream, "execute_reply", content, msg, idents, metadata=metadata)
        return False

    def finish_metadata(
        self, parent: dict[str, Any], metadata: dict[str, Any], reply_content: dict[str, Any]
    ) -> dict[str, Any]:
        """Keep the reply that this is for, which is about to be sent."""
        finished: dict[str, Any] = super().finish_metadata(parent, metadata, reply_content)
        self._once.finish(parent)
        if parent["header"]["msg_type"] == "execute_request":  # values of a call may be large
            self._once.keep(parent, reply_content, finished)
        return finished

    # The parameters are ipykernel's, which looks at their names.
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
        """Run a cell so that exactly it can be stopped, and its end is known."""
        arguments = (code, silent, store_history, user_expressions, allow_stdin)
        said = (cell_meta or {}).get("phalanx") or {}
        cell = said.get("cell")
        if not isinstance(cell, str):
            plain: dict[str, Any] = await super().do_execute(
                *arguments, cell_meta=cell_meta, cell_id=cell_id
            )
            return plain
        self._cell_parent = self.get_parent("shell")
        self._lines.begin(cell, said.get("lost", ()))
        self._stdin.forget()
        put_back(self.shell.user_ns, self._names)
        tracer, last_error = sys.gettrace(), LastError()
        reply: dict[str, Any] = {}
        if said.get("stopped"):  # before it came here
            self._gate.interrupt(cell)
        try:
            self._gate.begin(cell)
            reply = await super().do_execute(*arguments, cell_meta=cell_meta, cell_id=cell_id)
            # From here on an interrupt is too late; one that is pending is raised by this call.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if reply.get("ename") == DebuggerStopped.__name__:
                last_error.restore()
                reply = self._failed("KeyboardInterrupt")
            elif reply.get("ename") == "BdbQuit":
                reply["evalue"] = DEBUGGER_QUIT
            elif reply.get("ename") == "SystemExit":
                reply = self._failed("SystemExit", say_left(reply["evalue"]))
            if "ename" in reply:
                reply["evalue"] = cut(reply["evalue"])
                reply["traceback"] = [cut(line) for line in reply["traceback"]]
        except (KeyboardInterrupt, DebuggerStopped):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            reply = self._failed("KeyboardInterrupt")
        except bdb.BdbQuit:  # of a debugger that had stepped out of the cell
            reply = self._failed("BdbQuit", DEBUGGER_QUIT)
        finally:
            leave_debuggers(self.shell.user_ns, tracer)
            self._gate.end()
            self._lines.end()
            for capture in self.captures:
                capture.drain()
            self._flush()  # whoever hears of the end, and looks, finds all that was said
            is_ok = reply.get("status") == "ok"
            error = "" if is_ok else f"{reply.get('ename')}: {reply.get('evalue')}"[:200]
            # Half a character, which no message can carry, must not keep the end from being told.
            error = error.encode(errors="backslashreplace").decode()
            self._notify(CellEnded(cell, is_ok, self._threads.are_alive(), error))
        return reply

    def _show_usage_error(self, error: Exception) -> None:
        """Show a mistake in a magic as any error: IPython would print it, and it be told twice."""
        self.shell._showtraceback(type(error), error, [f"UsageError: {error}"])

    def _failed(self, ename: str, evalue: str = "") -> dict[str, Any]:
        return {
            "status": "error",
            "ename": ename,
            "evalue": evalue,
            "traceback": [f"{ename}: {evalue}" if evalue else ename],
            "execution_count": self.shell.execution_count,
            "user_expressions": {},
            "payload": [],
        }

    def _notify(self, notice: CellEnded) -> None:
        try:
            self._channel.notify(notice)
        except ChannelClosed as error:
            # The supervisor is gone, and the kernel of this machine ends us with it.
            self.log.warning("%s", error)

    # -- input --------------------------------------------------------------------------------

    def raw_input(self, prompt: object = "") -> str:
        """Read the next typed line of this cell; stands in for `input`."""
        is_command = asks_for_commands(sys._getframe(1))
        self._flush()
        return self._lines.next_line(str(prompt), is_command=is_command)

    def getpass(
        self, prompt: object = "Password: ", stream: object = None, *, echo_char: object = None
    ) -> str:
        """Read the next typed line of this cell without showing it."""
        self._flush()
        return self._lines.next_line(str(prompt), password=True)

    def _next_of_stdin(self) -> str:
        self._flush()
        try:
            return self._lines.next_line(STDIN_PROMPT)
        except NoCellRuns:
            raise EOFError from None  # between cells it is as /dev/null

    def _flush(self) -> None:
        # Flushing waits for the output thread, which only the main thread may do safely.
        if threading.current_thread() is not threading.main_thread():
            return
        for name, own in self._own_streams.items():
            try:
                getattr(sys, name).flush()
            except Exception:  # noqa: BLE001 - of the user's: ipykernel flushes it, too, for the reply
                setattr(sys, name, own)
            own.flush()

    def _ask(self, need: LineNeed) -> None:
        self.session.send(
            self.iopub_socket,
            "phalanx_need_line",
            msgspec.to_builtins(need),
            parent=self._cell_parent,
            ident=self._topic("need_line"),
        )

    def _withdraw(self, cell: str) -> None:
        """Say that no data is wanted any more, for now."""
        self.session.send(
            self.iopub_socket,
            "phalanx_need_over",
            {"cell": cell},
            parent=self._cell_parent,
            ident=self._topic("need_over"),
        )

    def _on_line(self, stream: Any, ident: Any, message: dict[str, Any]) -> None:
        content = message["content"]
        cell = str(content["cell"])
        if "refusal" in content:
            self._lines.refuse(cell, str(content["refusal"]))
        else:
            entry = msgspec.convert(content["entry"], TypedLine)
            self._lines.feed(cell, int(content["index"]), entry)

    def _on_greet(self, stream: Any, ident: Any, message: dict[str, Any]) -> None:
        """Tell a new client what this rank's cell waits for, and what was typed for it."""
        self._lines.repeat_needs()
        typed = [[index, msgspec.to_builtins(entry)] for index, entry in self._lines.typed()]
        content = {"cell": self._lines.cell, "typed": typed}
        self.session.send(stream, "phalanx_greeting", content, message, ident)

    def _on_interrupt(self, stream: Any, ident: Any, message: dict[str, Any]) -> None:
        cell, stop = str(message["content"]["cell"]), str(message["content"]["stop"])
        if stop in self._stops:  # sent again, in case that it was lost
            return
        self._stops.append(stop)
        self._lines.stop(cell)
        self._gate.interrupt(cell)
        self._nudge(cell, NUDGE_S)
        # ipykernel's handler for a cell that awaits only schedules a callback, which does not
        # wake a loop that sleeps: this does.
        self.io_loop.add_callback(lambda: None)

    def _nudge(self, cell: str, after_s: float) -> None:
        def again() -> None:
            if self._gate.nudge(cell):
                self._nudge(cell, min(2 * after_s, MAX_NUDGE_S))

        self.control_thread.io_loop.call_later(after_s, again)
