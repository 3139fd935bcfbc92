"""A rank whose thread writes to an array that is being sent."""

from __future__ import annotations

import threading
import time

import numpy as np

import phalanx as px


def change_meanwhile(op: str, limit_s: float) -> str:
    """Carry out an operation again and again while a thread of rank 0 changes x; how it ended."""
    x, stop = np.zeros(1 << 21), threading.Event()

    def change() -> None:
        while not stop.is_set():
            np.add(x, 1.0, out=x)

    thread = threading.Thread(target=change)
    if px.init().rank() == 0:
        thread.start()
    deadline_s = time.monotonic() + limit_s
    try:
        while time.monotonic() < deadline_s:
            if op == "send":
                send_on(x)
            else:
                getattr(px, op)(x)
    except px.DistributedError as error:
        return str(error)
    finally:
        stop.set()
        if thread.is_alive():
            thread.join()
    return "no error"


def send_on(x: np.ndarray) -> None:
    """From rank 0 to rank 1."""
    if px.init().rank() == 0:
        px.send(x, 1)
    else:
        px.recv_like(x, 0)
