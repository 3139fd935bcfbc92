"""What ranks of a larger group are refused before any byte moves, and that the group stays good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from distributed.cells.texts import text_of

import phalanx as px


def refused() -> list[str]:
    """Make every call that only a group of several can refuse; the texts."""
    rank, size = px.init().rank(), px.init().size()
    x, both = np.ones(4), np.zeros(3 * size)
    calls: list[Callable[[], Any]] = [
        lambda: px.sum_scatter(np.ones(size + 1)),
        lambda: px.sum_scatter(2.0),
        lambda: px.all_to_all(np.ones((size + 1, 2))),
        lambda: px.all_to_all(np.ones(())),
        lambda: px.send(x, size),
        lambda: px.send(x, -1),
        lambda: px.send(x, rank),
        lambda: px.recv((2,), "float32", size),
        lambda: px.recv((2,), "float32", rank),
        lambda: px.recv_like(x, -1),
        lambda: px.recv((2, -1), "float32", (rank + 1) % size),
        lambda: px.recv((2,), "float8", (rank + 1) % size),
        lambda: px.recv((2,), None, (rank + 1) % size),
        lambda: px.recv((2,), "longdouble", (rank + 1) % size),
        lambda: px.recv((2,), "float32", (rank + 1) % size, stream="gpu"),
        lambda: px.broadcast(x, size),
        lambda: px.all_gather(x, out=np.empty(4)),
        lambda: px.all_gather(both[:3], out=both),
        lambda: px.sum_scatter(both, out=both[:3]),
        lambda: px.sum_scatter(both, out=np.empty(3 * size)),
        lambda: px.all_sum(2**62),
        lambda: px.all_sum(-(2**62)),
        lambda: px.all_sum([1.0]),
        lambda: px.all_sum(1, timeout=-1),
        lambda: px.init().barrier(timeout=-0.1),
    ]
    texts = [text_of(call) for call in calls]
    assert px.all_sum(1) == size  # the group is good
    return texts


def check_refused(texts: list[str]) -> None:
    """Compare with what rank 1 of 3 is to be told."""
    axis = (
        "The first dimension (axis 0) must be divisible by the group size and input must have "
        "at least one."
    )
    assert texts == [
        f"ValueError: [sum_scatter] Invalid shape=(4) for a group of size 3. {axis}",
        f"ValueError: [sum_scatter] Invalid shape=() for a group of size 3. {axis}",
        f"ValueError: [all_to_all] Invalid shape=(4,2) for a group of size 3. {axis}",
        f"ValueError: [all_to_all] Invalid shape=() for a group of size 3. {axis}",
        "ValueError: Invalid destination=3 for a group of size 3",
        "ValueError: Invalid destination=-1 for a group of size 3",
        "ValueError: Invalid destination=1: that is this rank itself, which needs no message",
        "ValueError: Invalid source=3 for a group of size 3",
        "ValueError: Invalid source=1: that is this rank itself, which needs no message",
        "ValueError: Invalid source=-1 for a group of size 3",
        "ValueError: recv: shape (2, -1) has a negative length",
        "TypeError: data type 'float8' not understood",
        "TypeError: recv: dtype None says nothing; give the one that is sent, such as 'float32'",
        texts[13],  # names the platform's longdouble, and all that are supported
        "NotSupported: recv: stream is for arrays of MLX, x is str; leave it out",
        "ValueError: Invalid root=3 for a group of size 3",
        "ValueError: all_gather: out has shape (4,); the result has (12,)",
        ("ValueError: all_gather: out has memory in common with x; it must lie apart"),
        ("ValueError: sum_scatter: out has memory in common with x; it must lie apart"),
        "ValueError: sum_scatter: out has shape (9,); the result has (3,)",
        (
            "OverflowError: all_sum: the int 4611686018427387904 may not fit into int64 "
            "(times 3 ranks); pass a float"
        ),
        (
            "OverflowError: all_sum: the int -4611686018427387904 may not fit into int64 "
            "(times 3 ranks); pass a float"
        ),
        "ValueError: Invalid type list received in array initialization. Pass np.asarray(x).",
        "ValueError: timeout must be None or at least 0 seconds, not -1",
        "ValueError: timeout must be None or at least 0 seconds, not -0.1",
    ]
    assert texts[13].startswith("NotSupported: recv: dtype float128 is not supported; bool, ")


def test_bad_calls_are_refused_in_the_words_of_mlx_and_the_group_stays_good(rank_pool):
    check_refused(rank_pool(3).run(refused)[1])
