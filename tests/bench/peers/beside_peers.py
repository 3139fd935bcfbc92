"""Phalanx beside Open MPI, MPICH, Intel MPI, Gloo and MLX, in one run of one harness.

    python tests/bench/peers/beside_peers.py --harness FOLDER run --out r.jsonl --rounds 2 --ranks 2
    python tests/bench/peers/beside_peers.py --harness FOLDER table r.jsonl --placement near

FOLDER has the harness (`compare.py`, `benchlib.py`, `quiet.py`, a runner per peer). It starts the
peers in turns, waits for a quiet machine, verifies every result and says how the cores sat. Peers
are found in virtual environments under $SB_VENVS, see its `peers.py`. What follows the folder is
the harness's own command line.
"""

from __future__ import annotations

import argparse
import runpy
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent


def add_phalanx(harness: Path) -> None:
    import peers  # the harness's

    @dataclass
    class Phalanx(peers.Peer):  # type: ignore[misc, name-defined]
        def command(self, ranks: int, args: list[str]) -> list[str]:
            launch = [sys.executable, "-m", "phalanx", "launch", "-n", str(ranks)]
            script = str(_HERE / "peer_phalanx.py")
            return [*launch, *self.flags, "--label", "none", script, *args]

        def environment(self) -> dict[str, str]:
            own: dict[str, Any] = super().environment()
            return {**own, "PYTHONPATH": str(harness)}

    for name, transport in (("phalanx", "any"), ("phalanx-tcp", "tcp")):
        peers.PEERS.insert(0, Phalanx(name, transport, "", "", ["--transport", transport]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--harness", type=Path, required=True, help="folder of compare.py")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="run, table or moved: the harness's")
    options = parser.parse_args()
    if not (options.harness / "compare.py").is_file():
        parser.error(f"there is no compare.py in {options.harness}")
    with tempfile.TemporaryDirectory() as folder:
        # The harness builds its helpers beside itself, and its folder may be read-only.
        harness = Path(folder) / "harness"
        shutil.copytree(options.harness, harness, copy_function=shutil.copy)
        harness.chmod(0o700)
        sys.path.insert(0, str(harness))
        add_phalanx(harness)
        sys.argv = ["compare.py", *options.rest]
        runpy.run_path(str(harness / "compare.py"), run_name="__main__")


if __name__ == "__main__":
    main()
