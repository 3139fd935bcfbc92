"""Phalanx beside Open MPI, MPICH, Intel MPI, Gloo and MLX, in one run of one harness.

    python tests/bench/peers/beside_peers.py --harness FOLDER run --out r.jsonl --rounds 2 --ranks 2
    python tests/bench/peers/beside_peers.py --harness FOLDER table r.jsonl --placement near

FOLDER has the harness (`compare.py`, `benchlib.py`, `quiet.py`, a runner per peer). It starts the
peers in turns, waits for a quiet machine, verifies every result and says how the cores sat. Peers
are found in virtual environments under $SB_VENVS, see its `peers.py`. What follows the folder is
the harness's own command line.

Between two hosts, which are network namespaces joined by a veth pair (root, Linux), with one rank in
each (`twohosts.py`):

    python tests/bench/peers/beside_peers.py --harness FOLDER --two-hosts up
    python tests/bench/peers/beside_peers.py --harness FOLDER --two-hosts run --out r.jsonl --rounds 2
    python tests/bench/peers/beside_peers.py --harness FOLDER --two-hosts shape 1gbit
    python tests/bench/peers/beside_peers.py --harness FOLDER --two-hosts down

`phalanx launch` starts ours there, with a stand-in for ssh that enters the other namespace.
"""

from __future__ import annotations

import argparse
import os
import runpy
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LAUNCH = [sys.executable, "-m", "phalanx", "launch", "--label", "none"]
_RANK = str(Path(__file__).with_name("peer_phalanx.py"))
_SSH = """#!/bin/sh
# Stand in for ssh: run a command in the network namespace that has the address.
for word; do [ "$word" != -G ] || exit 1; done
while [ "$1" != -- ]; do shift; done
case "$2" in
{cases}
*) echo "unknown host $2" >&2; exit 1 ;;
esac
exec ip netns exec $namespace sh -c "$3"
"""


def run_on_one_host(harness: Path, words: list[str]) -> None:
    """Run the harness of one machine, with our shared memory and our tcp among its peers."""
    import peers  # the harness's

    @dataclass
    class Phalanx(peers.Peer):  # type: ignore[misc, name-defined]
        def command(self, ranks: int, args: list[str]) -> list[str]:
            return [*_LAUNCH, "-n", str(ranks), *self.flags, _RANK, *args]

        def environment(self) -> dict[str, str]:
            own: dict[str, Any] = super().environment()
            return {**own, "PYTHONPATH": str(harness)}

    for name, transport in (("phalanx", "any"), ("phalanx-tcp", "tcp")):
        peers.PEERS.insert(0, Phalanx(name, transport, "", "", ["--transport", transport]))
    sys.argv = ["compare.py", *words]
    runpy.run_path(str(harness / "compare.py"), run_name="__main__")


def run_on_two_hosts(harness: Path, words: list[str]) -> None:
    """Run the harness of two hosts, with phalanx among its peers."""
    import twohosts  # the harness's

    tools = harness / "tools"
    tools.mkdir()
    cases = "\n".join(f"{address}) namespace={ns} ;;" for ns, address in twohosts.HOSTS.items())
    (tools / "ssh").write_text(_SSH.format(cases=cases))
    (tools / "ssh").chmod(0o700)

    class HostPeer(twohosts.HostPeer):  # type: ignore[misc, name-defined]
        """The harness's peers, and phalanx."""

        def environment(self) -> dict[str, str] | None:
            if self.name != "phalanx":
                own: dict[str, str] | None = super().environment()
                return own
            path = os.pathsep.join([str(tools), os.environ["PATH"]])
            return {**os.environ, "PYTHONPATH": str(harness), "PATH": path}

        def command(self, ranks: int, args: list[str]) -> list[str]:
            if self.name != "phalanx":
                theirs: list[str] = super().command(ranks, args)
                return theirs
            hosts = ["--hosts", ",".join(twohosts.HOSTS.values())]
            enter = ["ip", "netns", "exec", next(iter(twohosts.HOSTS))]
            return [*enter, *_LAUNCH, *hosts, _RANK, *args]

    twohosts.HostPeer = HostPeer
    if words[:1] == ["run"] and "--peers" not in words:
        words = [*words, "--peers", "phalanx,openmpi,mpich,impi,gloo,mlx-ring"]
    sys.argv = ["twohosts.py", *words]
    twohosts.main()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--harness", type=Path, required=True, help="folder of compare.py")
    parser.add_argument("--two-hosts", action="store_true", help="one rank on each of two hosts")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="run, table, up, ...: the harness's")
    options = parser.parse_args()
    run = run_on_two_hosts if options.two_hosts else run_on_one_host
    if not (options.harness / "compare.py").is_file():
        parser.error(f"there is no compare.py in {options.harness}")
    with tempfile.TemporaryDirectory() as folder:
        # The harness builds its helpers beside itself, and its folder may be read-only.
        harness = Path(folder) / "harness"
        shutil.copytree(options.harness, harness, copy_function=shutil.copy)
        harness.chmod(0o700)
        sys.path.insert(0, str(harness))
        run(harness, options.rest)


if __name__ == "__main__":
    main()
