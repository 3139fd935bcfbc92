"""`all_sum` of float32 on two ranks of this machine: our arena and our tcp beside MLX's ring.

A time is the slowest rank's median, into a new array, from a start line that belongs to no peer
(`start_line`); every result is verified; peers alternate; each number says how the cores sat.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.common import arguments, median, placement, print_machine, print_table, write_json
from launchers import run_ranks

from phalanx.distributed.bench import parse_size, sizes_between
from phalanx.widgets import format_size

_N_RANKS = 2
_ARENA, _TCP, _MLX = "phalanx arena", "phalanx tcp", "mlx ring"


def _measure(peer: str, sizes: list[int], budget_s: float) -> list[dict[str, Any]]:
    library, _, transport = peer.partition(" ")
    options = ("--transport", "tcp" if transport == "tcp" else "any")
    with tempfile.TemporaryDirectory() as folder:
        words = [library, f"{folder}/start-line", json.dumps(sizes), str(budget_s)]
        found = run_ranks(library, _N_RANKS, "start_line.py", words, options=options)["records"]
    return [{"peer": peer, "placement": placement(r["flag_ns"]), **r} for r in found]


def _rows(records: list[dict[str, Any]], peers: list[str], sizes: list[int]) -> list[list[str]]:
    """A row per size and placement; times of one placement only are compared."""
    rows = []
    for nbytes in sizes:
        for where in ("near", "far", "mixed"):
            times = {
                peer: [
                    r["median_us"]
                    for r in records
                    if (r["peer"], r["nbytes"], r["placement"]) == (peer, nbytes, where)
                ]
                for peer in peers
            }
            if not any(times.values()):
                continue
            medians = {peer: median(t) for peer, t in times.items() if t}
            row = [format_size(nbytes), where]
            row += [f"{medians[p]:.1f} ({len(times[p])})" if p in medians else "" for p in peers]
            for peer in (_ARENA, _TCP):
                has_both = _MLX in medians and peer in medians
                row.append(f"{medians[_MLX] / medians[peer]:.2f}" if has_both else "")
            rows.append(row)
    return rows


def main() -> None:
    options = arguments(
        "all_sum of float32 on 2 ranks: arena and tcp beside MLX's ring.",
        begin=("8", "smallest size"),
        end=("64M", "largest size"),
        factor=(8, "between sizes"),
        rounds=(5, "alternating rounds"),
        budget=(0.2, "seconds for the timed calls of one size"),
    ).parse_args()
    sizes = list(sizes_between(parse_size(options.begin), parse_size(options.end), options.factor))
    sizes += [parse_size(options.end)] if sizes[-1] != parse_size(options.end) else []
    peers = [_ARENA, _TCP]
    if importlib.util.find_spec("mlx") is None:
        print('MLX is left out: it is not installed here (pip install "mlx[cpu]")\n')
    else:
        peers.append(_MLX)
    print_machine()
    records = [
        {"round": i, **record}
        for i in range(options.rounds)
        for peer in peers
        for record in _measure(peer, sizes, options.budget)
    ]
    header = ["size", "cores", *(f"{peer} µs" for peer in peers), "mlx/arena", "mlx/tcp"]
    print_table(header, _rows(records, peers, sizes))
    print("\nIn brackets: launches. Over 1 in the last columns: MLX takes longer.")
    write_json(options.json, records)
    wrong = [r for r in records if r["n_wrong"]]
    if wrong:
        sys.exit(f"wrong results: {wrong}")


if __name__ == "__main__":
    main()
