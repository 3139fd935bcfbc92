"""Worlds and sweeps made up for the pictures' tests."""

from __future__ import annotations

import numpy as np

from phalanx.distributed.recorder import RECORD
from phalanx.protocol import HostClock, HostInfo, LinkInfo, Measurement, RankInfo, WorldTopology
from phalanx.workspace import Trace

NASTY = "<script>alert('&\"')</script>\x00\x1b[31m\ud800"


def make_world(hosts, per_host, *, tcp=False, states=("idle",), name="node") -> WorldTopology:
    """Hosts with equally many ranks; between hosts the ranks form a ring over tcp."""
    size = hosts * per_host
    ranks = tuple(
        RankInfo(
            r, r // per_host, 41_200 + 7 * r, states[r % len(states)],
            detail="killed by signal 9 (SIGKILL)" if states[r % len(states)] == "dead" else "",
        )
        for r in range(size)
    )  # fmt: skip
    inside = [
        LinkInfo(a, b, "tcp" if tcp else "arena")
        for a in range(size)
        for b in range(a + 1, size)
        if a // per_host == b // per_host
    ]
    between = [
        LinkInfo(min(a, b), max(a, b), "tcp")
        for a, b in ((h * per_host, (h + 1) % hosts * per_host) for h in range(hosts))
        if hosts > 1 and (hosts > 2 or a < b)
    ]
    boxes = tuple(HostInfo(h, f"{name}{h}", f"10.0.0.{h}", 8) for h in range(hosts))
    return WorldTopology("phalanx-1", 3, boxes, ranks, tuple(inside + between))


def make_sweep(op, n_sizes, *, transport="arena", n_wrong=0) -> list[Measurement]:
    """A sweep that costs 3 µs and 8 GB/s, or 30 µs and 1.5 GB/s over tcp."""
    alpha, rate = (30.0, 1.5e3) if transport == "tcp" else (3.0, 8e3)
    sweep = []
    for nbytes in (8 * 4**i for i in range(n_sizes)):
        time_us = alpha + nbytes / rate
        algbw = nbytes / time_us / 1e3
        sweep.append(
            Measurement(op, "staged", transport, "float32", 4, nbytes // 4, nbytes, time_us,
                        1.6 * time_us, algbw, 1.5 * algbw, n_wrong, 20)
        )  # fmt: skip
    return sweep


def make_trace(n_ranks, *, seconds=2.0, late=0, dropped=0):
    """Ranks that all_sum every 20 ms, rank ``late`` 4 ms after the others; one barrier runs yet."""
    rows = []
    end_ns = 10**9 + int(seconds * 1e9)
    for rank in range(n_ranks):
        for i in range(int(seconds / 0.02)):
            first = 10**9 + 20_000_000 * i
            begun = first + (4_000_000 if rank == late else 1000 * rank)
            times = begun, first + 4_100_000, first + 7_100_000
            what = "all_sum", "staged", "float32", 1 << 20, 0, 0, -1
            rows.append((rank, 0, i, 1, i + 1, *what, *times, "done", ""))
        what = "barrier", "inline", "", 0, 0, 0, -1
        rows.append((rank, 0, len(rows), 1, 9999, *what, end_ns, 0, 0, "running", ""))
    records = np.array(rows, np.dtype([("rank", "i4"), ("host", "i4"), *RECORD.descr]))
    return Trace(
        records[np.argsort(records["entered_ns"], kind="stable")].view(np.recarray),
        (HostClock("node0", 0, 0),),
        dict.fromkeys(range(n_ranks), dropped),
        end_ns + 500_000_000,
    )
