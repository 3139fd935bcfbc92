"""What ranks of the farm run to split groups and to hand operations over."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from distributed.cells.texts import text_of
from distributed.cells.work_cells import submit_sum, world
from support.promise import PATIENCE_S

import phalanx as px
from phalanx import _native


def members_of(group: px.Group | None) -> list[int] | None:
    """Who is in it, as the ranks themselves say."""
    if group is None:
        return None
    return np.atleast_1d(px.all_gather(world().rank(), group=group)).tolist()


def split_by(colors: list[int | None], keys: list[int] | None = None) -> Any:
    """Split the world; the members of this rank's part, and its rank there."""
    rank = world().rank()
    group = world().split(colors[rank], -1 if keys is None else keys[rank])
    if group is None:
        return None
    with group:
        found = members_of(group)
        total = px.all_sum(np.arange(100_000.0), group=group)
        assert (total == np.arange(100_000.0) * group.size()).all()
        assert px.broadcast(rank, root=group.size() - 1, group=group) == found[-1]
        group.barrier()
        assert found == group.describe()["members"]
        return found, group.rank(), group.describe()["transports"]


def described_split() -> dict[str, Any]:
    """What the one half of a split, turned around, says of itself."""
    with world().split(7, key=world().size() - world().rank()) as group:
        group.barrier()
        return group.describe()


def split_of_a_split() -> list[Any]:
    """Halves, then pairs turned around, then one by one; every one works in between."""
    rank = world().rank()
    half = world().split(rank // 4)
    pair = half.split(half.rank() // 2, key=-half.rank() + 10)
    found = [members_of(half), members_of(pair), members_of(world())]
    alone = pair.split(pair.rank())
    found += [members_of(alone), alone.describe()["members"], alone.size()]
    try:
        alone.split(0)
    except px.DistributedError as error:
        found.append(str(error))
    found += [members_of(pair), members_of(half)]
    for group in (half, alone, pair):  # in any order
        group.close()
    return found


def split_twice_by_garbage() -> list[int]:
    """Splits that nobody holds give their channels back; which channels they had."""
    channels = []
    gc.freeze()  # what this process has loaded is not looked at again and again
    for _ in range(_native.Group.CHANNELS + 4):
        group = world().split(0)
        channels.append(group._current.spec.channel)
        members_of(group)
        world().barrier()
        engine = group._current.engine
        del group
        gc.collect()
        assert engine.is_closed
    gc.unfreeze()
    return channels


def submit_to_garbage() -> list[float]:
    """Operations of a split that nobody holds any more, nor them, come to their end."""
    group = world().split(0)
    out = submit_sum(100_000, group)[2]
    del group
    gc.collect()
    world().barrier()
    world().split(0)  # looks after what was left
    deadline = time.monotonic() + PATIENCE_S
    wanted = np.arange(out.size) * world().size()
    while not np.array_equal(out, wanted) and time.monotonic() < deadline:
        time.sleep(0.001)
    return [out[1], out[-1]]


def too_many_splits() -> list[str]:
    """Split until it is refused; then close one, and it works again."""
    held, said = [], []
    for _ in range(_native.Group.CHANNELS + 1):
        try:
            held.append(world().split(0))
        except px.DistributedError as error:
            said.append(str(error))
    held.pop().close()
    world().barrier()
    held.append(world().split(0))
    said.append(str(members_of(held[-1])))
    for group in held:
        group.close()
    return [str(len(held)), *said]


def split_or_sum(who_sums: int) -> None:
    if world().rank() == who_sums:
        px.all_sum(np.ones(3))
    else:
        world().split(0)


WRONG = [
    "TypeError: color must be an int or None, not str",
    "TypeError: color must be an int or None, not float",
    "TypeError: key must be an int, not str",
    f"ValueError: color must be less than 2**63, not {1 << 63}",
]


def wrong_splits() -> list[str]:
    """What is refused, then what is just no color."""
    wrong = (("red",), (1.5,), (0, "first"), (1 << 63,))
    said = [text_of(world().split, *arguments) for arguments in wrong]
    assert world().split(-(1 << 64)) is None
    return said


def in_threads(*bodies: Any) -> None:
    """Run all at the same time; what one raises is raised."""
    raised = []

    def run(body: Any) -> None:
        try:
            body()
        except BaseException as error:  # noqa: BLE001  # raised below
            raised.append(error)

    threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def splits_at_once(count: int) -> list[Any]:
    """Two threads split two groups again and again."""
    first = world().split(0)
    found = []

    def body(parent: px.Group) -> Any:
        def run() -> None:
            for _ in range(count):
                group = parent.split(0)
                found.append(members_of(group))
                group.close()

        return run

    in_threads(body(world()), body(first))
    first.close()
    return found


def fail_in_split(color: list[int]) -> str:
    """Rank 3 and rank 1 disagree in their split; the others wait in the world."""
    rank = world().rank()

    def call() -> None:
        group = world().split(color[rank])
        if rank in (1, 3):
            px.all_sum(np.ones(3 if rank == 3 else 4), group=group)
        else:
            world().barrier()

    return text_of(call)


def hold_split() -> int:
    holder: Any = sys.modules[__name__]
    holder.held = world().split(0)
    return holder.held._current.spec.epoch


def use_held() -> list[str]:
    held = sys.modules[__name__].held  # type: ignore[attr-defined]
    said = [repr(held), str(members_of(held)), str(members_of(held.split(0)))]
    held.close()
    return [*said, repr(held)]


def fork_with_splits() -> str:
    """What a forked child is told; the split goes on in the parent."""
    group = world().split(0)
    works = [submit_sum(100, group)[0]]
    works[0].wait()
    reader, writer = os.pipe()
    sys.stdout.flush()
    if not (pid := os.fork()):
        for use in (group.barrier, works[0].wait, lambda: px.all_sum(1)):
            os.write(writer, text_of(use).encode())
        group.close()
        del group, works
        gc.collect()
        sys.exit()
    os.waitpid(pid, 0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    assert members_of(group) is not None
    submit_sum(100, group)[0].wait()
    group.close()
    return said


def resources() -> tuple[int, int, int]:
    """Open descriptors, threads, resident KiB."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    fds = len(list(Path("/proc/self/fd").iterdir()))
    return fds, int(status["Threads"]), int(status["VmRSS"].split()[0])


def split_many(count: int) -> list[tuple[int, int, int]]:
    """Resources after a few splits, and three times after ``count`` more."""
    found = []
    for rounds in (20, count, count, count):
        for number in range(rounds):
            group = world().split(world().rank() % 2 if number % 2 else 0)
            px.all_sum(np.ones(1000), group=group)
            submit_sum(10, group)[0].wait()
            group.close()
        world().barrier()
        found.append(resources())
    return found
