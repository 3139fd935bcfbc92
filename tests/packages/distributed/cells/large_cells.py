"""What ranks run with arrays of more bytes than an int counts: what comes out they check themselves."""

from __future__ import annotations

import numpy as np

import phalanx as px


def large(op: str, count: int, async_op: bool = False) -> int:
    """Call with an array of so many bytes, in place where that can be; how many are wrong.

    ``count`` is the size of the larger one of x and the result.
    """
    group = px.init()
    rank, size = group.rank(), group.size()
    period = 251  # a prime: a byte that came to a wrong place is seen
    pattern = np.arange(period * 4096) % period
    mine = (pattern // 2 + rank).astype(np.uint8)
    if op == "all_gather":
        return _wrong_rows(px.all_gather(np.resize(mine, count // size)), pattern, size)
    x = np.resize(mine, count)
    total = (pattern // 2 * size + size * (size - 1) // 2).astype(np.uint8)
    if op == "send":
        got = px.send(x, 1) if rank == 0 else px.recv_like(x, 0)
        return _count_other(got, (pattern // 2).astype(np.uint8))
    if op == "all_to_all":
        return _wrong_blocks(px.all_to_all(x), x, rank)
    if op == "sum_scatter":
        begin = rank * (count // size) % len(total)
        return _count_other(px.sum_scatter(x), np.roll(total, -begin))
    if op == "broadcast":
        return _count_other(px.broadcast(x, 1, out=x), (pattern // 2 + 1).astype(np.uint8))
    result = getattr(px, op)(x, out=x, async_op=async_op)
    assert (result.wait() if async_op else result) is x
    return _count_other(x, total if op == "all_sum" else (pattern // 2 + size - 1).astype(np.uint8))


def _wrong_rows(got: np.ndarray, pattern: np.ndarray, size: int) -> int:
    """Of an all_gather: each rank's row begins the pattern anew, one higher."""
    rows = got.reshape(size, -1)
    return sum(
        _count_other(row, (pattern // 2 + rank).astype(np.uint8)) for rank, row in enumerate(rows)
    )


def _count_other(got: np.ndarray, expected: np.ndarray) -> int:
    """Count what is not the expected period over and over."""
    length = len(expected)
    parts = (got[start : start + length] for start in range(0, len(got), length))
    return sum(int(np.count_nonzero(part != expected[: len(part)])) for part in parts)


def _wrong_blocks(got: np.ndarray, x: np.ndarray, rank: int) -> int:
    """Of two ranks: block i is what rank i has at this rank's block, one apart in every byte."""
    half = len(x) // 2
    mine = x[rank * half : (rank + 1) * half]
    wrong = 0
    for start in range(0, half, 1 << 24):
        part = mine[start : start + (1 << 24)]
        for peer in range(2):
            there = got[peer * half + start : peer * half + start + len(part)]
            wrong += int(np.count_nonzero(there != part + np.uint8(peer) - np.uint8(rank)))
    return wrong
