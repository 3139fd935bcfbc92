"""What ranks of the farm run to fail, to recover, and to see what came back."""

from __future__ import annotations

import gc
import signal
import threading
import time
from typing import Any

import numpy as np
from distributed.cells.split_cells import resources
from distributed.cells.texts import text_of
from distributed.operations import contract
from distributed.operations.contract import Case

import phalanx as px
from phalanx.distributed import world_spec
from phalanx.distributed.control import AbortKind
from phalanx.distributed.group import registry

HOWS = ["mismatch", "timeout", "interrupt", "abort", "message"]
HELD: dict[str, Any] = {}
MAKE_GROUP = registry.make_group


def check(group: px.Group, length: int = 5000) -> None:
    """Every kind of operation gives the right values in this group."""
    counts = {"all_sum": length, "all_gather": 2, "broadcast": 1, "all_to_all": 30_000, "send": 100}
    how = {"seed": px.init().describe()["epoch"], "root": group.size() - 1}
    contract.check_here([Case(op, (n,), "float64", **how) for op, n in counts.items()], group)


def fail(how: str, odd: int) -> str:
    """Fail on every rank, rank ``odd`` being the reason; what this one was told."""
    group = px.init()
    is_odd, peer = group.rank() == odd, (odd + 1) % group.size()
    x = np.ones(1000)
    try:
        # Nobody is in what was before when the first goes on: the sender is in no
        # operation. (A peer's that times out fails this as well, where it takes its time.)
        others = [other for other in range(group.size()) if other != odd]
        for other in others if is_odd else ():
            px.recv((), "int64", other)
        for other in others if is_odd else (odd,):
            px.send(0, other)
        if not is_odd:
            px.recv((), "int64", odd)
        if how == "mismatch":
            px.all_sum(x[:10] if is_odd else x)
        elif how == "timeout":
            _ = None if is_odd else px.all_sum(x, timeout=0.05)
        elif how == "interrupt":
            if is_odd:
                signal.signal(signal.SIGALRM, signal.default_int_handler)
                signal.setitimer(signal.ITIMER_REAL, 0.02)
            px.recv((3,), "float64", peer) if is_odd else px.all_sum(x)
        elif how == "abort":
            _ = (
                group._current.engine.abort(AbortKind.ERROR, odd, "mine")
                if is_odd
                else px.all_sum(x)
            )
        elif how == "message":
            if is_odd:
                px.send(x[:3], peer)
            elif group.rank() == peer:
                px.recv((4,), "float64", odd)
            px.all_sum(x)
    except (px.DistributedError, KeyboardInterrupt) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def fail_and_recover(how: str, odd: int) -> tuple[str, int, int, bool]:
    """What was said, the epochs before and after, and whether the group is one object."""
    group = px.init()
    check(group)
    before = group.describe()["epoch"]
    said = fail(how, odd)
    again = px.recover(10.0)
    check(again)
    return said, before, again.describe()["epoch"], again is group is px.init()


def recover(timeout: float | None = 10.0) -> int:
    return px.recover(timeout).describe()["epoch"]


