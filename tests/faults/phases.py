"""What ranks of the farm are in the midst of when something breaks: each phase is a cell.

A phase goes on until it fails, and says how: an `Ending`. The victim of a fault runs `endure`, which
does what its peers expect of it for as long as it can, or nothing where the phase is to wait for it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import psutil

import phalanx as px
from phalanx import distributed

SMALL, LARGE = 8, 2_000_000
JOIN_S = 10.0


@dataclass(frozen=True)
class Ending:
    """How a phase ended on one rank."""

    error: str
    culprit: int
    text: str
    when_s: float  # time.monotonic(), which is the same clock in all processes of a machine


def _ending_of(body: Callable[[], object]) -> Ending:
    try:
        body()
    except px.DistributedError as error:
        when_s = time.monotonic()
        return Ending(type(error).__name__, getattr(error, "rank", -1), str(error), when_s)
    return Ending("", -1, "it did not fail", time.monotonic())


def _sums(length: int, group: px.Group | None, timeout: float | None) -> None:
    group = group or px.init()
    x = np.full(length, group.rank() + 1, np.float32)
    total = sum(range(1, group.size() + 1))
    while True:
        assert (px.all_sum(x, group=group, timeout=timeout) == total).all()


def small(victim: int, timeout: float | None) -> None:
    _sums(SMALL, None, timeout)


def large(victim: int, timeout: float | None) -> None:
    _sums(LARGE, None, timeout)


def split(victim: int, timeout: float | None) -> None:
    """Ranks of even and of odd number among themselves: half of the world never meets the victim."""
    _sums(SMALL, px.init().split(px.init().rank() % 2), timeout)


def async_op(victim: int, timeout: float | None) -> None:
    x = np.ones(LARGE // 4, np.float32)
    while True:
        works = [px.all_sum(x, timeout=timeout, async_op=True) for _ in range(3)]
        for work in works:
            assert (work.wait() == px.init().size()).all()


def recv(victim: int, timeout: float | None) -> None:
    """Wait for a message that the victim never sends."""
    if px.init().rank() == victim:
        time.sleep(60)
    px.recv((4,), np.float32, victim, timeout=timeout)


def send(victim: int, timeout: float | None) -> None:
    """Send more than is ever buffered to the victim, which never receives."""
    if px.init().rank() == victim:
        time.sleep(60)
    x = np.ones(LARGE, np.float32)
    while True:
        px.send(x, victim, timeout=timeout)


def python(victim: int, timeout: float | None) -> None:
    """Compute without a thought of others for a while, then meet them."""
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        sum(range(1000))
    if px.init().rank() == victim:
        time.sleep(60)
    px.all_sum(1, timeout=timeout)


def idle(victim: int, timeout: float | None) -> None:
    """Be between two operations: the victim is gone before its peers call the next."""
    if px.init().rank() == victim:
        time.sleep(60)
    px.all_sum(1, timeout=timeout)


PHASES = {cell.__name__: cell for cell in (idle, small, large, split, async_op, recv, send, python)}


def run(phase: str, victim: int, timeout: float | None = None) -> Ending:
    """Be in a phase until it fails; `os._exit` when told to by a signal."""
    signal.signal(signal.SIGALRM, lambda *_: os._exit(3))
    return _ending_of(lambda: PHASES[phase](victim, timeout))


def connect(timeout: float = JOIN_S) -> Ending:
    """Join a world in which somebody breaks."""
    return _ending_of(lambda: distributed.join(timeout))


def n_descriptors() -> int:
    """How many descriptors this process has open."""
    return psutil.Process().num_fds()
