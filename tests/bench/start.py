"""How long ranks take to start, to be attached to again, and to be replaced; on one host or several.

- boot: from before the first import in a fresh process to the answers of all ranks to their first
  cell, beside ipyparallel's Cluster; stop: until that process has nothing running any more.
- attach: from `Workspace.attach` to the answers to a first cell; from this process, and from a new one
  (without its imports, which a notebook has done before). The mark is 1 s (issue 6).
- restart: a rank is killed between two cells; from the asking for a new one, once the workspace knows
  of the death, until it is there, and until the next right sum of all ranks.

With `--hosts 1,4,8` the ranks boot on so many hosts of the test bed (network namespaces, a real sshd
each; root is needed), beside ipyparallel's ssh launcher, and the times of an empty cell in a real
ipykernel follow. Rounds alternate, so that a busy minute hits all.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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
_N_CELLS = 50


def _check(values: list[str | None], expected: list[str]) -> None:
    if values != expected:
        sys.exit(f"wrong answers: {values}")


# -- what a fresh process measures: times by name ------------------------------------------------


def boot_phalanx(n_ranks: int, hosts: list[str], _where: str) -> dict[str, Any]:
    """Boot a workspace, and stop it."""
    start = time.perf_counter()
    from phalanx.workspace import Workspace

    options = {"hosts": hosts, "boot_timeout": 120} if hosts else {}
    workspace = Workspace.start(n_ranks, linger=0, **options)
    values = [result.value for result in workspace.run("rank")]
    booted = time.perf_counter()
    workspace.stop()
    _check(values, [str(rank) for rank in range(n_ranks * max(1, len(hosts)))])
    return {"boot": booted - start, "stop": time.perf_counter() - booted}


def boot_ipyparallel(n_ranks: int, hosts: list[str], where: str) -> dict[str, Any]:
    """Boot ipyparallel's ``Cluster`` with its defaults, or its ssh launcher."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        import ipyparallel
        from traitlets.config import Config

        config = Config()
        config.SSHEngineSetLauncher.engines = dict.fromkeys(hosts, n_ranks)
        config.SSHLauncher.remote_python = sys.executable
        config.SSHLauncher.remote_profile_dir = f"{folder}/remote"
        options = {"engines": "ssh", "controller_ip": where, "config": config} if hosts else {}
        cluster = ipyparallel.Cluster(
            n=n_ranks * max(1, len(hosts)),
            profile_dir=f"{folder}/profile",
            log_level=50,
            **options,
        )
        client = cluster.start_and_connect_sync()
        client[:].execute("rank = 1").get()
        booted = time.perf_counter()
        client.close()
        cluster.stop_cluster_sync()
        return {"boot": booted - start, "stop": time.perf_counter() - booted}


def attach(n_ranks: int, _hosts: list[str], name: str) -> dict[str, Any]:
    """Attach to a workspace, and run a cell."""
    from phalanx.workspace import Workspace

    start = time.perf_counter()
    with Workspace.attach(name) as workspace:
        workspace.join()
        values = [result.value for result in workspace.run("px.all_sum(1)")]
        seconds = time.perf_counter() - start
    _check(values, [str(n_ranks)] * n_ranks)
    return {"attach": seconds}


def cells(n_ranks: int, hosts: list[str], _where: str) -> dict[str, Any]:
    """Run empty cells."""
    from support.notebooks.kernel_driver import KernelDriver

    seconds = []
    with KernelDriver() as kernel:
        start = f"%distributed start -n {n_ranks} --hosts {','.join(hosts)}"
        done = kernel.run(f"%load_ext phalanx\n{start}", timeout=120)
        if done.status != "ok":
            sys.exit(done.text)
        for i in range(-5, _N_CELLS):
            begun = time.perf_counter()
            kernel.run("%%distributed\npass")
            if i >= 0:
                seconds.append(time.perf_counter() - begun)
        kernel.run("%distributed stop")
    return {"cell": seconds}


_CHILDREN = {
    "phalanx": boot_phalanx, "ipyparallel": boot_ipyparallel, "attach": attach, "cells": cells,
}  # fmt: skip


