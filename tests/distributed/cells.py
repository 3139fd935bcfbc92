"""What ranks of the farm run: each function here is a cell; it may use all public names."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

import phalanx as px
from phalanx import distributed


@dataclass(frozen=True)
class Case:
    """One collective call; every rank makes its own input from (seed, rank)."""

    op: str
    shape: tuple[int, ...] = (3,)
    dtype: str = "float32"
    seed: int = 0
    root: int = 0
    layout: str = "C"
    use_out: str = "none"

    def input(self, rank: int) -> np.ndarray:
        rng = np.random.default_rng([self.seed, rank])
        dtype = np.dtype(self.dtype)
        if dtype.kind == "i":
            bounds = np.iinfo(dtype)
            x = rng.integers(bounds.min, bounds.max, self.shape, dtype, endpoint=True)
        else:
            x = rng.standard_normal(self.shape) * 10.0 ** rng.integers(-6, 7, self.shape)
        return lay_out(np.asarray(x, dtype), self.layout)


def lay_out(x: np.ndarray, layout: str) -> np.ndarray:
    """Return the same values with other strides, or flags."""
    if layout == "F":
        return np.asfortranarray(x) if x.ndim else x
    if layout == "strided" and x.ndim:
        holder = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
        holder[..., ::2] = x
        return holder[..., ::2]
    if layout == "reversed" and x.ndim:
        return np.ascontiguousarray(x[::-1])[::-1]
    if layout == "unaligned":
        raw = np.zeros(x.nbytes + 1, np.uint8)
        shifted = raw[1:].view(x.dtype).reshape(x.shape)
        shifted[...] = x
        return shifted
    if layout == "readonly":
        x = x.copy()
        x.flags.writeable = False
    return x


def join() -> int:
    return distributed.join(20.0).rank()


def join_in_a_loop() -> int:
    """Join as a cell does, which runs in the event loop of its thread."""

    async def cell() -> int:
        return join()

    return asyncio.run(cell())


def call(case: Case, timeout: float | None = None) -> np.ndarray:
    rank = px.init().rank()
    x = case.input(rank)
    before = x.copy()
    options: dict[str, Any] = {"timeout": timeout}
    if case.use_out == "new":
        rows = px.init().size() if case.op == "all_gather" else 1
        shape = (rows * x.shape[0], *x.shape[1:]) if x.ndim else (rows,) if rows > 1 else ()
        options["out"] = np.full(shape, 7, x.dtype)
    elif case.use_out == "x":
        options["out"] = x
    if case.op == "broadcast":
        options["root"] = case.root
    result = getattr(px, case.op)(x, **options)
    if "out" in options:
        assert result is options["out"]
    else:
        assert type(result) is np.ndarray
        assert result.flags.c_contiguous
        assert not np.may_share_memory(result, x)
    if case.use_out != "x":
        assert x.tobytes() == before.tobytes()
    return result


def calls(cases: list[Case]) -> list[bytes]:
    return [call(case).tobytes() for case in cases]


def call_by_rank(cases: list[Case]) -> np.ndarray:
    return call(cases[px.init().rank()])


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
    """What later operations say, and how long each took at most."""
    said = []
    for operation in (lambda: px.all_sum(np.ones(3)), px.init().barrier):
        start = time.monotonic()
        try:
            operation()
        except px.DistributedError as error:
            said.append(f"{type(error).__name__}: {error}")
        assert time.monotonic() - start < 1.0
    return said


def failing_out(timeout: float, dtype: str) -> list[np.ndarray]:
    x, out = np.ones(4, dtype), np.ones(4, dtype)
    for where in (out, x):
        with contextlib.suppress(px.CollectiveTimeout):
            px.all_sum(x, out=where, timeout=timeout)
            raise AssertionError
    return [out, x]


def close() -> str:
    px.init().close()
    px.init().close()
    try:
        px.all_sum(np.ones(3))
    except px.DistributedError as error:
        return f"{error} {px.init()!r}"
    raise AssertionError


def describe() -> dict[str, Any]:
    return px.init().describe()


def identity_across_epochs() -> tuple[int, bool]:
    """The public group's identity and whether `init` keeps to it."""
    return id(px.init()), px.init() is px.init(strict=True)


def inheritable() -> list[int]:
    """The descriptors of the world that a child of this rank would get."""
    spec = px.init()._spec
    fds = [spec.page_fd, *spec.region_fds, *spec.wake_fds]
    fds += [distributed.supervisor_channel()._sock.fileno()]
    assert len(fds) == 18
    return [fd for fd in fds if os.get_inheritable(fd)]


def child_worlds() -> list[str]:
    """How a process that this rank starts sees itself: by exec, and by fork."""
    code = "import phalanx as px; print(px.init())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    reader, writer = os.pipe()
    sys.stdout.flush()
    if not (pid := os.fork()):
        for operation in (lambda: px.all_sum(np.ones(3)), lambda: distributed.join(1.0)):
            try:
                operation()
            except px.DistributedError as error:
                os.write(writer, f"{error};".encode())
        sys.exit()  # with all the tidying up of an interpreter's end
    os.waitpid(pid, 0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        return [ran.stdout.strip(), pipe.read()]


def large_sum(count: int, dtype: str) -> int:
    """Sum an array of more than 2 GiB in place; how many elements are wrong."""
    group = px.init()
    size, rank = group.size(), group.rank()
    blocks = [slice(start, min(start + (1 << 24), count)) for start in range(0, count, 1 << 24)]
    x = np.empty(count, dtype)
    for block in blocks:  # small whole numbers, which float32 holds exactly
        x[block] = np.arange(block.start, block.stop) % 1_000_003 + rank
    px.all_sum(x, out=x)
    n_wrong = 0
    for block in blocks:
        whole = np.arange(block.start, block.stop) % 1_000_003 * size + size * (size - 1) // 2
        n_wrong += int(np.count_nonzero(x[block] != whole))
    return n_wrong
