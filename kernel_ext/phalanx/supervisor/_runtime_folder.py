"""The user's runtime folder: where each workspace has its record, so that it can be found again.

A record is one file, NAME.json, locked (flock) by the root for as long as it lives: one that is
not locked is a dead root's, and is removed by whoever looks. It knows files, not what is said.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from phalanx.errors import DistributedError
from phalanx.protocol import WorkspaceRecord

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Claim", "RecordFile", "check_name", "claim_name", "find_record", "list_records"]

_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,99}", re.ASCII)
_ENDING = ".json"
_LOCK_PATIENCE_S = 0.2  # somebody who lists looks at a lock for some microseconds


def check_name(name: str) -> str:
    """Return a name that a workspace may have; `ValueError` for any other."""
    if not _NAME.fullmatch(name):
        msg = f"{name!r} cannot name a workspace: letters, digits, '_', '-' and '.', 100 at most"
        raise ValueError(msg)
    return name


# -- folders --------------------------------------------------------------------------------------


def _own_folder() -> Path:
    """Where this process puts its records; it need not exist."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    # Not where `su` has left another user's: that one is of no use to us.
    if runtime and os.access(runtime, os.W_OK | os.X_OK) and _owner(Path(runtime)) == os.geteuid():
        return Path(runtime, "phalanx")
    return Path(tempfile.gettempdir(), f"phalanx-{os.geteuid()}")


def _owner(path: Path) -> int:
    try:
        return path.lstat().st_uid
    except OSError:
        return -1


def _folders() -> list[Path]:
    """Folders that may hold this user's records: a terminal may lack what a desktop has set."""
    user = os.geteuid()
    known = [
        _own_folder(),
        Path(f"/run/user/{user}/phalanx"),
        Path(tempfile.gettempdir(), f"phalanx-{user}"),
    ]
    return [folder for folder in dict.fromkeys(known) if _exists(folder)]


def _exists(folder: Path) -> bool:
    try:
        folder.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    _check(folder, folder.lstat(), is_folder=True)
    return True


def _check(path: Path, found: os.stat_result, *, is_folder: bool) -> None:
    """Refuse what another user has made, or could change."""
    if found.st_uid != os.geteuid():
        msg = f"{path} belongs to {_user(found.st_uid)}, not to you: it is not used"
        raise DistributedError(msg)
    if not (stat.S_ISDIR if is_folder else stat.S_ISREG)(found.st_mode):
        msg = f"{path} is no {'folder' if is_folder else 'file'}: it is not used"
        raise DistributedError(msg)
    if stat.S_IMODE(found.st_mode) & 0o077:
        allowed = "700" if is_folder else "600"
        msg = f"{path} is open to other users and not used; close it with chmod {allowed}"
        raise DistributedError(msg)


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"


# -- writing --------------------------------------------------------------------------------------


class Claim:
    """A name that is taken: its file, locked, to be handed on to the root that shall have it.

    A context manager: at its end this process has no part in it any more. The lock stays with
    the root, which inherited the descriptor.
    """

    def __init__(self, name: str, path: Path, fd: int) -> None:
        self.name = name
        self.path = path
        self.fd = fd

    def give_up(self) -> None:
        """Remove the file: no root has it."""
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        """Use it to start a root."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the descriptor."""
        os.close(self.fd)


def claim_name(name: str, *, is_fixed: bool) -> Claim:
    """Take a name for a new workspace; one that is not ``is_fixed`` gets a number if need be.

    Raises
    ------
    DistributedError
        A workspace of this name runs, or the folder is another user's; in one line.
    """
    folder = _own_folder()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        _check(folder, folder.lstat(), is_folder=True)
        list_records()  # what dead roots have left goes now
        candidates = [name] if is_fixed else [name, *(f"{name}-{n}" for n in range(2, 1000))]
        for candidate in candidates:
            path = folder / f"{candidate}{_ENDING}"
            fd = _lock_new(path)
            if fd is not None:
                return Claim(candidate, path, fd)
    except OSError as error:
        msg = f"no record can be written in {folder}: {error.strerror}"
        raise DistributedError(msg) from error
    msg = (
        f"a workspace {name!r} runs already: choose another name, or %distributed attach {name}"
        f" (in a terminal, phalanx stop {name} ends it)"
    )
    raise DistributedError(msg)


def _lock_new(path: Path) -> int | None:
    """Open and lock a record's file; None if it is a living root's."""
    until_s = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _check(path, os.fstat(fd), is_folder=False)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same(fd, path):
                return fd
        except BlockingIOError:
            if os.fstat(fd).st_size or time.monotonic() > until_s:
                os.close(fd)
                return None
            time.sleep(0.005)
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # somebody has removed it as a dead root's just before


def _is_same(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


class RecordFile:
    """The root's side: what is written of it, until its end."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path
        os.set_inheritable(fd, False)

    def write(self, record: WorkspaceRecord) -> None:
        """Write the record in the place of the one before."""
        # One write of less than a page, with spaces to the old end: no reader sees half of it.
        data = msgspec.json.encode(record) + b"\n"
        os.pwrite(self._fd, data.ljust(os.fstat(self._fd).st_size), 0)

    def close(self) -> None:
        """Remove it, and let go of the name; idempotent."""
        if self._fd >= 0:
            if _is_same(self._fd, Path(self._path)):
                Path(self._path).unlink()
            os.close(self._fd)
            self._fd = -1


# -- reading --------------------------------------------------------------------------------------


def list_records() -> list[WorkspaceRecord]:
    """Return the records of this user's living roots, by name; those of dead ones are removed.

    Raises
    ------
    DistributedError
        A folder or file is another user's, or open to others.
    """
    found: dict[str, WorkspaceRecord] = {}
    for folder in _folders():
        for path in sorted(folder.glob(f"*{_ENDING}")):
            record = _read(path)
            if record is not None:
                found.setdefault(record.name, record)
    return [found[name] for name in sorted(found)]


def find_record(name: str) -> WorkspaceRecord | None:
    """Return the record of a living root by name."""
    check_name(name)
    for folder in _folders():
        record = _read(folder / f"{name}{_ENDING}")
        if record is not None:
            return record
    return None


def _read(path: Path) -> WorkspaceRecord | None:
    """Read a record; None where no living root has one."""
    try:
        _check(path, path.lstat(), is_folder=False)
        with _opened(path) as fd:
            _check(path, os.fstat(fd), is_folder=False)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _decode(path, os.pread(fd, 1 << 16, 0))
            # Nobody has it any more. The lock is ours: no new root can take it meanwhile.
            if _is_same(fd, path):
                path.unlink()
    except FileNotFoundError:
        pass
    return None


def _decode(path: Path, data: bytes) -> WorkspaceRecord | None:
    if not data.strip():
        return None  # a root that is about to start
    try:
        return msgspec.json.decode(data, type=WorkspaceRecord)
    except (ValueError, RecursionError):  # also a text that is no UTF-8
        msg = f"{path} is not in a form that this phalanx reads: another version's workspace"
        raise DistributedError(msg) from None


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
