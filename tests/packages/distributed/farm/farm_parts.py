"""What the farm's supervisor owns and knows: the memory of a (pretended) host, and one epoch."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from phalanx.distributed import control
from phalanx.distributed.control import ControlPage
from phalanx.protocol import EpochAborted
from phalanx.supervisor.world.state import WorldState

CAPACITY = 8
CELL_S = 60.0  # a cell may be a whole grid of calls, by eight ranks on two cores that are busy


class Cells:
    """A rank's process that runs the cells it is sent (`farm_rank.serve`), at a connection's end."""

    def __init__(self, rank: int, control: Connection) -> None:
        self.rank = rank
        self.control = control
        self.is_busy = False

    def send(self, cell: Callable[..., Any], *args: Any) -> None:
        self.control.send((cell, args))
        self.is_busy = True

    def receive(self, timeout: float = CELL_S) -> Any:
        """Return what the cell returned or raised; TimeoutError if it is still running."""
        if not self.control.poll(timeout):
            msg = f"rank {self.rank} is still busy after {timeout} s"
            raise TimeoutError(msg)
        self.is_busy = False
        try:
            return self.control.recv()
        except (EOFError, ConnectionResetError):
            return ProcessLookupError(f"rank {self.rank} is gone")


class Host:
    """What the supervisor of one (pretended) host owns."""

    def __init__(self) -> None:
        self.page_fd = control.create_page(CAPACITY)
        self.region_fds = tuple(control.create_region() for _ in range(CAPACITY))
        self.wake_fds = tuple(control.create_wake() for _ in range(CAPACITY))
        self.page = ControlPage(
            self.page_fd, slots=CAPACITY, author=CAPACITY, wake_fds=self.wake_fds
        )

    @property
    def fds(self) -> tuple[int, ...]:
        return (self.page_fd, *self.region_fds, *self.wake_fds)

    def close(self) -> None:
        self.page.close()
        for fd in self.fds:
            os.close(fd)


@dataclass
class Plan:
    """One world: who is where, and what the ranks have said of its epoch."""

    size: int
    hosts: tuple[int, ...]
    transport: str
    state: WorldState
    with_memory: bool = True
    addresses: tuple[str, ...] = ("127.0.0.1",)  # all at once
    addresses_of: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # by rank
    connections_per_ip: int = 1
    silence_s: float = 5.0
    reroute: Callable[[int, int, bytes], bytes] = lambda number, rank, data: data
    rounds: dict[int, set[int]] = field(default_factory=dict)  # the ranks that came to each
    aborts: list[tuple[int, EpochAborted]] = field(default_factory=list)
    told: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def slots(self) -> tuple[int, ...]:
        return tuple(self.hosts[:rank].count(self.hosts[rank]) for rank in range(self.size))
