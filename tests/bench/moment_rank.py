"""A rank of a peer that waits for its moment: `placement_moments.py` copies this beside the harness.

It prepares every size, then sleeps in a read until it is told which one to time; it runs that for
some milliseconds, and says how long each operation took and how the cores sat before and after.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import benchlib  # the harness's

_MOMENT_S = 0.008
_MOST_CALLS = 200
_PROBE_ROUNDS = 300  # 0.02 ms near, 0.07 ms far


def _probe(sync: Any) -> float:
    sync.barrier()
    if sync.rank > 1:
        time.sleep(0.002)  # out of the way of the two that play
    mine = sync._oneway(sync.address, sync.rank, _PROBE_ROUNDS)
    if sync.rank == 0:
        sync.lib.shm_reset_ball(benchlib.ctypes.c_void_p(sync.address))
    return float(sync.share(mine))


def _calls(sync: Any, call: Any, count: int) -> list[float]:
    """Microseconds of each call: of the slowest rank, from a start that all share."""
    for i in range(count):
        sync.barrier()
        sync.times[sync.rank, 0, i] = time.perf_counter()
        call()
        sync.times[sync.rank, 1, i] = time.perf_counter()
    sync.barrier()
    took = sync.times[:, 1, :count] - sync.times[:, 0, :count]
    return [float(us) for us in took.max(axis=0) * 1e6]


def serve(adapter: Any, args: argparse.Namespace) -> None:
    """Prepare all sizes, then answer the coordinator until it sends an empty line."""
    sync = benchlib.Sync(args.sync, adapter.rank, adapter.size)
    cases = {}
    op, mode = args.ops.split(":")
    for nbytes in map(int, args.sizes.split(",")):
        case = adapter.case(op, mode, nbytes // 4)
        if case is None:
            sys.exit(f"{args.peer} has no {args.ops} of {adapter.size} ranks")
        is_wrong = sync.share(0.0 if case.check() else 1.0) != 0.0
        took = sync.share(min(_calls(sync, case.call, 7)))
        count = int(max(3, min(_MOST_CALLS, _MOMENT_S * 1e6 / took)))
        cases[nbytes] = (case, count, not is_wrong)
    with (
        Path(f"{args.out}.{adapter.rank}").open() as orders,
        Path(args.out if adapter.rank == 0 else os.devnull).open("w", buffering=1) as answers,
    ):
        answers.write(json.dumps({"ready": args.peer}) + "\n")
        for line in orders:
            if not line.strip():
                break
            case, count, is_right = cases[int(line)]
            before = _probe(sync)
            _calls(sync, case.call, 1)  # it has slept; so have its caches
            took_us = [us * case.scale for us in _calls(sync, case.call, count)]
            flags = [before, _probe(sync)]
            record = {"peer": args.peer, "ranks": adapter.size, "bytes": int(line), "op": args.ops}
            record |= {"flag_ns": flags, "correct": is_right, "took_us": took_us}
            answers.write(json.dumps(record) + "\n")
    sync.barrier()
    adapter.close()
