"""What ranks of the farm run to hand operations over."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
from distributed.cells.texts import text_of

import phalanx as px


def world() -> px.Group:
    return px.init()


def submit_sum(length: int, group: px.Group | None = None, **options: Any) -> Any:
    x = np.arange(float(length))
    out = np.empty_like(x)
    return (group or world())._current.engine.submit("all_sum", x, out, **options), x, out


def wait_for_each(count: int, limit: float) -> None:
    """Submit several operations, then wait for each, with a limit or (0) without."""
    works = [submit_sum(3)[0] for _ in range(count)]
    for work in works:
        work.wait(limit or None)


def submit_many(count: int) -> int:
    """Submissions of several operations, and calls in between."""
    size = world().size()
    n_right = 0
    for _ in range(count):
        sums = [submit_sum(length) for length in (3, 70_000, 0, 10)]
        gathered = np.empty(2 * size, np.int64)
        mine = np.full(2, world().rank())
        gather = world()._current.engine.submit("all_gather", mine, gathered)
        barrier = world()._current.engine.submit("barrier", None, None)
        assert px.all_sum(1) == size
        assert barrier.done
        gather.wait()
        assert (gathered == np.repeat(np.arange(size), 2)).all()
        for work, x, out in reversed(sums):
            work.wait()
            work.wait(0)
            n_right += bool((out == x * size).all())
    return n_right


class Noted(np.ndarray):
    """An array whose end is noted."""

    freed = 0

    def __del__(self) -> None:
        Noted.freed += 1


def dropped_arrays() -> list[int]:
    """How many arrays are freed: while operations are queued, and after them."""
    Noted.freed = 0
    rank, size = world().rank(), world().size()
    gone = np.zeros(1)
    for _ in range(5):
        x = np.ones(1000).view(Noted)
        world()._current.engine.submit("all_sum", x, np.empty(1000).view(Noted))
        del x
    found = [Noted.freed if rank == 0 else 0]  # rank 0 is there long before the others
    works = [submit_sum(10)[0] for _ in range(3)]
    for work in works:
        work.wait()
    gone[:] = px.all_sum(1)
    assert gone[0] == size
    found.append(Noted.freed)
    return found


def arrays_left() -> int:
    """How many of the arrays of an operation live after it, which nobody else holds."""
    x = np.ones(100_000)
    out = np.empty_like(x)
    held = [weakref.ref(x), weakref.ref(out)]
    px.all_sum(x, out=out, async_op=True).wait()
    del x, out
    return sum(array() is not None for array in held)


def wait_too_short(wait_s: float, is_over: Path) -> list[Any]:
    """Wait too short for the others, make the file ``is_over``, then wait for as long as it takes."""
    work, x, out = submit_sum(100)
    said: list[Any] = [work.done]
    try:
        work.wait(wait_s)
    except px.CollectiveTimeout as error:
        said.append(str(error))
    is_over.touch()
    said.append(repr(world()))
    work.wait()
    said.append(bool((out == x * world().size()).all()))
    return said


def submit_and_wait(
    length: int, timeout: float | None = None, behind: int = 0, call: bool = False
) -> bool:
    """Wait for an operation behind others; or call one."""
    held = [submit_sum(3) for _ in range(behind)]
    if call:
        px.all_sum(np.ones(length), timeout=timeout)
        return True
    work, x, out = submit_sum(length, timeout=timeout)
    try:
        work.wait()
    finally:
        assert work.done
    assert all(work.done for work, _, _ in held)
    return bool((out == x * world().size()).all())


def queue_then_fail() -> list[str]:
    """Rank 0 submits what does not fit, and others behind it."""
    said = []
    first, behind = submit_sum(3 + (world().rank() == 0)), []
    for length in (5, 6):
        try:  # the first may have failed already, then these cannot even be submitted
            behind.append(submit_sum(length))
        except px.DistributedError as error:
            said.append(f"{type(error).__name__}: {error}")
    said += [text_of(work.wait) for work, _x, _out in behind]
    del first, behind
    uses = (world().barrier, lambda: submit_sum(3), lambda: px.all_sum(1))
    return said + [text_of(use) for use in uses]


def close_with_queued() -> list[str]:
    works = [submit_sum(100)[0] for _ in range(3)]
    world().close()
    return [text_of(work.wait) for work in works if work.done]
