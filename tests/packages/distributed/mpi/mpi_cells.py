"""What ranks of an `MpiWorld` run beside the cells that other backends run as well."""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import Any

import numpy as np
from distributed.operations import contract
from distributed.operations.contract import Case
from support.promise import PATIENCE_S

import phalanx as px
from phalanx import _native
from phalanx.distributed.mpi import moves
from phalanx.distributed.mpi.world import AbortedError, Reason


def engine_of_world() -> Any:
    return px.init()._current.engine


def text_of(kind, call, *arguments, **options) -> str:
    """Return what an error says that a call must raise."""
    try:
        call(*arguments, **options)
    except kind as error:
        return str(error)
    msg = f"nothing was raised by rank {px.init().rank()}"
    raise AssertionError(msg)


# What leaves the group good


def public() -> str:
    """Call the functions that users call; return the name of the library."""
    group = px.init()
    rank, size = group.rank(), group.size()
    assert px.init(backend="mpi") is group
    assert px.all_sum(rank) == size * (size - 1) // 2
    described = group.describe()
    assert described["transports"][(rank + 1) % size] == ("mpi" if size > 1 else "self")
    assert f"rank {rank} of {size}" in repr(group)
    group.barrier(timeout=60.0)
    return described["engine"]["library"].split()[0]


def limit_moves(max_count: int, piece_nbytes: int, unit_nbytes: int) -> tuple[int, int, int]:
    """Have arrays cut up that are larger than these; return the limits until now."""
    usual = moves.MAX_COUNT, moves.PIECE_NBYTES, moves._UNIT_NBYTES
    moves.MAX_COUNT, moves.PIECE_NBYTES, moves._UNIT_NBYTES = (
        max_count, piece_nbytes, unit_nbytes,
    )  # fmt: skip
    return usual


def check_in_part(cases: list[Case]) -> None:
    """Make calls in a part of every other rank, turned around."""
    group = px.init()
    color = group.rank() % 2
    with group.split(color, key=group.size() - group.rank()) as part:
        mine = [rank for rank in reversed(range(group.size())) if rank % 2 == color]
        assert part._current.engine.members == tuple(mine)
        assert len(part.describe()["hosts"]) == part.size() == len(mine)
        contract.check_here(cases, part)


def news_left_by_splits() -> int:
    """Make and close splits; how many more groups the rank keeps news of."""
    group = px.init()
    before = len(group._current.engine._world.received)
    assert group.split(None if group.rank() else 2**63 - 1) is None or group.rank() == 0
    assert group.split(-7) is None
    for _ in range(20):
        with group.split(0) as part:
            assert px.all_sum(1, group=part) == group.size()
    group.barrier()
    assert "the group is closed" in text_of(px.DistributedError, part.barrier)
    gc.collect()
    group.barrier()
    return len(group._current.engine._world.received) - before


def dropped() -> None:
    """Have splits closed by garbage collections alone, in the midst of whatever runs."""
    group = px.init()
    thresholds = gc.get_threshold()
    gc.set_threshold(50)
    for _ in range(150):
        cycle: list[Any] = [part := group.split(0)]
        cycle.append(cycle)
        part.barrier()
        del part, cycle
    gc.set_threshold(*thresholds)
    group.barrier()


def forked_waiting() -> None:
    """A work that was submitted before a fork is refused in the child, which has no such thread."""
    group = px.init()
    part = group.split(0)
    if group.rank() == 0:
        work = px.all_sum(np.ones(3), group=part, async_op=True)
        if (pid := os.fork()) == 0:
            said = ""
            try:
                work.wait(timeout=5)
            except px.DistributedError as error:
                said = str(error)
            os._exit(0 if "fork" in said else 1)
        assert os.waitpid(pid, 0)[1] == 0
        for rank in range(1, group.size()):
            px.send(np.ones(1), rank)
        assert work.wait(timeout=20).tolist() == [group.size()] * 3
    else:
        px.recv((1,), np.float64, 0)
        px.all_sum(np.ones(3), group=part)
    part.close()


