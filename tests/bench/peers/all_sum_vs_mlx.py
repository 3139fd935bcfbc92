"""`all_sum` of float32 on two ranks of this machine: our arena and our tcp beside MLX's ring.

A time is the slowest rank's median, into a new array, from a start line that belongs to no peer
(`start_line`); every result is verified; peers alternate; each number says how the cores sat.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.common import arguments, median, placement, print_machine, print_table, write_json

from phalanx.distributed.bench import parse_size, sizes_between
from phalanx.widgets import format_size
from phalanx.workspace import Workspace

_HERE = Path(__file__).resolve().parent
_N_RANKS = 2
_LIMIT_S = 300
_ARENA, _TCP, _MLX = "phalanx arena", "phalanx tcp", "mlx ring"


def _ours(transport: str, path: str, sizes: list[int], budget_s: float) -> list[dict[str, Any]]:
    code = (
        f"import sys; sys.path.insert(0, {str(_HERE)!r})\n"
        f"import start_line\nstart_line.ours({path!r}, {sizes!r}, {budget_s!r})"
    )
    with Workspace.start(_N_RANKS, transport=transport) as workspace:
        results = workspace.run(code, timeout=_LIMIT_S)
    if any(result.value is None for result in results):
        sys.exit(f"a rank measured nothing: {results}")
    return list(ast.literal_eval(results[0].value))


def _free_ports(n: int) -> list[int]:
    """Ports that were free a moment ago: MLX wants their numbers before it listens."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def _mlx(path: str, sizes: list[int], budget_s: float) -> list[dict[str, Any]]:
    hosts = Path(path).with_suffix(".hosts")
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in _free_ports(_N_RANKS)]))
    asked = json.dumps({"path": path, "sizes": sizes, "budget_s": budget_s})
    ranks = [
        subprocess.Popen(
            [sys.executable, str(_HERE / "start_line.py"), asked],
            env={**os.environ, "MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)},
        )
        for rank in range(_N_RANKS)
    ]
    try:
        codes = [rank.wait(_LIMIT_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(codes):
        sys.exit(f"MLX's ranks ended with {codes}")
    return list(json.loads(Path(f"{path}.rank0").read_text()))


def _measure(peer: str, sizes: list[int], budget_s: float) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/start-line"
        if peer == _MLX:
            found = _mlx(path, sizes, budget_s)
        else:
            found = _ours("tcp" if peer == _TCP else "any", path, sizes, budget_s)
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
