"""Count what processes do while they have nothing to do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import psutil

# A loop that never sleeps uses what others leave of a core; idle processes used up to 0.05 (measured).
_MOST_CORES = 0.25


def _spent(processes: Sequence[psutil.Process]) -> tuple[int, float]:
    """Return how often their threads have gone to sleep, and the seconds of a core they have used.

    schedstat counts nanoseconds; the ticks of /proc/PID/stat are 10 ms, more than is looked for.
    """
    n_sleeps, cpu_ns = 0, 0
    for process in processes:
        for thread in Path(f"/proc/{process.pid}/task").iterdir():
            status = (thread / "status").read_text()
            n_sleeps += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
            cpu_ns += int((thread / "schedstat").read_text().split()[0])
    return n_sleeps, cpu_ns / 1e9


def assert_idle(
    processes: Sequence[psutil.Process], wakeups_per_s: float, seconds: float = 1.0
) -> None:
    """Assert that processes wake up at most so often a second, and that none computes all the time.

    How often they wake depends on the product alone: a busy machine makes it less, never more.
    """
    before, begin_s = _spent(processes), time.monotonic()
    time.sleep(seconds)  # that time goes by is what is looked at
    after, took_s = _spent(processes), time.monotonic() - begin_s
    rate, used = (after[0] - before[0]) / took_s, (after[1] - before[1]) / took_s
    assert rate <= wakeups_per_s, f"{rate:.0f} wake-ups a second"
    assert used <= _MOST_CORES, f"{used:.3f} of a core"