def hold_splits() -> list[int]:
    """Two halves and a pair in each of them, rows across, and one alone."""
    world = px.init()
    rank = world.rank()
    half = world.split(rank // 2)
    HELD["half"], HELD["odd"] = half, world.split(rank % 2, key=-rank + 10)
    if half.size() > 1:
        HELD["pair"] = half.split(0, key=10 - half.rank())
        HELD["alone"] = half.split(half.rank())
    HELD["all"] = world.split(0)
    HELD["some"] = world.split(None if rank == 0 else 5)
    return shapes()


def shapes() -> list[Any]:
    """What each held split is, by its name."""
    return [
        None
        if group is None
        else (group.rank(), group.describe()["members"], group.describe().get("color"))
        for group in HELD.values()
    ]


def check_held() -> list[Any]:
    """Use all of them; what they are."""
    identities = {name: id(group) for name, group in HELD.items()}
    for group in HELD.values():
        if group is not None:
            check(group)
    assert identities == {name: id(group) for name, group in HELD.items()}
    world = px.init()
    fresh = world.split(world.rank() % 2)
    check(fresh, 10)
    fresh.close()
    return shapes()


def close_or_lose(closer: int, loser: int) -> None:
    """Rank ``closer`` closes the halves' pair, ``loser`` drops the group of all."""
    rank = px.init().rank()
    if rank == closer:
        HELD["pair"].close()
    if rank == loser:
        del HELD["all"]
        gc.collect()


def say(name: str) -> str:
    """What a held split says when it is used; "None": it works."""
    return text_of(HELD[name].barrier, 5.0)


def drop_held() -> None:
    HELD.clear()
    gc.collect()


def wait_late(odd: int) -> list[Any]:
    """An operation that was handed over fails; it is waited for when its array holds another's."""
    group = px.init()
    x, out = np.ones(70_000), np.zeros(70_000)
    work = px.all_sum(x, out=out, async_op=True, timeout=0.1) if group.rank() != odd else None
    if work is not None:
        while not work.done():
            time.sleep(0.001)
    px.recover(10.0)
    px.all_sum(x, out=out)
    said = "" if work is None else text_of(work.wait)
    check(group)
    return [said, bool((out == group.size()).all())]


def use_closed() -> list[Any]:
    """Close; an operation is refused and touches nothing. Then all come back."""
    group = px.init()
    group.close()
    found: list[Any] = []
    for dtype in ("float64", "int64"):
        out = np.full(4, 7, dtype)
        found += [text_of(px.all_sum, np.ones(4, dtype), out=out), out.tolist()]
    again = px.init(timeout=10.0)
    check(again)
    return [*found, again is group]


def close_in_vain_and_recover(stuck: int) -> tuple[bool, str, int]:
    """Rank ``stuck`` closes the group while its main thread is inside, in a handler of a signal.

    Whether the close came back before the handler, what was said, the epoch after recovery.
    """
    group = px.init()
    has_closed, was_in_vain, said = threading.Event(), False, ""

    def close() -> None:
        group.close()
        has_closed.set()

    def handle(*_: object) -> None:
        nonlocal was_in_vain
        threading.Thread(target=close).start()
        was_in_vain = has_closed.wait(20)

    try:
        if group.rank() == stuck:
            signal.signal(signal.SIGALRM, handle)
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            px.recv((3,), "float64", (stuck + 1) % group.size())
        else:
            group.barrier()
    except px.DistributedError as error:
        said = str(error)
    px.recover(20.0)
    check(group)
    return was_in_vain, said, group.describe()["epoch"]


def close_and_come_back(alone: int) -> str:
    """Only rank ``alone`` closes and calls init; the others go on as if nothing was."""
    group = px.init()
    if group.rank() != alone:
        return text_of(group.barrier, 5.0)
    group.close()
    return text_of(px.init, timeout=0.5)


def sum_large(nbytes: int) -> list[Any]:
    """Sum forever; when it ends, what was said and whether what is there is right or invalid."""
    group = px.init()
    size, rank = group.size(), group.rank()
    x = np.empty(nbytes // 8)
    out = np.zeros_like(x)
    HELD["x"], HELD["out"] = x, out
    n = 0
    while True:
        x[:] = n + rank
        try:
            px.all_sum(x, out=out)
        except px.DistributedError as error:
            return [f"{type(error).__name__}: {error}", bool(np.isnan(out).all())]
        assert (out == n * size + size * (size - 1) / 2).all()
        n += 1


def reuse(value: float) -> int:
    """Use the arrays and the arena for something else, twice; how often it was right."""
    group = px.init()
    n_right = 0
    x, out = HELD["x"], HELD["out"]
    for i in range(2):
        x[:] = value + i
        px.all_sum(x, out=out)
        n_right += bool((out == (value + i) * group.size()).all())
    return n_right


def storm(seed: int, count: int) -> list[Any]:
    """Fail and recover ``count`` times, in ways and with ranks drawn alike on every rank.

    Returns the last epoch, and resources after each quarter.
    """
    draws = np.random.default_rng(seed)
    group = px.init()
    hold_splits()
    found = []
    for number in range(count):
        how = str(draws.choice(HOWS))
        said = fail(how, int(draws.integers(group.size())))
        assert said or how in ("timeout", "abort"), how
        assert px.recover(20.0) is group
        check(group, int(draws.integers(1, 60_000)))
        for held in HELD.values():
            assert held is None or px.all_sum(number, group=held) == number * held.size()
        if (number + 1) % (count // 4) == 0:
            check_held()
            group.barrier()
            group._current.registry.reap()  # descriptors of a split that the others had yet to leave
            found.append(resources())
    drop_held()
    return [group.describe()["epoch"], *found]


def break_splits(rank: int) -> None:
    """From now on rank ``rank`` cannot form splits, as if its memory was used up."""

    def refuse(spec: world_spec.WorldSpec, *rest: Any) -> Any:
        if spec.number:
            raise OSError(12, "Cannot allocate memory")
        return MAKE_GROUP(spec, *rest)

    if px.init().rank() == rank:
        registry.make_group = refuse


def mend_splits() -> None:
    registry.make_group = MAKE_GROUP
