"""What a call of a small collective costs around the operation itself, in nanoseconds.

A group of one copies eight bytes, so what is left is the way in: Python's function, its arguments,
the binding. The same for what goes the long way, and, where torch is installed, for a tensor, beside
what must be paid for tensors in any case.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from bench.common import arguments, median, print_machine, print_table, write_json

import phalanx as px

ROUNDS = 15


def nanoseconds(call: Callable[[], object], loops: int) -> float:
    """Of one call, without the loop's own: the median of the rounds."""
    taken = []
    for _ in range(ROUNDS):
        begun = time.perf_counter_ns()
        for _ in range(loops):
            call()
        taken.append((time.perf_counter_ns() - begun) / loops)
    return median(taken)


def calls_of_torch() -> dict[str, Callable[[], object]]:
    """Sums of a tensor, and what they cannot be had without: it as an array, and another."""
    import torch

    x = torch.zeros(2)

    def convert() -> None:
        x.numpy()
        torch.empty((2,), dtype=torch.float32, device="cpu").numpy()

    return {
        "all_sum, a tensor in place": lambda: px.all_sum(x, out=x),
        "all_sum, a new tensor": lambda: px.all_sum(x),
        "its conversions alone": convert,
    }


def main() -> None:
    options = arguments(
        "What a call of a small collective costs.", loops=(20_000, "calls of a round")
    ).parse_args()
    x = np.zeros(2, np.float32)
    every_other = np.zeros(4, np.float32)[::2]
    px.all_sum(x)
    calls: dict[str, Callable[[], object]] = {
        "a function that does nothing": lambda: None,
        "all_sum, in place": lambda: px.all_sum(x, out=x),
        "all_sum, a new array": lambda: px.all_sum(x),
        "all_sum, in place, with a timeout": lambda: px.all_sum(x, out=x, timeout=10),
        "all_sum, the long way (strides)": lambda: px.all_sum(every_other, out=x),
        "all_sum, the long way (a number)": lambda: px.all_sum(0.0),
        "numpy.add, in place": lambda: np.add(x, x, out=x),
    }
    if importlib.util.find_spec("torch") is not None:
        calls |= calls_of_torch()
    print_machine()
    told = {what: nanoseconds(call, options.loops) for what, call in calls.items()}
    assert not x.any()  # zeros: the sums are right, however often
    print_table(("what", "ns a call"), [(what, f"{ns:.0f}") for what, ns in told.items()])
    write_json(options.json, [{"what": what, "ns": ns} for what, ns in told.items()])


if __name__ == "__main__":
    main()
