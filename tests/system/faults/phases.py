"""Cells that keep the ranks of the farm busy until something breaks: each phase is one.

A phase goes on until it fails, and returns how: an `Ending`. Where its peers are to wait for it, the
victim says in the folder of the test that it is there, and sleeps.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from support.promise import PATIENCE_S

import phalanx as px
from phalanx.distributed.bootstrap import supervised

SMALL, LARGE = 8, 2_000_000
JOIN_S = PATIENCE_S
GO = "go"  # a file


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


@dataclass(frozen=True)
class Part:
    """What a rank of a phase has to know."""

    victim: int
    timeout: float | None
    folder: str

    @property
    def is_victim(self) -> bool:
        return px.init().rank() == self.victim

    def come(self) -> None:
        """Tell the test that this rank is there."""
        Path(self.folder, str(px.init().rank())).touch()

    def sleep(self) -> None:
        """Do nothing more, as the victim that its peers wait for."""
        self.come()
        time.sleep(600)


def small(part: Part) -> None:
    _sums(SMALL, None, part.timeout)


def large(part: Part) -> None:
    _sums(LARGE, None, part.timeout)


def split(part: Part) -> None:
    """Ranks of even and of odd number among themselves: half of the world never meets the victim."""
    group = px.init().split(px.init().rank() % 2)
    part.come()
    _sums(SMALL, group, part.timeout)


def async_op(part: Part) -> None:
    x = np.ones(LARGE // 4, np.float32)
    while True:
        works = [px.all_sum(x, timeout=part.timeout, async_op=True) for _ in range(3)]
        for work in works:
            assert (work.wait() == px.init().size()).all()


def recv(part: Part) -> None:
    """Wait for a message that the victim never sends."""
    if part.is_victim:
        part.sleep()
    px.recv((4,), np.float32, part.victim, timeout=part.timeout)


def send(part: Part) -> None:
    """Send more than is ever buffered to the victim, which never receives."""
    if part.is_victim:
        part.sleep()
    x = np.ones(LARGE, np.float32)
    while True:
        px.send(x, part.victim, timeout=part.timeout)


def python(part: Part) -> None:
    """Compute while the victim breaks, and meet it only after the test has made the file GO."""
    if part.is_victim:
        part.sleep()
    part.come()
    while not Path(part.folder, GO).exists():
        sum(range(10_000))
    px.all_sum(1, timeout=part.timeout)


def idle(part: Part) -> None:
    """Wait in an operation that the victim never calls."""
    if part.is_victim:
        part.sleep()
    px.all_sum(1, timeout=part.timeout)


PHASES = {cell.__name__: cell for cell in (idle, small, large, split, async_op, recv, send, python)}


def run(phase: str, victim: int, timeout: float | None = None, folder: str = "") -> Ending:
    """Be in a phase until it fails; `os._exit` when told to by a signal."""
    signal.signal(signal.SIGALRM, lambda *_: os._exit(3))
    return _ending_of(lambda: PHASES[phase](Part(victim, timeout, folder)))


def connect(timeout: float = JOIN_S) -> Ending:
    """Join a world in which somebody breaks."""
    return _ending_of(lambda: supervised.join(timeout))


def n_descriptors() -> int:
    """How many descriptors this process has open."""
    return psutil.Process().num_fds()


def split_without_descriptors(poor: int) -> tuple[str, str]:
    """Split the world while the rank ``poor`` can open nothing more; return the error."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    if px.init().rank() == poor:
        resource.setrlimit(resource.RLIMIT_NOFILE, (n_descriptors(), limits[1]))
        with suppress(OSError):
            while True:  # numbers below the limit that are free
                taken.append(os.open(os.devnull, os.O_RDONLY))
    try:
        px.init().split(0)
    except px.DistributedError as error:
        return type(error).__name__, str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in taken:
            os.close(fd)
    return "", "it did not fail"


def sum_in_split() -> int:
    """Count the ranks of a split of all."""
    with px.init().split(0) as part:
        return int(px.all_sum(1, group=part))
