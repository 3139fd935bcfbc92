"""Waiting for MPI, which can only be asked again and again: briefly at once, then at ease.

It knows the clock; what is asked, and what else is looked at meanwhile, is the caller's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

__all__ = ["wait_until"]

# Between two looks at MPI lies a call of Python's, about a microsecond. These were not tuned.
_SPIN_S = 20e-6  # the price of a sleep and a wake-up
_YIELD_S = 300e-6
_SHORTEST_SLEEP_S = 20e-6
_LONGEST_SLEEP_S = 1e-3


def wait_until(
    is_done: Callable[[], object], check: Callable[[float], None], *, busy_s: float = 0.0
) -> None:
    """Return once ``is_done()`` is true.

    Parameters
    ----------
    is_done : callable
        Asks MPI, which moves bytes only while it is asked.
    check : callable
        Gets the seconds waited so far; raises if there is no point in waiting on.
    busy_s : float, optional
        So long there is probably something to move: the processor is only yielded.
    """
    if is_done():
        return
    start = time.monotonic()
    sleep_s = _SHORTEST_SLEEP_S
    while not is_done():
        waited_s = time.monotonic() - start
        check(waited_s)
        if waited_s < _SPIN_S:
            continue
        if waited_s < _YIELD_S + busy_s:
            os.sched_yield()
        else:
            time.sleep(sleep_s)
            sleep_s = min(1.5 * sleep_s, _LONGEST_SLEEP_S)
