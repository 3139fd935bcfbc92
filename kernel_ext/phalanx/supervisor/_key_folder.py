"""A folder that all nodes of a cluster see, for what supervisors read that nobody feeds.

Its owner alone can read it. Each supervisor takes its own first line, in which its keys are, and
removes it; what it could not do it leaves in words. Nothing of it is on a command line.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["KeyFolder", "job_folder", "last_words", "say_in", "take_key"]

_WORDS_MAX_NBYTES = 4096


def job_folder() -> Path:
    """Return the folder in which those of jobs are made, which need not be there yet.

    ``PHALANX_JOB_DIR``, else in the user's cache folder: home folders are what clusters share.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    base = Path(os.environ.get("PHALANX_JOB_DIR") or cache / "phalanx" / "jobs")
    return base.absolute()


class KeyFolder:
    """The first lines of some supervisors, each in a file of its own; removed with `remove`."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        base = job_folder()
        base.mkdir(parents=True, exist_ok=True)
        self.path = Path(tempfile.mkdtemp(prefix="job-", dir=base))  # 0700
        for number, line in enumerate(lines):
            fd = os.open(self.key(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(line.rstrip(b"\n") + b"\n")

    def __str__(self) -> str:
        """Its path."""
        return str(self.path)

    def key(self, number: int) -> Path:
        """Where a supervisor finds its first line."""
        return self.path / f"host-{number}"

    def said(self, number: int) -> str:
        """Return why a supervisor has not come; "" if it has not said so."""
        return last_words(_said_by(self.key(number)))

    def remove(self) -> None:
        """Remove all of it; idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)


def take_key(path: Path) -> bytes:
    """Read a supervisor's first line and remove it; b"" if somebody else has.

    Raises
    ------
    SystemExit
        Others may have read it, or written it.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return b""
    with os.fdopen(fd, "rb") as file:
        its = os.fstat(fd)
        if its.st_uid != os.geteuid() or stat.S_IMODE(its.st_mode) & 0o077:
            sys.exit(f"{path} is not its owner's alone")
        path.unlink()
        return file.readline()


def say_in(path: Path, words: str) -> None:
    """Leave word of why the supervisor of this key has not come; the first word holds."""
    try:
        fd = os.open(_said_by(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:  # it has been said, or nobody waits any more: the folder is gone
        return
    with os.fdopen(fd, "w") as file:
        file.write(words[:_WORDS_MAX_NBYTES])


def last_words(path: Path, *, but: str = "") -> str:
    """Return the last line of a file that says something, ``but`` for this one; "" without one."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _WORDS_MAX_NBYTES))
            text = file.read(_WORDS_MAX_NBYTES).decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip() not in {"", but}]
    return lines[-1] if lines else ""


def _said_by(path: Path) -> Path:
    return path.with_name(f"{path.name}.said")
