"""Phalanx beside Open MPI, MPICH, Intel MPI, Gloo and MLX, in one run of one harness.

    python tests/bench/peers/beside_peers.py --harness FOLDER run --out r.jsonl --rounds 2 --ranks 2
    python tests/bench/peers/beside_peers.py --harness FOLDER table r.jsonl --placement near
    python tests/bench/peers/beside_peers.py --harness FOLDER --hosts up
    python tests/bench/peers/beside_peers.py --harness FOLDER --hosts run --out r.jsonl --rounds 2
    python tests/bench/peers/beside_peers.py --harness FOLDER --hosts shape 1gbit
    python tests/bench/peers/beside_peers.py --harness FOLDER --hosts down

FOLDER has the harness (`compare.py`, `benchlib.py`, `quiet.py`, a runner per peer). It starts the
peers in turns, waits for a quiet machine, verifies every result and says how the cores sat. Peers
are found in virtual environments under $SB_VENVS, see its `peers.py`. What follows the folder is
the harness's own command line.

With `--hosts` it is that of `twohosts.py`: two network namespaces joined by a veth pair (root,
Linux), with one rank in each; `phalanx launch` has a stand-in for ssh that enters the other one.
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

_SCRIPT = str(Path(__file__).resolve().with_name("peer_phalanx.py"))
_LAUNCH = [sys.executable, "-m", "phalanx", "launch", "--label", "none"]
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


def add_to_peers(harness: Path) -> None:
    """Make phalanx a peer on one machine."""
    import peers  # the harness's

    @dataclass
    class Phalanx(peers.Peer):  # type: ignore[misc, name-defined]
        def command(self, ranks: int, args: list[str]) -> list[str]:
            return [*_LAUNCH, "-n", str(ranks), *self.flags, _SCRIPT, *args]

        def environment(self) -> dict[str, str]:
            own: dict[str, Any] = super().environment()
            return {**own, "PYTHONPATH": str(harness)}

    for name, transport in (("phalanx", "any"), ("phalanx-tcp", "tcp")):
        peers.PEERS.insert(0, Phalanx(name, transport, "", "", ["--transport", transport]))


def add_to_hosts(harness: Path) -> Any:
    """Make phalanx a peer between the two namespaces; return the harness's module."""
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
            launch = [*_LAUNCH, "--hosts", ",".join(twohosts.HOSTS.values()), _SCRIPT, *args]
            return ["ip", "netns", "exec", next(iter(twohosts.HOSTS)), *launch]

    twohosts.HostPeer = HostPeer
    return twohosts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--harness", type=Path, required=True, help="folder of compare.py")
    parser.add_argument("--hosts", action="store_true", help="between two hosts, by twohosts.py")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="run, table, ...: the harness's")
    options = parser.parse_args()
    program = "twohosts.py" if options.hosts else "compare.py"
    if not (options.harness / program).is_file():
        parser.error(f"there is no {program} in {options.harness}")
    with tempfile.TemporaryDirectory() as folder:
        # The harness builds its helpers beside itself, and its folder may be read-only.
        harness = Path(folder) / "harness"
        shutil.copytree(options.harness, harness, copy_function=shutil.copy)
        harness.chmod(0o700)
        sys.path.insert(0, str(harness))
        sys.argv = [program, *options.rest]
        if options.hosts:
            if options.rest[:1] == ["run"] and "--peers" not in options.rest:
                sys.argv += ["--peers", "phalanx,openmpi,mpich,impi,gloo,mlx-ring"]
            add_to_hosts(harness).main()
        else:
            add_to_peers(harness)
            runpy.run_path(str(harness / program), run_name="__main__")


if __name__ == "__main__":
    main()
