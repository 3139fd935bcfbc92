"""Build the wheel that users get, install it without a compiler, and run a cell on two ranks.

`tests/run wheel` calls it. The wheel is in ``build/dist``, with the tag of the oldest Linux that it
runs on (auditwheel). It is installed in a fresh environment from a folder of downloaded wheels, so
that the printed seconds are those of the installation alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "build" / "dist"
REQUIREMENTS = ROOT / "tests" / "requirements.txt"
CELL = """
import phalanx as px
with px.Workspace.start(n=2) as ws:
    found = [result.value for result in ws.run("px.all_sum(rank + 1)", timeout=60)]
assert found == ["3", "3"], found
print("one cell on two ranks:", found)
"""


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path = ROOT) -> None:
    """Run a command that must end well."""
    subprocess.run(command, check=True, env=env, cwd=cwd, timeout=900)


def build() -> Path:
    """Build the wheel, unless tests/run has, and give it the tag of the Linux that it needs."""
    shutil.rmtree(DIST, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as folder:
        plain = os.environ.get("PHALANX_WHEEL")
        if plain is None:
            run(*pip, "wheel", "--no-deps", "-w", folder, ".")
            (plain,) = Path(folder).glob("phalanx-*.whl")
        run(sys.executable, "-m", "auditwheel", "repair", "-w", DIST, plain)
    (wheel,) = DIST.glob("phalanx-*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """Install the wheel where nothing can be compiled; return that environment's Python."""
    run(sys.executable, "-m", "venv", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "-q", "--disable-pip-version-check"]
    wheels = folder / "wheels"
    only = ["--only-binary", ":all:"]  # pip would compile a package that has no wheel
    run(*pip, "download", *only, "-c", REQUIREMENTS, "-d", wheels, wheel)
    start_s = time.monotonic()
    run(*pip, "install", *only, "--no-index", "--find-links", wheels, wheel)
    print(f"{wheel.name}: installed in {time.monotonic() - start_s:.1f} s")
    return python


def main(words: Sequence[str]) -> int:
    if words:
        print(__doc__, file=sys.stderr)
        return 2
    wheel = build()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = install(wheel, folder)
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        # No compiler, no other Python, no sources: only what the wheel has brought.
        run(python, "-c", CELL, env=clean | {"PATH": str(python.parent)}, cwd=folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
