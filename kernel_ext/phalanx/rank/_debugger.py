"""Debuggers in a rank: what `breakpoint` does, who asks, and how a stop gets through pdb.

It knows pdb and IPython's debugger; nothing of logs and messages.
"""

from __future__ import annotations

import bdb
import cmd
import code
import os
import pdb  # noqa: T100 - for the user, not for us
import sys
from types import CodeType, FrameType
from typing import Any

from ._cell_names import CELL

__all__ = ["LastError", "asks_for_commands", "leave_debuggers", "prepare_debuggers"]

SHELL = frozenset({"IPython", "ipykernel", "ipyparallel", "traitlets"})
SHELL_OF_RANK = "phalanx.supervisor._kernel"
LOOP = frozenset({"asyncio", "selectors", "concurrent"})

# Whose call of `input` asks for a command and not for data.
INTERPRETERS: frozenset[CodeType] = frozenset(
    {cmd.Cmd.cmdloop.__code__, code.InteractiveConsole.raw_input.__code__}
)


def asks_for_commands(caller: FrameType | None) -> bool:
    """Whether the frame that called `input` is an interpreter's prompt (pdb, `code.interact`)."""
    return caller is not None and caller.f_code in INTERPRETERS


def prepare_debuggers(shell: Any) -> None:
    """Fit every debugger of this process to a rank.

    - `breakpoint` opens IPython's: debugpy's hook, which ipykernel installs, goes on in silence.
    - pdb leaves SIGINT alone: its handler would swallow a stop while the program runs on after
      ``c``, and stay behind.
    - Stepping goes from one statement of a cell to the next, not into the shell around them.
    """

    def break_into_debugger(*, header: str | None = None, **_: Any) -> None:
        debugger = shell.debugger_cls()
        debugger.report_skipped = False
        if header is not None:
            debugger.message(header)
        debugger.set_trace(sys._getframe(1))

    def stop_here(self: Any, frame: FrameType) -> bool:
        return bool(bdb.Bdb.stop_here(self, frame)) and is_users(frame)

    def user_call(self: Any, frame: FrameType, argument_list: None) -> None:
        if not is_statement(frame):  # nobody calls a statement: it is stopped at as a line
            call(self, frame, argument_list)

    def user_line(self: Any, frame: FrameType) -> None:
        if is_statement(frame):
            self.stopped_in = frame.f_code
        line(self, frame)

    def user_return(self: Any, frame: FrameType, value: Any) -> None:
        # Of a statement that was stopped at before it ran, the end is no news.
        if not (is_statement(frame) and getattr(self, "stopped_in", None) is frame.f_code):
            leave(self, frame, value)

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
    """Whether it is the frame of one statement of a cell, as IPython runs them one by one."""
    return frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(CELL)


def is_users(frame: FrameType) -> bool:
    """Whether a frame runs for the user's code: what called it is a cell before it is the shell.

    Frames that the event loop calls count, the loop's own do not. A thread has no shell above.
    """
    outer: FrameType | None = frame
    while outer is not None:
        if outer.f_code.co_filename.startswith(CELL):
            return True
        room = str(outer.f_globals.get("__name__", "")).partition(".")[0]
        if room in SHELL or outer.f_globals.get("__name__") == SHELL_OF_RANK:
            return False
        if room == "asyncio":
            return frame.f_globals.get("__name__", "").partition(".")[0] not in LOOP
        outer = outer.f_back
    return True


def leave_debuggers(namespace: dict[str, Any], tracer: Any) -> None:
    """Take away what a debugger leaves when its cell ends: the trace function, pdb's names."""
    sys.settrace(tracer)
    for name in ("__return__", "__exception__"):
        namespace.pop(name, None)


class LastError:
    """The last error as ``%debug`` finds it, to be put back after one that is ours."""

    NAMES = ("last_type", "last_value", "last_traceback", "last_exc")

    def __init__(self) -> None:
        self._saved = {name: getattr(sys, name) for name in self.NAMES if hasattr(sys, name)}

    def restore(self) -> None:
        """Put it back."""
        for name in self.NAMES:
            if name in self._saved:
                setattr(sys, name, self._saved[name])
            elif hasattr(sys, name):
                delattr(sys, name)
