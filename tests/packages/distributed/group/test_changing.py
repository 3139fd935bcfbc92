"""What is written to while it is sent over a wire looks damaged; the error says what it may be."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

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


@pytest.mark.parametrize("op", ["all_sum", "all_gather", "all_to_all", "send"])
def test_an_array_that_changes_while_it_is_sent_is_an_error_that_says_so(rank_pool, op):
    said = rank_pool(2, transport="tcp").run(change_meanwhile, op, 20.0)
    assert "or changed while it was being sent: x must stay as it is" in said[1]
    assert "no error" not in said[0]
