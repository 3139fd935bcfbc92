"""Phalanx between two hosts beside Open MPI, MPICH, Intel MPI, Gloo and MLX, in one harness.

    python tests/bench/between_hosts.py --harness FOLDER up
    python tests/bench/between_hosts.py --harness FOLDER run --out r.jsonl --rounds 2
    python tests/bench/between_hosts.py --harness FOLDER shape 1gbit
    python tests/bench/between_hosts.py --harness FOLDER down

The hosts are two network namespaces joined by a veth pair (root, Linux), with one rank in each.
FOLDER has the harness (`twohosts.py`, `compare.py`, ...), whose command line follows it; peers are
found in virtual environments under $SB_VENVS, see its `peers.py`. A world of phalanx is formed as
MLX forms its ring, from a file of addresses, among those who hold a key.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent


def _peer_class(harness: Path, twohosts: Any) -> type:
    key = harness / "key"
    key.touch(mode=0o600)
    key.write_text(secrets.token_hex(32))
    addresses = harness / "addresses.json"

    class HostPeer(twohosts.HostPeer):  # type: ignore[misc, name-defined]
        """The harness's peers, and phalanx."""

        def environment(self) -> dict[str, str] | None:
            if self.name != "phalanx":
                own: dict[str, str] | None = super().environment()
                return own
            return {**os.environ, "PYTHONPATH": str(harness), "PHALANX_KEY_FILE": str(key)}

        def command(self, ranks: int, args: list[str]) -> list[str]:
            if self.name != "phalanx":
                theirs: list[str] = super().command(ranks, args)
                return theirs
            # Another port for each run: the last one's sockets may still be closing.
            port = 23000 + int(time.time()) % 5000
            addresses.write_text(json.dumps([[f"{a}:{port}"] for a in twohosts.HOSTS.values()]))
            work = [sys.executable, str(_HERE / "peer_phalanx.py"), *args]
            ours: list[str] = self.pair("MLX_RANK", {"MLX_HOSTFILE": str(addresses)}, work)
            return ours

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
