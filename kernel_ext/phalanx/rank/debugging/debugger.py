"""Fit pdb and IPython's debugger to a rank."""

from __future__ import annotations

import bdb
import builtins
import cmd
import code
import os
import pdb  # noqa: T100 - for the user, not for us
import sys
import threading
from types import CodeType, FrameType
from typing import Any, NamedTuple

from phalanx.distributed.bootstrap.own_frames import without_own_frames

from ..cell import CELL
from .visual_debugger import VisualDebugger

POST_MORTEM = "%debug"  # a cell that only looks at the error of another

SHELL = frozenset({"IPython", "ipykernel", "ipyparallel", "traitlets"})
SHELL_OF_RANK = "phalanx.rank.kernel"
LOOP = frozenset({"asyncio", "selectors", "concurrent"})

# Code of the callers of `input` that ask for a command and not for data.
INTERPRETERS: frozenset[CodeType] = frozenset(
    {cmd.Cmd.cmdloop.__code__, code.InteractiveConsole.raw_input.__code__}
)


def asks_for_commands(caller: FrameType | None) -> bool:
    """Whether a call of `input` is an interpreter's prompt (pdb, `code.interact`)."""
    return caller is not None and caller.f_code in INTERPRETERS


def prepare_debuggers(shell: Any, panel: VisualDebugger) -> None:
    """Fit every debugger of this process to a rank.

    - `breakpoint` opens IPython's debugger: debugpy's hook, which ipykernel installs, does nothing.
      While a ``panel`` is attached, `breakpoint` stops there instead.
    - pdb leaves SIGINT alone: its handler would swallow a stop while the program runs on after
      ``c``, and would stay installed.
    - Stepping goes from one statement of a cell to the next, not into the shell's code.
    - `code.interact` and pdb's ``interact`` show each value, and `exit` ends that console, not the
      cell. (Python 3.13 has this as ``local_exit``.) No front end can type the end of the input.
    """

    def break_into_debugger(*, header: str | None = None, **_: Any) -> None:
        if threading.current_thread() is threading.main_thread() and panel.stop_at(
            sys._getframe(1)
        ):
            return
        debugger = shell.debugger_cls()
        debugger.report_skipped = False
        if header is not None:
            debugger.message(header)
        debugger.set_trace(sys._getframe(1))

    def stop_here(self: Any, frame: FrameType) -> bool:
        return bool(bdb.Bdb.stop_here(self, frame)) and is_users(frame)

    def user_call(self: Any, frame: FrameType, argument_list: None) -> None:
        if not is_statement(frame):  # a statement has no caller: stop at it as at a line
            call(self, frame, argument_list)

    def user_line(self: Any, frame: FrameType) -> None:
        if is_statement(frame):
            self.stopped_in = frame.f_code
        line(self, frame)

    def user_return(self: Any, frame: FrameType, value: Any) -> None:
        # The end of a statement that was stopped at before it ran needs no second stop.
        if not (is_statement(frame) and getattr(self, "stopped_in", None) is frame.f_code):
            leave(self, frame, value)

    def interact_until_exit(
        console: Any, banner: str | None = None, exitmsg: str | None = None
    ) -> None:
        known, names = vars(builtins), ("exit", "quit", "_")
        kept = {name: known[name] for name in names if name in known}  # IPython removes them
        known.update(exit=shell.exiter, quit=shell.exiter)
        hook = sys.displayhook
        sys.displayhook = sys.__displayhook__  # the shell's shows a cell's last value, at its end
        try:
            interact(console, banner, exitmsg)
        except SystemExit:
            said = f"now exiting {type(console).__name__}..." if exitmsg is None else exitmsg
            console.write(f"{said}\n" if said else "")
        finally:
            sys.displayhook = hook
            for name in names:
                known.pop(name, None)
            known.update(kept)

    interact = code.InteractiveConsole.interact
    code.InteractiveConsole.interact = interact_until_exit  # type: ignore[assignment]
    call, line, leave = pdb.Pdb.user_call, pdb.Pdb.user_line, pdb.Pdb.user_return
    if not os.environ.get("PYTHONBREAKPOINT"):
        sys.breakpointhook = break_into_debugger
    pdb_methods = {
        "nosigint": property(lambda debugger: True, lambda debugger, value: None),
        "stop_here": stop_here,
        "user_call": user_call,
        "user_line": user_line,
        "user_return": user_return,
    }
    for name, method in pdb_methods.items():
        setattr(pdb.Pdb, name, method)


def is_statement(frame: FrameType) -> bool:
    """Whether a frame is a cell's statement (IPython runs each alone)."""
    return frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(CELL)


def is_users(frame: FrameType) -> bool:
    """Whether a frame runs for the user's code.

    The frames above are searched for a cell or the shell; the first one found decides. Frames that
    the event loop calls count, the loop's own frames do not. A thread has no shell above it.
    """
    outer: FrameType | None = frame
    while outer is not None:
        if outer.f_code.co_filename.startswith(CELL):
            return True
        package = str(outer.f_globals.get("__name__", "")).partition(".")[0]
        if package in SHELL or outer.f_globals.get("__name__") == SHELL_OF_RANK:
            return False
        if package == "asyncio":
            return frame.f_globals.get("__name__", "").partition(".")[0] not in LOOP
        outer = outer.f_back
    return True


class ErrorOfCell(NamedTuple):
    """The error that ``%debug`` finds on a rank, and its cell."""

    cell: str
    ename: str
    evalue: str
    last_cell: str  # last cell that this rank has run


class DebuggerState:
    """Save the trace function and the error that ``%debug`` finds.

    Made before a cell.
    """

    NAMES = ("last_type", "last_value", "last_traceback", "last_exc")

    def __init__(self) -> None:
        self._tracer = sys.gettrace()
        self._saved = {name: getattr(sys, name) for name in self.NAMES if hasattr(sys, name)}

    def end_debuggers(self, namespace: dict[str, Any]) -> None:
        """Remove a debugger's trace function and pdb's names."""
        sys.settrace(self._tracer)
        for name in ("__return__", "__exception__"):
            namespace.pop(name, None)

    def has_other_error(self) -> bool:
        return getattr(sys, "last_traceback", None) is not self._saved.get("last_traceback")

    @staticmethod
    def drop_own_frames() -> None:
        """Remove our own frames: a debugger begins in the user's code."""
        error = getattr(sys, "last_value", None)
        if error is not None:
            error.__traceback__ = sys.last_traceback = without_own_frames(error.__traceback__)

    def restore_error(self) -> None:
        for name in self.NAMES:
            if name in self._saved:
                setattr(sys, name, self._saved[name])
            elif hasattr(sys, name):
                delattr(sys, name)
