"""What ranks of the farm run: sweeps, sound and broken ones."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np

import phalanx as px
from phalanx.distributed.bench import limits as limits_module
from phalanx.distributed.bench import limits_of_ranks, run_sweep, sweep
from phalanx.distributed.bench.request import Case, dtype_named
from phalanx.protocol import Limit, Measurement


def swept(ops: list[str], dtypes: list[str], sizes: list[int]) -> list[Measurement]:
    return [
        m for op in ops for dtype in dtypes for m in sweep(op, sizes, dtype=dtype, iterations=1)
    ]


def refused(nbytes: int, free: int) -> str:
    """Why there is no sweep of that size where each machine has so much memory free; ""."""
    with patch.object(run_sweep, "available_memory", lambda: free):
        try:
            sweep("all_sum", [nbytes], iterations=1)
        except ValueError as error:
            return str(error)
    return ""


def limits(seconds: float = 0.05) -> tuple[Limit, ...]:
    return limits_of_ranks(seconds=seconds)


def limits_without(what: str, rank: int) -> tuple[tuple[Limit, ...], int]:
    """What is found where a rank cannot connect, or its streams break; and a sum after that."""
    right = limits_module.connect_links

    def fails(*args: Any, **options: Any) -> Any:
        for sock in right(*args, **options).values():
            sock.close()
        msg = "no way there"
        raise OSError(msg)

    def ends(sock: Any, seconds: float) -> None:
        sock.close()

    broken = {"connect_links": fails, "_send_stream": ends}[what]
    there = patch.object(limits_module, what, broken) if px.init().rank() == rank else nullcontext()
    with there, patch.object(limits_module, "_PATIENCE_S", 0.5):
        found = limits_of_ranks(seconds=0.05)
    return found, px.all_sum(1)


def named_and_traced(op: str, dtype: str, nbytes: int) -> tuple[str, set[str]]:
    """The algorithm that a sweep names, and those that the flight recorder has seen."""
    before = int(px.trace().number.max(initial=-1))
    (m,) = sweep(op, [nbytes], dtype=dtype, iterations=1)
    done = px.trace()
    done = done[(done.number > before) & (done.op == op) & (done.element == dtype)]
    return m.algorithm, {str(name) for name in done.algorithm}


def sweep_broken(op: str, nbytes: int) -> int:
    """Wrong elements of a sweep in which one element of rank 1's results is not right."""
    name = "recv_like" if op == "sendrecv" else op
    right = getattr(px, name)

    def wrong(*args: Any, **options: Any) -> Any:
        result = right(*args, **options)
        if result.dtype == np.float32:  # the sweep's own words between the ranks are of another
            result[len(result) // 2] += px.init().rank() == 1
        return result

    with patch.object(px, name, wrong):
        (m,) = sweep(op, [nbytes], iterations=1)
    return m.n_wrong


def idle(op: str, nbytes: int, dtype: str) -> int:
    """Wrong elements on this rank when rank 0's operation writes nothing of its own."""
    right = getattr(px, op)

    def lazy(x: Any, *args: Any, out: Any, **options: Any) -> Any:
        elsewhere = np.empty_like(out) if px.init().rank() == 0 else out
        right(x, *args, out=elsewhere, **options)
        return out

    with patch.object(px, op, lazy):
        return Case(op, nbytes, dtype_named(dtype), px.init()).count_wrong()
