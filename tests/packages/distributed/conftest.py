"""Fixtures of this room: ranks as real processes."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from distributed.cells import cells
from distributed.farm.farm import Farm, World
from distributed.farm.formations import FORMATIONS, worlds
from distributed.farm.meeting import Meeting
from support.promise import PATIENCE_S
from support.runs.tiers import deep_but

from phalanx.distributed import control
from phalanx.distributed.connect.endpoints import Share

FEW = ["1 arena", "2 arena", "4 arena", "2 tcp", "3 tcp", "2+1 composed", "2+2 interleaved"]
# Each algorithm in each formation, odd and even: the first tier.
FIRST = {
    *("1 arena", "2 arena", "3 arena", "2 tcp", "3 tcp", "7 tcp"),
    *("2+1 composed", "2+2 interleaved", "3+1+1 composed"),
}
FIRST_OF_FEW = {"2 arena", "3 tcp", "2+2 interleaved"}


@pytest.fixture(scope="session")
def farm() -> Iterator[Farm]:
    farm = Farm()
    yield farm
    farm.close()


@pytest.fixture
def rank_pool(farm: Farm) -> Callable[..., World]:
    """Give worlds: ``rank_pool(size, hosts=(0, 0, 1), transport="tcp")``."""
    return farm.world


class Clock:
    """The clock of deadlines: it goes on as ever, and further on when the test says so."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead_s

    def jump(self, seconds: float) -> None:
        self._ahead_s += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """Let the time limits of ranks that are threads pass when the test has seen what it waits for."""
    clock = Clock()
    monkeypatch.setattr(control, "time", clock)
    return clock


@pytest.fixture
def meet() -> Iterator[Callable[[int], Meeting]]:
    with ThreadPoolExecutor(8) as executor:
        yield lambda size: Meeting(executor, size)


@pytest.fixture
def knock() -> Iterator[Callable[..., socket.socket]]:
    with ExitStack() as stack:

        def connect(share: Share, data: bytes = b"") -> socket.socket:
            endpoint = share.endpoints[0]
            sock = stack.enter_context(socket.create_connection((endpoint.host, endpoint.port)))
            sock.settimeout(PATIENCE_S)
            sock.sendall(data)
            return sock

        yield connect


world = worlds(deep_but(FIRST, FORMATIONS))
few_worlds = worlds(deep_but(FIRST_OF_FEW, FEW))


@pytest.fixture
def ring_only(farm):
    """Give worlds of single ranks that go around the ring with the smallest array, too."""

    def make(size: int) -> World:
        usual = farm.world(size, transport="tcp")
        thresholds = dict.fromkeys(("mesh_bytes", "direct_bytes", "mesh_broadcast_bytes"), 0)
        usual.run(cells.follow, thresholds)
        world = farm.unformed(size, (0,) * size, "tcp")
        world.run(cells.join)
        return world

    yield make
    farm._world.run(cells.follow, {})
    farm._world.is_good = False  # of no use to other tests
