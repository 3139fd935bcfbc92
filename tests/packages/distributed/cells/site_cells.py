"""Cells whose lines are named in errors: each call stands on a line of its own.

`line_of` finds the number of a line by the words it ends with.
"""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np

import phalanx as px

HELD: dict[str, px.Group] = {}


def line_of(mark: str, file: str = __file__) -> str:
    """``site_cells.py:12`` of the line that ends with this comment."""
    path = Path(file)
    lines = path.read_text(encoding="utf-8").splitlines()
    (number,) = (at for at, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))
    return f"{path.name}:{number}"


def differ(what: str, odd: int) -> None:
    """Rank ``odd`` calls something else than the others, or the same in another way."""
    group, ones = px.init(), np.ones(6)
    is_odd = group.rank() == odd
    if what == "op" and is_odd:
        px.all_max(ones)  # odd op
    elif what == "dtype" and is_odd:
        px.all_sum(ones.astype("float32"))  # odd dtype
    elif what == "shape" and is_odd:
        px.all_sum(ones.reshape(2, 3))  # odd shape
    elif what == "size" and is_odd:
        px.all_sum(np.ones(400_000))  # odd size
    elif what == "gather":
        if is_odd:
            px.all_gather(ones[:4])  # odd gather
        px.all_gather(ones)  # common gather
    elif what == "root":
        if is_odd:
            px.broadcast(ones, 1)  # odd root
        px.broadcast(ones, 0)  # common root
    elif what == "order" and is_odd:
        group.barrier()  # odd order
        px.all_sum(ones)
    elif what == "async" and is_odd:
        work = px.all_sum(ones.reshape(2, 3), async_op=True)  # odd async
        work.wait()
    elif what == "split":
        part = group.split(0)
        assert part is not None
        if is_odd:
            part.barrier()  # odd split
        px.all_sum(ones, group=part)  # common split
    else:
        px.all_sum(ones)  # common
        group.barrier()


def behind_a_work() -> None:
    """Rank 1's call is carried out by the group's thread, as another is under way."""
    if px.init().rank() == 1:  # it comes when the others have made their second call
        px.all_sum(np.ones(3))
        px.all_sum(np.ones(5))  # odd behind
    work = px.all_sum(np.ones(3), async_op=True)
    px.all_sum(np.ones(4))  # common behind
    work.wait()


def messages(count: int) -> None:
    group = px.init()
    if group.rank() == 0:
        px.send(np.ones(count), 1)  # send
    if group.rank() == 1:
        px.recv((3,), "int64", 0)  # recv
    group.barrier()


def sum_within(timeout: float | None) -> None:
    px.all_sum(np.ones(4, np.float32), timeout=timeout)  # sum


def split_without_first() -> None:
    """Hold a split of all ranks but the first."""
    world = px.init()
    part = world.split(None if world.rank() == 0 else 0)
    if part is not None:
        HELD["part"] = part


def sum_in_part(timeout: float | None) -> None:
    px.all_sum(np.ones(4, np.float32), group=HELD["part"], timeout=timeout)


def limit_group(limit: float) -> list[float | None]:
    """Limit the group; the limits of a split before, of one after, and of that one's split."""
    group = px.init()
    part = group.split(0)
    assert part is not None
    group.timeout = limit
    inner = part.split(0)
    assert inner is not None
    before = part.timeout
    part.timeout = 2 * limit
    last = part.split(0)
    assert last is not None
    group.barrier()
    return [before, inner.timeout, last.timeout]


def sum_as_group_limits(limit: float | None) -> str:
    """Sum with no limit in the call, where rank 1 stays away; what the error says."""
    px.init().timeout = limit
    try:
        px.all_sum(1.0)
    except px.CollectiveTimeout as error:
        return str(error)
    finally:
        px.init().timeout = None
    raise AssertionError


def receive_without_limit(source: int) -> None:
    try:
        px.recv_like(np.ones(1), source, timeout=float("inf"))
    finally:
        px.init().timeout = None


def wait_to_be_seen() -> float:
    return px.all_sum(1.0)  # seen


def interrupted(what: str, after: float) -> str:
    """A signal that comes while it is looked up where this rank stands must not be lost."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, after)
        px.recv((3,), "float64", 1) if what == "recv" else px.all_sum(1.0)
    except KeyboardInterrupt:
        return "interrupted"
    return ""
