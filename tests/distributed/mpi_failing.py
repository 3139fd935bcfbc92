"""Cells for mpirun (see mpi_cells.py) that fail, are interrupted, or end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from mpi_saying import engine_of_world, raised, say

import phalanx as px
from phalanx import _native
from phalanx.distributed._mpi import _moves
from phalanx.distributed._mpi._world import AbortedError, Reason


def mismatch(where):
    engine = engine_of_world()
    rank = engine.rank
    if where == "split":
        engine = engine.part(0 if rank else 1)
        if rank == 0:
            # Not in it, and told all the same: an epoch ends for the world and all its parts.
            error = raised(px.DistributedError, _wait_for_failure)
            say(error)
            return
    x = np.ones((2, 300) if rank == 1 else 600, np.float32)
    out = np.zeros_like(x)
    error = raised(px.CollectiveMismatch, engine.all_sum, x, out)
    assert not out.any()
    again = raised(px.CollectiveMismatch, engine.barrier)
    assert str(again) == str(error)
    say(error)


def mismatch_and_missing():
    """Two that differ are told so, though the third never comes."""
    engine = engine_of_world()
    if engine.rank == 2:
        say(raised(px.CollectiveMismatch, _wait_for_failure))
        return
    x = np.ones(1 + engine.rank, np.float32)
    say(raised(px.CollectiveMismatch, engine.all_sum, x, x.copy()))


def spoiled():
    """What fails after it was begun in an array that is its own out, leaves nothing of it."""
    group = px.init()
    x = np.arange(100_000, dtype=np.uint32)
    if group.rank() == 1:

        def fail(*_):
            reason = Reason(_native.ABORT_ERROR, 1, "rank 1 has had enough")
            raise AbortedError(reason)

        _moves.Mover.all_reduce = fail
    error = raised(px.DistributedError, px.all_sum, x, out=x)
    assert (x == 2**32 - 1).all(), x
    say(error)


def _wait_for_failure():
    engine = px.init()._engine
    deadline = time.monotonic() + 10
    while engine.failure is None and time.monotonic() < deadline:
        engine._world.listen()
        time.sleep(0.001)
    engine.barrier()


def pair_mismatch():
    engine = engine_of_world()
    x = np.ones(9 + engine.rank * 20_000)
    call = engine.recv if engine.rank else engine.send
    if engine.rank == 0:
        engine.send(x, 1)
        say(raised(px.CollectiveMismatch, engine.barrier))
    else:
        say(raised(px.CollectiveMismatch, call, x, 0))


def timeout():
    """Rank 1 does not come; of three, two can tell."""
    engine = engine_of_world()
    if engine.rank == 1:
        # It learns of it in what it does next, whenever that is.
        say(raised(px.CollectiveTimeout, _wait_for_failure))
        return
    start = time.monotonic()
    x, out = np.ones(3), np.zeros(3)
    error = raised(px.CollectiveTimeout, engine.all_sum, x, out, timeout=0.5)
    took = time.monotonic() - start
    assert 0.5 <= took < 10, took
    say(error)


def pair_timeout():
    engine = engine_of_world()
    if engine.rank == 1:
        say(raised(px.CollectiveTimeout, engine.recv, np.empty(3), 0, timeout=0.3))
    else:
        say(raised(px.CollectiveTimeout, _wait_for_failure))


def interrupt():
    """Ctrl-C in one rank frees all."""
    engine = engine_of_world()
    if engine.rank == 0:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        raised(KeyboardInterrupt, engine.barrier)
        assert time.monotonic() - start < 10
        error = raised(px.DistributedError, engine.barrier)
    elif engine.rank == 1:
        error = raised(px.DistributedError, engine.recv, np.empty(1), 2)
    else:
        error = raised(px.DistributedError, _wait_for_failure)
    say(error)


def leave():
    """A rank whose script has ended is named by those that wait for it."""
    engine = engine_of_world()
    engine.barrier()
    if engine.rank == 0:
        return
    start = time.monotonic()
    error = raised(px.DistributedError, engine.barrier)
    assert time.monotonic() - start < 10
    say(error)


def raises():
    """An error that nobody catches, in one rank of a few that wait for it."""
    engine = engine_of_world()
    if engine.rank == 1:
        raise ZeroDivisionError
    engine.barrier()


def exit_status(status):
    px.init(backend="mpi").barrier()
    sys.exit(int(status))


def killed():
    engine = engine_of_world()
    engine.barrier()
    if engine.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    engine.barrier()


def hold(path):
    """Say who we are and wait for ever."""
    engine = engine_of_world()
    Path(path, str(engine.rank)).write_text(str(os.getpid()))
    engine.barrier()
    if engine.rank == 0:
        say("holding")
        engine.recv(np.empty(1), 1)
    else:
        engine.recv(np.empty(1), 0)
