"""What ranks of the farm run to send messages to each other."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
from distributed.cells.texts import text_of

import phalanx as px
from phalanx import _native
from phalanx.distributed.bootstrap import supervised
from phalanx.distributed.operations import point_to_point

KIB = 1 << 10


def engine() -> _native.Group:
    """Of this rank's world, also where it was closed (which `px.init` would join anew)."""
    return (supervised.world() or px.init())._current.engine  # MPI's ranks have no supervisor


def content(src: int, dst: int, nbytes: int) -> np.ndarray:
    """What one rank sends to another: both can make it."""
    count = nbytes // 8
    return np.arange(count, dtype=np.int64) * (src + 1) + dst


def send(dst: int, nbytes: int, timeout: float | None = None) -> None:
    px.send(content(engine().rank, dst, nbytes), dst, timeout=timeout)


def recv(src: int, nbytes: int, timeout: float | None = None) -> bool:
    wanted = content(src, engine().rank, nbytes)
    return bool((px.recv_like(wanted, src, timeout=timeout) == wanted).all())


def peers() -> list[int]:
    return [peer for peer in range(engine().size) if peer != engine().rank]


def exchange(nbytes: int) -> bool:
    """All send to all, then all receive from all: needs room for one message on the way."""
    for peer in peers():
        send(peer, nbytes, 10.0)
    return sum(recv(peer, nbytes, 10.0) for peer in peers()) == len(peers())


def mismatched(what: str) -> list[float]:
    """Rank 0 sends three messages, the third as rank 1 does not expect it; then all wait."""
    group = engine()
    x = np.ones(4, np.float32)
    outs = [np.zeros(4, np.float32)] * 2
    outs.append({"dtype": np.zeros(4, np.int64), "shape": np.zeros((2, 2), np.float32)}[what])
    if group.rank == 0:
        for _ in outs:
            group.run("send", x, None, 1)
    elif group.rank == 1:
        try:
            for out in outs:
                group.run("recv", None, out, 0)  # recv
        except px.CollectiveMismatch:
            assert (outs[-1] == 0).all()
            raise
    group.run("barrier")
    return []


def begun_output(nbytes: int, like: str) -> tuple[str, bool, bool]:
    """Receive a message that never comes whole: the error, and what the output looks like."""
    out = np.zeros(nbytes // 8)
    try:
        px.recv_like(out if like == "itself" else np.empty_like(out), 0, out=out)
    except px.DistributedError as error:
        return str(error), bool(np.isnan(out).all()), isinstance(error, px.RankFailure)
    raise AssertionError


def endless_send(dst: int, nbytes: int) -> None:
    engine().run("send", np.ones(nbytes // 8), None, dst)


def send_and_close(dst: int, sizes: list[int]) -> None:
    for nbytes in sizes:
        send(dst, nbytes)
    engine().close()


def kept(x: Any, after: int, before: int) -> list[str]:
    """Receive into another array, then into the one that is sent, which comes from all the same."""
    said = []
    for out in (np.zeros_like(np.asarray(x)), x):
        px.send(x, after, timeout=20.0)
        if px.recv_like(x, before, out=out, timeout=20.0) is not out:
            said.append("it came elsewhere")
        if not (np.asarray(out) == np.asarray(x).dtype.type(before)).all():
            said.append(f"{out} came")
    return said


def tensors_that_are_kept() -> list[str]:
    import torch

    rank, size = engine().rank, engine().size
    said = []
    for dtype in (torch.float32, torch.bfloat16, torch.int16):
        x = torch.full((3, 5), rank, dtype=dtype)
        out = torch.zeros_like(x)
        for its in (out, x):
            px.send(x, (rank + 1) % size, timeout=20.0)
            if px.recv_like(x, (rank - 1) % size, out=its, timeout=20.0) is not its:
                said.append(f"{dtype}: it came elsewhere")
            if not bool((its == (rank - 1) % size).all()):
                said.append(f"{dtype}: {its} came")
    return said


def wrong_outs() -> list[str]:
    """Nothing is taken from the queue for them."""
    x, fixed, line = np.zeros((2, 3)), np.zeros((2, 3)), np.zeros(7)
    fixed.flags.writeable = False
    outs: list[Any] = [np.zeros((3, 2)), np.zeros((2, 3), np.float32), np.zeros((2, 6))[:, ::2]]
    after = (engine().rank + 1) % engine().size
    pairs = [*((x, out) for out in (*outs, fixed, "here")), (line[1:], line[:-1])]
    return [text_of(px.recv_like, its, after, out=out, timeout=5.0) for its, out in pairs]


def by_the_fast_path() -> list[str]:
    """Plain arrays go round without the code for all others, which finds its work all the same."""

    def refuse(*_: object) -> None:
        msg = "it went the long way"
        raise AssertionError(msg)

    said = []
    rank, size = engine().rank, engine().size
    after, before = (rank + 1) % size, (rank - 1) % size
    looked = point_to_point.as_source
    point_to_point.as_source = refuse
    try:
        for dtype in ("float32", "complex128", "bool", ml_dtypes.bfloat16):
            for shape in ((), (0,), (3, 5), (4000,)):
                x = np.full(shape, rank, dtype)
                if px.send(x, np.int64(after), timeout=20) is not x:
                    said.append(f"{dtype} {shape}: another array was sent")
                got = px.recv_like(x, before, timeout=20.0)
                is_like = (got.shape, got.dtype) == (x.shape, x.dtype)
                if not (is_like and (got == x.dtype.type(before)).all()):
                    said.append(f"{dtype} {shape}: {got} came")
                said += [f"{dtype} {shape}: {its}" for its in kept(x, after, before)]
        x = np.zeros(3)
        held = [sys.getrefcount(its) for its in (x, x.dtype)]
        for _ in range(300):
            px.send(x, after, timeout=20.0)
            px.recv_like(x, before, timeout=20.0)
        if [sys.getrefcount(its) for its in (x, x.dtype)] != held:
            said.append("something is kept")
        try:
            px.recv_like(np.zeros(6)[::2], before)
        except AssertionError as error:
            said.append(str(error))
    finally:
        point_to_point.as_source = looked
    return said
