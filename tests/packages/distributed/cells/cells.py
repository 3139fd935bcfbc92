"""What ranks of the farm run: each function here is a cell; it may use all public names."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from distributed.cells.texts import text_of
from distributed.operations.contract import DTYPES, Case, dtype_of, perform
from support.promise import BOUND_S

import phalanx as px
from phalanx.distributed.bootstrap import supervised


def join() -> int:
    return supervised.join(20.0).rank()


def follow(thresholds: dict[str, int]) -> None:
    """Choose algorithms by these thresholds from the next world on."""
    family = px.init()._current.registry
    assert family is not None
    family.memory.selector = thresholds


def join_with_wrong_timeouts() -> int:
    """Join as what is no timeout says, which loses nothing, and then for good."""
    for timeout in (-1, float("nan"), "soon"):
        with contextlib.suppress(ValueError, TypeError):
            supervised.join(timeout)
            raise AssertionError
    return join()


def join_in_a_loop() -> int:
    """Join as a cell does, which runs in the event loop of its thread."""

    async def cell() -> int:
        return join()

    return asyncio.run(cell())


def call(case: Case, timeout: float | None = None) -> np.ndarray:
    return perform(case, timeout=timeout)


def call_by_rank(cases: list[Case]) -> np.ndarray:
    return call(cases[px.init().rank()])


def announced(folder: str, cell: Callable[..., Any], *args: Any) -> Any:
    """Say by a file in ``folder`` that this rank has begun, then run the cell."""
    Path(folder, str(px.init().rank())).touch()
    return cell(*args)


def stream_of_sums(count: int, length: int) -> int:
    """Many sums, checked; how many were right."""
    group = px.init()
    total = sum(range(1, group.size() + 1))
    x = np.full(length, group.rank() + 1, np.int64)
    n_right = 0
    for _ in range(count):
        n_right += bool((px.all_sum(x) == total).all())
    return n_right


def endless_sums(length: int) -> None:
    x = np.ones(length, np.float32)
    while True:
        px.all_sum(x)


def receive_for_ever(source: int) -> None:
    px.recv((3,), "float32", source)


def timed_loss(what: str) -> tuple[int, float, str]:
    """Call what needs rank 1 until that is lost; who was named, when, and why."""
    calls: dict[str, Callable[[], object]] = {
        "recv": lambda: px.recv((3,), "float32", 1),
        "send": lambda: px.send(np.ones(50_000_000, "float32"), 1),
        "all_sum": lambda: px.all_sum(np.ones(3)),
    }
    try:
        calls[what]()
    except px.RankFailure as error:
        return error.rank, time.time(), error.reason
    raise AssertionError


def barrier(timeout: float | None = None) -> str:
    px.init().barrier(timeout)
    return repr(px.init())


def scalars() -> list[Any]:
    rank = px.init().rank()
    return [
        px.all_sum(rank + 1),
        px.all_sum(rank + 0.5),
        px.all_sum(np.float32(rank)),
        px.all_sum(np.int64(rank)),
        px.broadcast(rank + 5, root=px.init().size() - 1),
        px.all_gather(rank + 1),
        px.all_gather(np.asarray(rank + 0.5)),
        px.all_sum(np.asarray(float(rank))),
    ]


def after_failure() -> list[str]:
    """What later operations say; each fails at once."""
    said = []
    for operation in (lambda: px.all_sum(np.ones(3)), px.init().barrier):
        start = time.monotonic()
        said.append(text_of(operation))
        assert time.monotonic() - start < BOUND_S
    return said


def failing_outs(timeout: float) -> list[tuple[str, bytes, bytes]]:
    """Sums to which nobody comes, of each dtype and by each way in; what is in ``out``, and in x."""
    arrays, calls = [], []
    for dtype in DTYPES:
        for is_strided, is_async in ((False, False), (True, False), (False, True)):
            x = np.zeros(8, dtype_of(dtype))[::2] if is_strided else np.zeros(4, dtype_of(dtype))
            out = np.zeros(4, dtype_of(dtype))
            for where in (out,) if is_strided else (out, x):
                call = functools.partial(px.all_sum, x, out=where)
                # All of them before one ends the epoch, after which nothing more is begun: the
                # first that is called here does, soon.
                if is_async:
                    calls.append(call(async_op=True, timeout=60).wait)
                else:
                    calls.append(functools.partial(call, timeout=timeout))
            arrays.append((dtype, out, x[:0] if is_strided else x))
    for call in calls:
        with contextlib.suppress(px.DistributedError):
            call()
            raise AssertionError
    return [(dtype, out.tobytes(), x.tobytes()) for dtype, out, x in arrays]


def close() -> list[str]:
    """Close the group twice; what is said of a sum and of a message then."""
    group = px.init()
    group.close()
    group.close()
    calls = (lambda: px.all_sum(np.ones(3)), lambda: px.send(np.ones(3), 0))
    return [f"{text_of(call)} {group!r}" for call in calls]


def alarmed() -> str:
    """Wait for a rank that never comes, with a signal handler that raises what it likes."""

    def ring(*_: object) -> None:
        msg = "mine"
        raise ValueError(msg)

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    return text_of(px.all_sum, np.ones(3))


def describe() -> dict[str, Any]:
    return px.init().describe()


def stripes_of_split() -> list[int]:
    """How many connections a split of all has with each of its other ranks."""
    with px.init().split(0) as part:
        px.all_sum(np.ones(100_003), group=part)
        return [len(paths) for paths in part.describe()["engine"]["stripes"].values()]


def identity_across_epochs() -> tuple[int, bool]:
    """The public group's identity and whether `init` keeps to it."""
    return id(px.init()), px.init() is px.init(strict=True)


def inheritable() -> list[int]:
    """The descriptors of the world that a child of this rank would get."""
    spec = px.init()._current.spec
    fds = [spec.page_fd, *spec.region_fds, *spec.wake_fds]
    fds += [supervised.supervisor_channel()._sock.fileno()]
    assert len(fds) == 18
    return [fd for fd in fds if os.get_inheritable(fd)]


def child_worlds() -> list[str]:
    """How a process that this rank starts sees itself: by exec, and by fork."""
    code = "import phalanx as px; print(px.init())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    reader, writer = os.pipe()
    sys.stdout.flush()
    if not (pid := os.fork()):
        for operation in (lambda: px.all_sum(np.ones(3)), lambda: supervised.join(1.0)):
            os.write(writer, text_of(operation).encode())
        sys.exit()  # with all the tidying up of an interpreter's end
    os.waitpid(pid, 0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        return [ran.stdout.strip(), pipe.read()]
