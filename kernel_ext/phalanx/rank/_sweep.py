"""A bandwidth sweep on this rank, its measurements published as they are made.

It knows the sweep engine and IPython's display channel; nothing of who looks.
"""

from __future__ import annotations

import msgspec
from IPython.display import display

from phalanx.distributed import init
from phalanx.distributed.bench import measure_links, sizes_between, sweep
from phalanx.protocol import LINKS_MIME, MEASUREMENT_MIME

__all__ = ["publish_links", "publish_sweep"]


def publish_sweep(
    *, op: str, begin: int, end: int, factor: int, dtype: str, iterations: int
) -> None:
    """Sweep with all ranks; rank 0 publishes each measurement (`phalanx.distributed.bench`)."""
    is_first = init().rank() == 0
    sizes = sizes_between(begin, end, factor)
    for measurement in sweep(op, sizes, dtype=dtype, iterations=iterations):
        if is_first:
            display({MEASUREMENT_MIME: msgspec.to_builtins(measurement)}, raw=True)


def publish_links() -> None:
    """Measure the path between each two ranks; rank 0 publishes what came of it."""
    found = measure_links()
    if init().rank() == 0:
        display({LINKS_MIME: msgspec.to_builtins(found)}, raw=True)
