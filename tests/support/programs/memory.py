"""Memory: how much of it grows, and one test at a time that uses gigabytes of it."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from support.waiting import wait_until

OTHERS_S = 250.0  # for the test of another worker that uses as much


def least_growth(sizes: Sequence[float]) -> float:
    """Return the smallest growth between one size and the next.

    A leak grows each time; a cache that fills, or a page of the allocator, once.
    """
    return min(later - before for before, later in itertools.pairwise(sizes))


@pytest.fixture
def much_memory() -> Iterator[Callable[[int], None]]:
    """Give a function that waits until so many bytes are to be had; no other test has them then."""
    with contextlib.ExitStack() as stack:

        def need(nbytes: int) -> None:
            if psutil.virtual_memory().total < 1.5 * nbytes:
                pytest.skip("needs more memory than this machine has")
            lock = Path(tempfile.gettempdir()) / "phalanx-tests-much-memory"
            file = stack.enter_context(lock.open("w"))
            fcntl.flock(file, fcntl.LOCK_EX)
            # Not free pages: the cache of files takes them, and gives them back.
            is_free = lambda: psutil.virtual_memory().available > nbytes
            wait_until(is_free, f"{nbytes / 2**30:.1f} GiB that nobody uses", OTHERS_S, poll_s=0.1)

        yield need
