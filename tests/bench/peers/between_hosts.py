"""Phalanx between two hosts beside Open MPI, MPICH, Intel MPI, Gloo and MLX, in one harness.

    python tests/bench/peers/between_hosts.py --harness FOLDER up
    python tests/bench/peers/between_hosts.py --harness FOLDER run --out r.jsonl --rounds 2
    python tests/bench/peers/between_hosts.py --harness FOLDER shape 1gbit
    python tests/bench/peers/between_hosts.py --harness FOLDER down

The hosts are two network namespaces joined by a veth pair (root, Linux), with one rank in each.
FOLDER has the harness (`twohosts.py`, `compare.py`, ...), whose command line follows it; peers are
found in virtual environments under $SB_VENVS, see its `peers.py`. `phalanx launch` starts ours, with
a stand-in for ssh that enters the other namespace.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent


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


def _peer_class(harness: Path, twohosts: Any) -> type:
    tools = harness / "tools"
    tools.mkdir()
    ssh = tools / "ssh"
    cases = "\n".join(f"{address}) namespace={ns} ;;" for ns, address in twohosts.HOSTS.items())
    ssh.write_text(_SSH.format(cases=cases))
    ssh.chmod(0o700)

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
            launch = [sys.executable, "-m", "phalanx", "launch", "--label", "none"]
            launch += ["--hosts", ",".join(twohosts.HOSTS.values())]
            work = [str(_HERE / "peer_phalanx.py"), *args]
            return ["ip", "netns", "exec", next(iter(twohosts.HOSTS)), *launch, *work]

    return HostPeer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--harness", type=Path, required=True, help="folder of twohosts.py")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="up, run, shape, ...: the harness's")
    options = parser.parse_args()
    if not (options.harness / "twohosts.py").is_file():
        parser.error(f"there is no twohosts.py in {options.harness}")
    with tempfile.TemporaryDirectory() as folder:
        # The harness builds its helpers beside itself, and its folder may be read-only.
        harness = Path(folder) / "harness"
        shutil.copytree(options.harness, harness, copy_function=shutil.copy)
        harness.chmod(0o700)
        sys.path.insert(0, str(harness))
        import twohosts  # the harness's

        twohosts.HostPeer = _peer_class(harness, twohosts)
        if options.rest[:1] == ["run"] and "--peers" not in options.rest:
            options.rest += ["--peers", "phalanx,openmpi,mpich,impi,gloo,mlx-ring"]
        sys.argv = ["twohosts.py", *options.rest]
        twohosts.main()


if __name__ == "__main__":
    main()