def in_new_process(
    what: str, n_ranks: int, hosts: list[str], where: str, bed: Bed | None = None
) -> dict[str, Any]:
    """Return what a fresh process measures, on the bed's first host if there is a bed."""
    words = [sys.executable, __file__, "--child", json.dumps([what, n_ranks, hosts, where])]
    if bed is not None:
        done = bed.run(0, words, check=False, timeout=_LIMIT_S)
    else:
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=_LIMIT_S)
    if done.returncode:
        sys.exit(f"{what} failed:\n{done.stdout}{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


# -- one host --------------------------------------------------------------------------------------


def restart(n_ranks: int, name: str, rank: int) -> tuple[float, float]:
    """Kill a rank; return the seconds until a new one takes cells, and until the first right sum."""
    from phalanx.workspace import Workspace

    with Workspace.attach(name) as workspace:
        os.kill(workspace.topology().ranks[rank].pid, signal.SIGKILL)
        while workspace.topology().ranks[rank].state != "dead":
            time.sleep(0.001)
        start = time.perf_counter()
        workspace.restart(rank)
        replaced_s = time.perf_counter() - start
        values = [result.value for result in workspace.run("px.all_sum(rank + 1)")]
        sum_s = time.perf_counter() - start
    _check(values, [str(n_ranks * (n_ranks + 1) // 2)] * n_ranks)
    return replaced_s, sum_s


def on_one_host(n_ranks: int, n_rounds: int, peers: list[str]) -> list[dict[str, Any]]:
    """Measure boots, then attaching and replacing; print the table."""
    from phalanx.workspace import Workspace

    times: dict[str, list[float]] = {}
    for _ in range(n_rounds):
        for peer in peers:
            boot_s = in_new_process(peer, n_ranks, [], "")["boot"]
            times.setdefault(f"boot {peer}", []).append(boot_s)
    with Workspace.start(n_ranks, detach=True) as workspace:
        name = workspace.name
    try:
        for i in range(n_rounds):
            replaced_s, sum_s = restart(n_ranks, name, i % n_ranks)
            for what, seconds in {
                "attach, same process": attach(n_ranks, [], name)["attach"],
                "attach, new process": in_new_process("attach", n_ranks, [], name)["attach"],
                "restart, it is there": replaced_s,
                "restart, first right sum": sum_s,
            }.items():
                times.setdefault(what, []).append(seconds)
    finally:
        Workspace.attach(name).stop()
    print_table(
        ["what", "ranks", "median s", "lowest-highest s", "times"],
        [
            (what, n_ranks, f"{median(own):.3f}", spread(own), len(own))
            for what, own in times.items()
        ],
    )
    return [
        {"what": what, "ranks": n_ranks, "round": i, "seconds": seconds}
        for what, own in times.items()
        for i, seconds in enumerate(own)
    ]


# -- several hosts ---------------------------------------------------------------------------------


def on_hosts(bed: Bed, what: str, n_hosts: int, n_ranks: int) -> dict[str, Any]:
    """Measure on so many hosts of the bed; what is left there 2 s after counts, too."""
    names = [host.name for host in bed.hosts[1 : n_hosts + 1]]
    found = in_new_process(what, n_ranks, names, bed.hosts[0].address, bed)
    left = bed.left(2.0)
    for process in bed.processes():
        process.kill()
    return {"peer": what, "hosts": n_hosts, "ranks": n_ranks, "left": len(left), **found}


def on_several_hosts(
    bed: Bed, hosts: list[int], n_ranks: int, n_rounds: int, peers: list[str]
) -> list[dict[str, Any]]:
    """Measure boots on all these numbers of hosts, then cells; print the tables."""
    records = [
        on_hosts(bed, peer, n_hosts, n_ranks)
        for _ in range(n_rounds)
        for n_hosts in hosts
        for peer in peers
    ]
    rows = []
    for n_hosts in hosts:
        for peer in peers:
            its = [r for r in records if (r["hosts"], r["peer"]) == (n_hosts, peer)]
            boot, stop = [r["boot"] for r in its], [r["stop"] for r in its]
            rows.append(
                [peer, n_hosts, n_ranks, f"{median(boot):.2f}", spread(boot),
                 f"{median(stop):.2f}", spread(stop), max(r["left"] for r in its)]
            )  # fmt: skip
    print_table(
        ["boot of", "hosts", "ranks each", "median s", "lowest-highest s", "stop median s",
         "lowest-highest s", "left after 2 s"],
        rows,
    )  # fmt: skip
    print()
    most = max(hosts)
    worlds = dict.fromkeys([(1, n_ranks), (1, n_ranks * most), (most, n_ranks)])
    of_cells = [on_hosts(bed, "cells", *world) for world in worlds]
    print_table(
        ["empty cell on", "ranks each", "median ms", "p90 ms"],
        [
            [f"{r['hosts']} hosts", r["ranks"], f"{median(r['cell']) * 1e3:.1f}",
             f"{percentile(r['cell'], 90) * 1e3:.1f}"]
            for r in of_cells
        ],
    )  # fmt: skip
    return records + of_cells


def main() -> None:
    parser = arguments(
        "Time to start ranks, beside ipyparallel; to attach to them; to replace one.",
        ranks=(4, "how many, on each host"),
        rounds=(7, "how often each"),
        hosts=("", "numbers of hosts, such as 1,4,8, to boot on instead"),
        peers=("phalanx,ipyparallel", "whom to boot"),
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        what, *rest = json.loads(options.child)
        print(json.dumps(_CHILDREN[what](*rest)))
        return
    if options.hosts and (reason := why_not()):
        sys.exit(reason)
    print_machine()
    how = (options.ranks, options.rounds, options.peers.split(","))
    if options.hosts:
        hosts = numbers(options.hosts)
        with Bed(max(hosts) + 1) as bed:
            records = on_several_hosts(bed, hosts, *how)
    else:
        records = on_one_host(*how)
    write_json(options.json, records)


if __name__ == "__main__":
    main()
