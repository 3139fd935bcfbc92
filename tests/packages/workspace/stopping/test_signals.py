"""Signals that come between cells, and what else raises there, end no rank."""

from __future__ import annotations

import os
import signal

import pytest
from support.waiting import wait_until

HANDLERS = """
import asyncio, signal, sys

def fail(number, frame):
    raise RuntimeError(f"from the handler of {number}")

signal.signal(signal.SIGUSR1, fail)
signal.signal(signal.SIGALRM, lambda number, frame: sys.exit(3))
signal.signal(signal.SIGINT, fail)

async def leave(error):
    raise error
"""


def test_a_rank_outlives_what_raises_between_cells(own):
    def wait_told(text):
        wait_until(lambda: text in own.output(0), f"{text} is told")

    own.run(HANDLERS)
    pid = own.topology().ranks[0].pid
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGUSR1)
    wait_told("SIGUSR1: its handler raised between cells\nTraceback")
    wait_told(f"RuntimeError: from the handler of {signal.SIGUSR1:d}")
    os.kill(pid, signal.SIGALRM)
    wait_told("SystemExit: 3")
    for error in ("SystemExit(4)", "KeyboardInterrupt('a task')"):
        own.run(f"task = asyncio.ensure_future(leave({error}))", ranks=[0])
    wait_told("SystemExit: 4")
    wait_told("KeyboardInterrupt: a task")
    own.run("asyncio.get_running_loop().stop()", ranks=[0])
    wait_told("code of a cell stopped the event loop")
    assert [result.value for result in own.run("px.all_sum(1)")] == ["2", "2"]
    with pytest.raises(RuntimeError, match="from the handler"):  # in a cell it is the cell's error
        own.run("signal.raise_signal(signal.SIGUSR1)")
    assert own.topology().ranks[0].pid == pid
    assert own.output(0).count("its handler raised between cells") == 2
