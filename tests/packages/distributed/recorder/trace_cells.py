"""What ranks of the farm run to look at their flight recorder."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
from support.promise import PATIENCE_S

import phalanx as px
from phalanx.distributed.control import ControlPage


def since(number: int) -> np.ndarray:
    """Records from one on, as plain arrays: they travel."""
    records = px.trace()
    return np.asarray(records[records.number >= number])


def next_number() -> int:
    records = px.trace()
    return int(records.number[-1]) + 1 if len(records) else 0


def every_kind() -> tuple[np.ndarray, int, int]:
    """One of each kind; what was recorded, and when it was begun and over."""
    first, begun = next_number(), time.monotonic_ns()
    group = px.init()
    rank, size = group.rank(), group.size()
    px.all_sum(np.ones(1000, np.float32))
    px.all_max(np.ones(200_000, np.int64))
    px.all_gather(np.ones(3, np.int8))
    px.broadcast(np.ones(5), root=size - 1)
    px.sum_scatter(np.ones(size))
    px.all_to_all(np.ones(size))
    group.barrier()
    half = group.split(rank % 2)
    px.all_sum(1, group=half)
    px.all_min(np.ones(7), async_op=True).wait()
    if rank == 0:
        px.send(np.ones(11, np.uint8), 1)
    elif rank == 1:
        px.recv((11,), np.uint8, 0)
    group.barrier()
    return since(first), begun, time.monotonic_ns()


def many(count: int) -> np.ndarray:
    x = np.ones(1)
    for _ in range(count):
        px.all_sum(x)
    return np.asarray(px.trace())


def late(release: int) -> Any:
    """One rank comes when all others wait; what they are seen to do, from other threads of theirs."""
    group = px.init()
    first = next_number()
    if group.rank() == release:
        for peer in range(group.size()):
            if peer != release:
                px.recv((1,), np.float64, peer)
        px.all_sum(np.ones(2))
        return since(first)
    seen: list[np.ndarray] = []

    def look() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            records = since(first)
            sums = records[records["op"] == "all_sum"]
            if len(sums) and sums[-1]["state"] == "running":
                seen.append(records)
                break
            time.sleep(0.001)
        px.send(np.ones(1), release)

    thread = threading.Thread(target=look)
    thread.start()
    px.all_sum(np.ones(2))
    thread.join()
    return seen, since(first)


def fail(which: str) -> np.ndarray:
    """The records after an operation has failed."""
    rank, first = px.init().rank(), next_number()
    try:
        if which == "mismatch":
            px.all_sum(np.ones(2 + rank % 2))
        elif rank:
            px.all_sum(np.ones(2), timeout=0.2 if rank == 1 else None)
        else:
            px.recv((1,), np.float64, 1)
    except px.DistributedError:
        pass
    return since(first)


def counters(count: int, nbytes: int) -> list[Any]:
    """Of all slots of this rank's host, as the supervisor sees them: before, and after sums."""
    group = px.init()
    memory = group._current.registry.memory
    page: ControlPage = memory.page
    group.barrier()
    before = [page.counters(slot) for slot in range(group.size())]
    group.barrier()
    x = np.ones(nbytes, np.int8)
    for _ in range(count):
        px.all_sum(x)
    group.barrier()
    return [before, [page.counters(slot) for slot in range(group.size())]]
