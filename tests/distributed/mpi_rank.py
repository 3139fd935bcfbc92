"""The main of a rank under mpirun that runs the cells it is sent (see mpi_world.py).

It has no page that shows what it is doing, so a thread of its own looks and answers.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
from multiprocessing.connection import Connection
from types import FrameType

from distributed.farm_rank import serve

import phalanx as px
from phalanx.distributed._mpi._waits import Waits
from phalanx.protocol import Activity, Standing


def activity() -> Activity:
    """Read from the frames of all threads in which operations they wait for the other ranks."""
    engine = px.init()._engine
    ops = []
    for innermost in sys._current_frames().values():
        frame: FrameType | None = innermost
        while frame is not None:
            if frame.f_code is Waits._wait.__code__:
                ops.append(frame.f_locals["header"].kind)
            frame = frame.f_back
    # One that the group's thread has begun is in the queue no more.
    queued = 0 if engine._worker is None else engine._worker._queue.qsize() + len(ops)
    return Activity(1, {number: Standing(op, 0, 0, queued) for number, op in enumerate(ops)})


def answer(control: Connection) -> None:
    """Tell what this rank is doing as often as it is asked."""
    while True:
        try:
            control.recv()
            control.send(activity())
        except (EOFError, OSError):
            return


def connect(address: str) -> Connection:
    with socket.socket(socket.AF_UNIX) as own:
        own.connect(address)
        return Connection(own.detach())


def main() -> None:
    faulthandler.register(signal.SIGUSR1)
    control = connect(sys.argv[1])
    asked = connect(sys.argv[1])
    rank = px.init(strict=True, backend="mpi").rank()
    for connection, purpose in ((control, "cells"), (asked, "activity")):
        connection.send((rank, os.getpid(), purpose))
    threading.Thread(target=answer, args=(asked,), daemon=True).start()
    serve(control)


if __name__ == "__main__":
    main()
