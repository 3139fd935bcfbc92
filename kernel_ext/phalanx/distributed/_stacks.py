"""Letting the supervisor see where this rank's Python code is, at any time.

A signal has faulthandler write all threads' stacks into an inherited pipe: that needs neither the
interpreter's lock nor a thread of ours, so it works while foreign code holds both.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import threading
from pathlib import Path

__all__ = ["LISTENER", "STACKS_VARIABLE", "STACK_SIGNAL", "show_stacks", "take_stack_signals"]

STACKS_VARIABLE = "PHALANX_STACKS"  # the number of the inherited descriptor
# Real-time signals have no use of their own; C libraries take the first ones. None: macOS has none.
STACK_SIGNAL: int | None = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else None
LISTENER = "px-listener"  # a thread's name, as the kernel of Linux keeps it

_log = logging.getLogger(__name__)


def show_stacks() -> None:
    """Answer `STACK_SIGNAL` from now on, if a supervisor has said where.

    The environment variable is taken away and the descriptor closed on exec: a process that this
    one starts is no rank. A program that has a handler of its own for the signal keeps it.
    """
    value = os.environ.pop(STACKS_VARIABLE, "")
    if not value or STACK_SIGNAL is None:
        return
    try:
        fd = int(value)
        os.set_inheritable(fd, False)
    except (OSError, ValueError) as error:
        _log.warning("%s=%r names no open descriptor: %s", STACKS_VARIABLE, value, error)
        return
    if signal.getsignal(STACK_SIGNAL) is signal.SIG_DFL:
        faulthandler.register(STACK_SIGNAL, file=fd, all_threads=True, chain=False)
        with contextlib.suppress(OSError):
            os.write(fd, b"\n")  # who has said nothing is never sent the signal


def take_stack_signals() -> None:
    """Make the calling thread the one that `STACK_SIGNAL` interrupts while the main one sleeps.

    A signal cuts short whatever its thread waits in: Python goes on waiting, foreign code (a C
    ``sleep``, a driver's ``poll``) may not. So the supervisor picks this thread by its name.
    """
    with contextlib.suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(LISTENER)
