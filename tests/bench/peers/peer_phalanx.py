"""Phalanx, as one of the peers of a harness that times collectives libraries side by side.

Run on each rank by `beside_peers.py`; the harness (its `benchlib`) owns data, checks and clocks,
this file only says how phalanx is called. Arrays are ordinary numpy arrays.
"""

from __future__ import annotations

from typing import Any

import benchlib  # the harness's; beside_peers.py puts its folder on the path
import numpy as np
from benchlib import Case, expected_sum, gathered, matches, random_data

import phalanx as px


class PhalanxAdapter(benchlib.Adapter):  # type: ignore[misc]
    """The operations that the harness knows, in phalanx's words."""

    def __init__(self) -> None:
        self.group = px.init(strict=True)
        self.rank, self.size = self.group.rank(), self.group.size()
        self.version = f"phalanx {px.__version__}"

    def case(self, op: str, mode: str, count: int) -> Case | None:
        """Prepare one operation at one size; None where phalanx has no such way of calling."""
        prepare = {
            "barrier": self._barrier,
            "all_reduce": self._all_sum,
            "all_gather": self._all_gather,
            "reduce_scatter": self._sum_scatter,
            "broadcast": self._broadcast,
            "pingpong": self._pingpong,
        }.get(op)
        return prepare(mode, count) if prepare else None

    def _barrier(self, _mode: str, _count: int) -> Case:
        return Case(self.group.barrier, lambda: True)

    def _all_sum(self, mode: str, count: int) -> Case | None:
        source = random_data(self.rank, count)
        right = expected_sum(self.size, count)
        if mode in {"fresh", "numpy"}:
            return Case(lambda: px.all_sum(source), lambda: matches(px.all_sum(source), right))
        if mode == "out":
            out = np.empty_like(source)
            call = lambda: px.all_sum(source, out=out)
            return Case(call, lambda: matches(px.all_sum(source, out=out), right))
        if mode == "inplace":
            buffer = source.copy()

            def check() -> bool:
                is_right = matches(px.all_sum(buffer, out=buffer), right)
                buffer.fill(0)  # repeated sums in place would overflow
                return is_right

            return Case(lambda: px.all_sum(buffer, out=buffer), check)
        return None

    def _all_gather(self, _mode: str, count: int) -> Case:
        part = max(1, count // self.size)
        source = random_data(self.rank, part)
        out = np.empty(part * self.size, np.float32)

        def call() -> Any:
            return px.all_gather(source, out=out)

        return Case(call, lambda: gathered(call(), self.size, part))

    def _sum_scatter(self, _mode: str, count: int) -> Case:
        part = max(1, count // self.size)
        source = random_data(self.rank, part * self.size)
        out = np.empty(part, np.float32)
        right = expected_sum(self.size, part * self.size)

        def call() -> Any:
            return px.sum_scatter(source, out=out)

        return Case(call, lambda: matches(call(), right, self.rank * part))

    def _broadcast(self, _mode: str, count: int) -> Case:
        buffer = random_data(self.rank, count)
        right = random_data(0, min(count, benchlib.PATTERN))
        call = lambda: px.broadcast(buffer, out=buffer)
        return Case(call, lambda: matches(px.broadcast(buffer, out=buffer), right))

    def _pingpong(self, mode: str, count: int) -> Case | None:
        if self.size != 2:
            return None
        source, other = random_data(self.rank, count), 1 - self.rank
        right = random_data(0, min(count, benchlib.PATTERN))

        out = source if mode == "inplace" else None

        def call() -> Any:
            if self.rank == 0:
                px.send(source, other)
                return px.recv_like(source, other, out=out)
            got = px.recv_like(source, other, out=out)
            px.send(got, other)
            return got

        return Case(call, lambda: matches(call(), right), scale=0.5)


if __name__ == "__main__":
    benchlib.run(PhalanxAdapter(), benchlib.arguments())
