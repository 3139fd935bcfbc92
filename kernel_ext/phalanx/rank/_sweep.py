"""A bandwidth sweep on this rank, its measurements published as they are made.

It knows the sweep engine and IPython's display channel; nothing of who looks.
"""

from __future__ import annotations

import time

import msgspec
from IPython.display import display

from phalanx.distributed import init
from phalanx.distributed.bench import limits_of_ranks, measure_links, sizes_between, sweep
from phalanx.protocol import LIMITS_MIME, LINKS_DONE_MIME, LINKS_MIME, MEASUREMENT_MIME

__all__ = ["publish_links", "publish_sweep"]

_TELL_S = 0.25  # as often as a widget shows it


def publish_sweep(
    *,
    op: str,
    begin: int,
    end: int,
    factor: int,
    dtype: str,
    iterations: int,
    with_limits: bool = False,
) -> None:
    """Sweep with all ranks; rank 0 publishes each measurement (`phalanx.distributed.bench`).

    And before them what bounds the ranks where they are, if that is asked for.
    """
    is_first = init().rank() == 0
    sizes = sizes_between(begin, end, factor)
    measurements = sweep(op, sizes, dtype=dtype, iterations=iterations)  # refused before all else
    if with_limits:
        limits = limits_of_ranks()
        if is_first:
            display({LIMITS_MIME: msgspec.to_builtins(limits)}, raw=True)
    for measurement in measurements:
        if is_first:
            display({MEASUREMENT_MIME: msgspec.to_builtins(measurement)}, raw=True)


def publish_links() -> None:
    """Measure the path between each two ranks; rank 0 publishes how far it is, and what came of it."""
    is_first = init().rank() == 0
    tell_at_s = time.monotonic() + _TELL_S

    def tell(n_done: int) -> None:
        nonlocal tell_at_s
        if time.monotonic() >= tell_at_s:
            display({LINKS_DONE_MIME: {"n_done": n_done}}, raw=True)
            tell_at_s = time.monotonic() + _TELL_S

    found = measure_links(progress=tell if is_first else None)
    if is_first:
        display({LINKS_MIME: msgspec.to_builtins(found)}, raw=True)