def closed_by_the_sender() -> None:
    """A message that never comes, of a rank that took part in more operations and then closed."""
    part = px.init().split(0)
    for _ in range(3):
        px.all_sum(1, group=part)
    if part.rank() == 1:
        part.close()
        return
    told = text_of(px.DistributedError, lambda: px.recv((1,), "int8", 1, group=part, timeout=30))
    assert "rank 1 closed the group" in told, told


def closed_as_submitted() -> None:
    """A group that another thread closes just as something is submitted takes it no more."""
    part = px.init().split(0)
    engine = part._current.engine
    count = engine._deadline

    def count_and_close(timeout):
        closing = threading.Thread(target=engine.close)
        closing.start()
        closing.join()
        return count(timeout)

    engine._deadline = count_and_close
    before = threading.active_count()
    text_of(px.DistributedError, px.all_sum, np.ones(3), group=part, async_op=True)
    assert threading.active_count() == before


# What ends the world: each returns what this rank is told


def hear_of_failure() -> str:
    """Call nothing until the world is known to have failed; then what a call says."""
    engine = engine_of_world()
    deadline_s = time.monotonic() + PATIENCE_S
    while engine.failure is None and time.monotonic() < deadline_s:
        engine._world.listen()
        time.sleep(0.001)
    return text_of(px.DistributedError, engine.run, "barrier")


def mismatch(where: str) -> str:
    engine = engine_of_world()
    rank = engine.rank
    if where == "split":
        engine = engine.part(0 if rank else 1)
        if rank == 0:
            # Not in it, and told all the same: an epoch ends for the world and all its parts.
            return hear_of_failure()
    x = np.ones((2, 300) if rank == 1 else 600, np.float32)
    out = np.zeros_like(x)
    said = text_of(px.CollectiveMismatch, engine.run, "all_sum", x, out)
    assert not out.any()
    assert text_of(px.CollectiveMismatch, engine.run, "barrier") == said
    return said


def mismatch_and_missing() -> str:
    """Two that differ are told so, though the third never comes."""
    engine = engine_of_world()
    if engine.rank == 2:
        return hear_of_failure()
    x = np.ones(1 + engine.rank, np.float32)
    return text_of(px.CollectiveMismatch, engine.run, "all_sum", x, x.copy())


def pair_mismatch() -> str:
    engine = engine_of_world()
    x = np.ones(9 + engine.rank * 20_000)
    if engine.rank == 0:
        engine.run("send", x, None, 1)
        return text_of(px.CollectiveMismatch, engine.run, "barrier")
    return text_of(px.CollectiveMismatch, engine.run, "recv", None, x, 0)


def pair_timeout() -> str:
    engine = engine_of_world()
    if engine.rank == 1:
        return text_of(px.CollectiveTimeout, engine.run, "recv", None, np.empty(3), 0, timeout=0.3)
    return hear_of_failure()


def invalidated() -> str:
    """What fails after it was begun in an array that is its own out, leaves nothing of it."""
    x = np.arange(100_000, dtype=np.uint32)
    if px.init().rank() == 1:

        def fail(*_):
            reason = Reason(_native.ABORT_ERROR, 1, "rank 1 has had enough")
            raise AbortedError(reason)

        moves.Mover.all_reduce = fail  # type: ignore[method-assign]
    said = text_of(px.DistributedError, px.all_sum, x, out=x)
    assert (x == 2**32 - 1).all(), x
    return said


def sum_three(timeout: float | None = None) -> str:
    """Sum with the ranks that come; return the error about the others."""
    return text_of(px.CollectiveTimeout, px.all_sum, np.ones(3), timeout=timeout)


def receive(src: int) -> str:
    return text_of(px.DistributedError, px.recv, (1,), np.float64, src)


def barrier() -> None:
    px.init().barrier()
