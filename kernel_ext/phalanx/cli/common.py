"""Help several commands: split words, and describe the machine."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import phalanx
from phalanx.errors import did_you_mean


def split(words: Sequence[str], options: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """Split the words into our options and the user's command.

    The command begins at the first word that is not an option. ``options`` tells for each option of
    launch whether it takes a value. The error for an unknown option names the nearest.

    Examples
    --------
    >>> split(["-n", "2", "run.py", "--verbose", "-n"], {"-n": True, "--verbose": False})
    (['-n', '2'], ['run.py', '--verbose', '-n'])
    >>> split(["-n2", "-m", "pkg", "x"], {"-n": True, "-m": True})
    (['-n2'], ['-m', 'pkg', 'x'])
    >>> split(["--", "-odd"], {})
    ([], ['-odd'])
    """
    place = 0
    while place < len(words):
        word = words[place]
        if word == "--":
            return list(words[:place]), list(words[place + 1 :])
        if word == "-m" or not word.startswith("-") or word == "-":
            break
        name, has_value = _option(word)
        if name not in options:
            hint = did_you_mean(name, options, "see phalanx launch --help")
            msg = f"there is no option '{name}'; {hint}"
            raise ValueError(msg)
        place += 2 if options[name] and not has_value else 1
    return list(words[:place]), list(words[place:])


def _option(word: str) -> tuple[str, bool]:
    """Return an option's name, and whether the word includes a value."""
    if word.startswith("--"):
        name, equals, _ = word.partition("=")
        return name, bool(equals)
    return word[:2], len(word) > 2


def checked_cwd(folder: str | None) -> Path:
    """Return the ranks' start folder; raise `ValueError` if not usable."""
    cwd = Path(folder or Path.cwd()).absolute()
    if not cwd.is_dir():
        msg = f"--cwd {folder}: there is no such folder"
        raise ValueError(msg)
    if not os.access(cwd, os.X_OK):
        msg = f"--cwd {folder}: you may not go there"
        raise ValueError(msg)
    return cwd


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
