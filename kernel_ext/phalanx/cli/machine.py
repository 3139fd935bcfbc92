"""Describe the machine and versions, for measurements."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import phalanx


def machine_header(checkout: Path | None = None) -> dict[str, str]:
    """Return a description of the machine and versions, for measurements.

    ``checkout`` is any folder of a git checkout of phalanx; by default that of the package.

    Examples
    --------
    >>> machine_header()["phalanx"] == phalanx.__version__
    True
    """
    return {
        "phalanx": phalanx.__version__,
        "commit": _commit(checkout or Path(phalanx.__file__).resolve().parent),
        "machine": f"{_processor()}, {_cores()} cores, {_memory()}",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": metadata.version("numpy"),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _cores() -> int:
    """Return the cores usable by this process (Linux), else all cores."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> str:
    return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"


def _commit(folder: Path) -> str:
    """Return the commit of the folder's checkout, else "unknown" (a wheel)."""
    git = shutil.which("git")
    if git is None:
        return "unknown"

    def ask(*words: str) -> str:
        said = subprocess.run(
            [git, "-C", str(folder), *words], capture_output=True, text=True, check=False
        )
        return said.stdout.strip()

    # A virtual environment may lie inside another checkout: require tracked files.
    if not ask("ls-files", "--", "."):
        return "unknown"
    return ask("describe", "--always", "--dirty", "--abbrev=9") or "unknown"
