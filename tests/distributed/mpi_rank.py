"""The main of a rank under mpirun that runs the cells it is sent (see mpi_world.py)."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
from multiprocessing.connection import Connection

from distributed.farm_rank import serve

import phalanx as px

if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)
    with socket.socket(socket.AF_UNIX) as own:
        own.connect(sys.argv[1])
        control = Connection(own.detach())
    control.send((px.init(strict=True, backend="mpi").rank(), os.getpid()))
    serve(control)
