"""The main of a rank in the farm: runs the cells it is sent, in its main thread, until told to end.

Ranks of mpirun do so, too (mpi_rank.py).
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
from multiprocessing.connection import Connection

PR_SET_PDEATHSIG = 1


def main() -> None:
    # A run of tests that is killed leaves nothing, also where a cell waits or computes for ever.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    faulthandler.register(signal.SIGUSR1)
    control = Connection(int(os.environ.pop("FARM_CONTROL")))
    os.set_inheritable(control.fileno(), False)
    serve(control)


def serve(control: Connection) -> None:
    """Run cells until the other end is closed."""
    while True:
        try:
            cell, args = control.recv()
        except EOFError:
            return
        except KeyboardInterrupt:
            continue  # it came between cells
        try:
            outcome = cell(*args)
        except SystemExit:
            raise  # of a child that a cell forked
        except BaseException as error:  # noqa: BLE001  # the test judges it
            outcome = error
        control.send(outcome)


if __name__ == "__main__":
    main()
