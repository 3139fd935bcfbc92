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
from collections.abc import Iterator
from multiprocessing.connection import Connection
from types import FrameType

from distributed.farm.farm_rank import serve

import phalanx as px
from phalanx.distributed.mpi.waiting import PeerWatch
from phalanx.protocol import Activity, GroupProgress


def frames_of(thread: int | None) -> Iterator[FrameType]:
    """Walk the frames of a thread, from the innermost on."""
    frame = None if thread is None else sys._current_frames().get(thread)
    while frame is not None:
        yield frame
        frame = frame.f_back


def activity() -> Activity:
    """Read from the frames of all threads in which operations they wait for the other ranks."""
    engine = px.init()._current.engine
    ops = [
        frame.f_locals["header"].kind
        for thread in sys._current_frames()
        for frame in frames_of(thread)
        if frame.f_code is PeerWatch.wait.__code__
    ]
    # One that the group's thread has begun is in the queue no more.
    queued = 0 if engine._worker is None else engine._worker._queue.qsize() + len(ops)
    return Activity(1, {number: GroupProgress(op, 0, 0, queued) for number, op in enumerate(ops)})


def is_main_waiting() -> bool:
    """Whether the main thread waits for other ranks, or for what was submitted."""
    waits = {PeerWatch.wait.__code__, threading.Event.wait.__code__}
    return any(frame.f_code in waits for frame in frames_of(threading.main_thread().ident))


def answer(control: Connection) -> None:
    """Tell what this rank is doing as often as it is asked: the parent sends a function's name."""
    answers = {ask.__name__: ask for ask in (activity, is_main_waiting)}
    while True:
        try:
            control.send(answers[control.recv()]())
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
