"""What ranks run under an mpirun that ends: `python mpi_failing.py CELL[:ARG]`.

Each cell ends its rank, with an error or not, or waits until somebody ends it. What leaves a rank
alive is in mpi_cells.py.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np

import phalanx as px


def say(*words) -> None:
    """Write one line at once: the lines of ranks shall not mix."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def engine_of_world():
    return px.init(strict=True, backend="mpi")._current.engine


def leave():
    """Rank 0 sends and ends its script at once; who waits for it later is told so."""
    engine = engine_of_world()
    engine.run("barrier")
    if engine.rank == 0:
        engine.run("send", np.arange(8000.0), None, 1)
        return
    if engine.rank == 1:
        out = np.empty(8000)
        engine.run("recv", None, out, 0)
        assert (out == np.arange(8000.0)).all()
        say("arrived")
    try:
        engine.run("barrier")
    except px.DistributedError as error:
        say(error)


def exit_status(status):
    px.init(backend="mpi").barrier()
    sys.exit(int(status))


def killed():
    engine = engine_of_world()
    engine.run("barrier")
    if engine.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    engine.run("barrier")


def hold(path):
    """Say who we are and wait for ever."""
    engine = engine_of_world()
    Path(path, str(engine.rank)).write_text(str(os.getpid()))
    engine.run("barrier")
    if engine.rank == 0:
        say("holding")
        engine.run("recv", None, np.empty(1), 1)
    else:
        engine.run("recv", None, np.empty(1), 0)


if __name__ == "__main__":
    name, *given = sys.argv[1].split(":")
    globals()[name](*given)
