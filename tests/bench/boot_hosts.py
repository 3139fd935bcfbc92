"""How long ranks on several hosts take to boot and to stop: ours beside ipyparallel's ssh launcher.

Hosts are those of the test bed (network namespaces, a real sshd each; root is needed); the notebook
is on a host of its own. Boot is from before the first import in a fresh process to the answers of
all ranks to their first cell; stop is until that process has nothing running any more. Rounds
alternate. Then an empty cell in a real ipykernel: on all those hosts, and on one host.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import (
    arguments,
    median,
    numbers,
    percentile,
    print_machine,
    print_table,
    spread,
    write_json,
)
from support.hosts.bed import Bed, why_not

_LIMIT_S = 300


def ours(hosts: list[str], n_ranks: int, address: str) -> dict[str, float]:
    """Seconds of a workspace."""
    start = time.perf_counter()
    from phalanx.workspace import Workspace

    workspace = Workspace.start(n_ranks, hosts=hosts, linger=0, boot_timeout=120)
    values = [int(result.value) for result in workspace.run("rank")]
    booted = time.perf_counter()
    workspace.stop()
    if values != list(range(n_ranks * len(hosts))):
        msg = f"wrong answers: {values}"
        raise SystemExit(msg)
    return {"boot": booted - start, "stop": time.perf_counter() - booted}


def theirs(hosts: list[str], n_ranks: int, address: str) -> dict[str, float]:
    """Seconds of ipyparallel's ``Cluster`` with its ssh launcher."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        import ipyparallel
        from traitlets.config import Config

        config = Config()
        config.SSHEngineSetLauncher.engines = dict.fromkeys(hosts, n_ranks)
        config.SSHLauncher.remote_python = sys.executable
        config.SSHLauncher.remote_profile_dir = f"{folder}/remote"
        cluster = ipyparallel.Cluster(
            n=n_ranks * len(hosts),
            engines="ssh",
            controller_ip=address,
            profile_dir=f"{folder}/profile",
            config=config,
            log_level=50,
        )
        client = cluster.start_and_connect_sync()
        client[:].execute("rank = 1").get()
        booted = time.perf_counter()
        client.close()
        cluster.stop_cluster_sync()
        return {"boot": booted - start, "stop": time.perf_counter() - booted}


def cells(
    hosts: list[str], n_ranks: int, address: str, n_cells: int = 50
) -> dict[str, list[float]]:
    """Seconds of each empty cell."""
    from support.notebooks.kernel_driver import KernelDriver

    seconds = []
    with KernelDriver() as kernel:
        for code in (
            "%load_ext phalanx",
            f"%distributed start -n {n_ranks} --hosts {','.join(hosts)}",
        ):
            done = kernel.run(code, timeout=120)
            if done.status != "ok":
                sys.exit(f"{code}\n{done.text}")
        for i in range(-5, n_cells):
            start = time.perf_counter()
            kernel.run("%%distributed\npass")
            if i >= 0:
                seconds.append(time.perf_counter() - start)
        kernel.run("%distributed stop")
    return {"cell": seconds}


_CHILDREN = {"phalanx": ours, "ipyparallel": theirs, "cells": cells}


def _measure(bed: Bed, child: str, n_hosts: int, n_ranks: int) -> dict[str, object]:
    names = [host.name for host in bed.hosts[1 : n_hosts + 1]]
    words = [child, ",".join(names), str(n_ranks), bed.hosts[0].address]
    done = bed.run(
        0, [sys.executable, __file__, "--child", json.dumps(words)], check=False, timeout=_LIMIT_S
    )
    if done.returncode:
        sys.exit(f"{child} did not boot on {n_hosts} hosts:\n{done.stdout}{done.stderr}")
    left = bed.left(2.0)
    record = {"peer": child, "hosts": n_hosts, "ranks": n_ranks, "left": len(left)}
    for process in bed.processes():
        process.kill()
    return {**record, **json.loads(done.stdout.splitlines()[-1])}


def _boots(
    bed: Bed, peers: list[str], hosts: list[int], n_ranks: int, rounds: int
) -> list[dict[str, object]]:
    records = [
        _measure(bed, peer, n_hosts, n_ranks)
        for _ in range(rounds)
        for n_hosts in hosts
        for peer in peers
    ]
    rows = []
    for n_hosts in hosts:
        of = {
            peer: [r for r in records if r["hosts"] == n_hosts and r["peer"] == peer]
            for peer in peers
        }
        last_s = median([r["boot"] for r in of[peers[-1]]])
        for peer, its in of.items():
            boot, stop = [r["boot"] for r in its], [r["stop"] for r in its]
            left = max(r["left"] for r in its)
            share = f"{median(boot) / last_s:.2f}"
            rows.append(
                [peer, n_hosts, n_ranks, f"{median(boot):.2f}", spread(boot), share,
                 f"{median(stop):.2f}", spread(stop), left]
            )  # fmt: skip
    print_table(
        ["boot of", "hosts", "ranks each", "median s", "lowest-highest s", f"of {peers[-1]}'s",
         "stop median s", "lowest-highest s", "left after 2 s"],
        rows,
    )  # fmt: skip
    return records


def _cells(bed: Bed, hosts: list[int], n_ranks: int) -> list[dict[str, object]]:
    most = max(hosts)
    worlds = dict.fromkeys([(1, n_ranks), (1, n_ranks * most), (most, n_ranks)])
    records = [_measure(bed, "cells", *world) for world in worlds]
    first = median(records[0]["cell"])
    print()
    print_table(
        ["empty cell on", "ranks each", "median ms", "p90 ms", "of the first"],
        [
            [f"{r['hosts']} hosts", r["ranks"], f"{median(r['cell']) * 1e3:.1f}",
             f"{percentile(r['cell'], 90) * 1e3:.1f}", f"{median(r['cell']) / first:.2f}"]
            for r in records
        ],
    )  # fmt: skip
    return records


def main() -> None:
    parser = arguments(
        "Boot and stop on several hosts, ours beside ipyparallel's ssh launcher; an empty cell.",
        hosts=("1,4,8", "numbers of hosts"),
        ranks=(2, "ranks on each"),
        rounds=(3, "alternating rounds"),
        peers=("phalanx,ipyparallel", "whom to boot"),
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        peer, names, n_ranks, address = json.loads(options.child)
        print(json.dumps(_CHILDREN[peer](names.split(","), int(n_ranks), address)))
        return
    if reason := why_not():
        sys.exit(reason)
    print_machine()
    hosts = numbers(options.hosts)
    with Bed(max(hosts) + 1) as bed:
        records = _boots(bed, options.peers.split(","), hosts, options.ranks, options.rounds)
        records += _cells(bed, hosts, options.ranks)
    write_json(options.json, records)


if __name__ == "__main__":
    main()
