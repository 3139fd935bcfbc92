"""Show this rank's Python stacks to its supervisor.

A thread waits for requests and writes all stacks to a pipe. It holds Python's lock meanwhile, so no
frame changes while it is read. A rank in C code that holds the lock cannot answer; for it, the
supervisor sends `STACK_SIGNAL`. Its handler reads the frames without the lock, which would crash a
rank that runs Python code in that moment (measured: one time in 400).
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import threading
from pathlib import Path

from phalanx import _native

STACKS_VARIABLE = "PHALANX_STACKS"  # the inherited descriptors: "requests,answers"
# Real-time signals have no predefined use; C libraries take the first ones. macOS has none: None.
STACK_SIGNAL: int | None = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else None
LISTENER = "px-listener"  # the answering thread's name in the Linux kernel
is_cell_file = _native.is_cell_file
_MANY = 4096  # requests that came while the lock was held get one answer
_log = logging.getLogger(__name__)


def show_stacks() -> None:
    """Answer requests for stacks if a supervisor has set up the pipes.

    The environment variable is removed and the descriptors are closed on exec, because a process
    that this one starts is not a rank. If the program has its own handler for `STACK_SIGNAL`, the
    handler stays and nothing is answered.
    """
    value = os.environ.pop(STACKS_VARIABLE, "")
    if not value or STACK_SIGNAL is None:
        return
    try:
        request_fd, answer_fd = map(int, value.split(","))
        for fd in (request_fd, answer_fd):
            os.set_inheritable(fd, False)
    except (OSError, ValueError) as error:
        _log.warning("%s=%r names no open descriptors: %s", STACKS_VARIABLE, value, error)
        return
    if signal.getsignal(STACK_SIGNAL) is not signal.SIG_DFL:
        return
    faulthandler.register(STACK_SIGNAL, file=answer_fd, all_threads=True, chain=False)
    thread = threading.Thread(
        target=_answer_requests, args=(request_fd, answer_fd), name=LISTENER, daemon=True
    )
    thread.start()
    # The supervisor finds the receiver of the signal by this name. A signal interrupts the blocking
    # call of its thread: Python repeats the call of this thread; foreign code in the main thread (a
    # driver's ``poll``) may not.
    with contextlib.suppress(OSError):
        Path(f"/proc/self/task/{thread.native_id}/comm").write_text(LISTENER)
    with contextlib.suppress(OSError):
        os.write(answer_fd, b"\n")  # the supervisor asks only after this byte


def _answer_requests(request_fd: int, answer_fd: int) -> None:
    """Write all stacks for each request, until the supervisor is gone."""
    with contextlib.suppress(OSError):
        while os.read(request_fd, _MANY):
            faulthandler.dump_traceback(file=answer_fd, all_threads=True)
