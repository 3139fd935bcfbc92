"""Keep one record file per workspace in the user's runtime directory.

A record is the file NAME.json. The root holds a lock (flock) on it until the root ends. An unlocked
file belongs to a dead root, and any process that reads the records removes it.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from phalanx.errors import DistributedError
from phalanx.protocol import WorkspaceRecord

if TYPE_CHECKING:
    from typing_extensions import Self

_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,99}", re.ASCII)
_ENDING = ".json"
_LOCK_PATIENCE_S = 0.2  # a process that lists records holds a lock for some microseconds


def check_name(name: str) -> str:
    """Return ``name`` if a workspace may have it, else raise `ValueError`."""
    if not _NAME.fullmatch(name):
        msg = f"{name!r} cannot name a workspace: use a-z, A-Z, 0-9, '_', '-' and '.', 100 at most"
        raise ValueError(msg)
    return name


# -- folders --------------------------------------------------------------------------------------


def _own_folder() -> Path:
    """Return the folder for this process's records; it need not exist."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    # `su` may leave another user's XDG_RUNTIME_DIR in the environment, which this user cannot use.
    if runtime and os.access(runtime, os.W_OK | os.X_OK) and _owner(Path(runtime)) == os.geteuid():
        return Path(runtime, "phalanx")
    return Path(tempfile.gettempdir(), f"phalanx-{os.geteuid()}")


def _owner(path: Path) -> int:
    try:
        return path.lstat().st_uid
    except OSError:
        return -1


def _folders() -> list[Path]:
    """Return the folders that may hold this user's records.

    A terminal may lack the XDG_RUNTIME_DIR that the desktop session has.
    """
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
    """Refuse a path that another user has made or could change."""
    if found.st_uid != os.geteuid():
        msg = f"{path} belongs to {_user(found.st_uid)}, not to you: it is not used"
        if is_folder:  # anybody can make a folder in /tmp first
            msg += "; set XDG_RUNTIME_DIR to a folder of your own"
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
    """Hold a locked record file until a root takes it over.

    A context manager. At its end this process closes its descriptor. The root keeps the lock,
    because the root inherited the descriptor.
    """

    def __init__(self, name: str, path: Path, fd: int) -> None:
        self.name = name
        self.path = path
        self.fd = fd

    def give_up(self) -> None:
        """Remove the file: no root was started."""
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        """Return the claim, to start a root with it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the descriptor."""
        os.close(self.fd)


def claim_name(name: str, *, is_fixed: bool) -> Claim:
    """Claim a name for a new workspace.

    A name that is not ``is_fixed`` gets a number if it is taken.

    Raises
    ------
    DistributedError
        A workspace of this name runs, the folder belongs to another user, or no record can be
        written.
    """
    folder = _own_folder()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        _check(folder, folder.lstat(), is_folder=True)
        list_records()  # removes the records of dead roots
        candidates = [name] if is_fixed else [name, *(f"{name}-{n}" for n in range(2, 1000))]
        for candidate in candidates:
            path = folder / f"{candidate}{_ENDING}"
            fd = _lock_new(path)
            if fd is not None:
                return Claim(candidate, path, fd)
    except OSError as error:
        raise _unwritten(folder, error) from error
    msg = (
        f"a workspace {name!r} runs already: choose another name, or %distributed attach {name}"
        f" (in a terminal, phalanx stop {name} ends it)"
    )
    raise DistributedError(msg)


def _unwritten(folder: Path, error: OSError) -> DistributedError:
    remedy = "make room there, or set XDG_RUNTIME_DIR to a folder of yours"
    return DistributedError(f"no record can be written in {folder}: {error.strerror}; {remedy}")


def _lock_new(path: Path) -> int | None:
    """Open and lock a record file; None if a root holds it."""
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
        os.close(fd)  # another process has just removed the file as a dead root's


def _is_same(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


class RecordFile:
    """Write the root's record, and remove it when the root ends."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path
        os.set_inheritable(fd, False)

    def write(self, record: WorkspaceRecord) -> None:
        """Write the record over the previous one."""
        # One write of less than a page, padded with spaces to the old size: no reader sees half
        # of a record.
        data = msgspec.json.encode(record) + b"\n"
        try:
            os.pwrite(self._fd, data.ljust(os.fstat(self._fd).st_size), 0)
        except OSError as error:
            raise _unwritten(Path(self._path).parent, error) from error

    def close(self) -> None:
        """Remove the file and release the name; idempotent."""
        if self._fd >= 0:
            if _is_same(self._fd, Path(self._path)):
                Path(self._path).unlink()
            os.close(self._fd)
            self._fd = -1


# -- reading --------------------------------------------------------------------------------------


def list_records() -> list[WorkspaceRecord]:
    """Return the records of this user's live roots, sorted by name.

    Records of dead roots are removed.

    Raises
    ------
    DistributedError
        A folder or file belongs to another user or is accessible to others, or another version
        wrote it.
    """
    found: dict[str, WorkspaceRecord] = {}
    for folder in _folders():
        for path in sorted(folder.glob(f"*{_ENDING}")):
            record = _read(path)
            if record is not None:
                found.setdefault(record.name, record)
    return [found[name] for name in sorted(found)]


def find_record(name: str) -> WorkspaceRecord | None:
    """Return the live root's record by name; None if there is none."""
    check_name(name)
    for folder in _folders():
        record = _read(folder / f"{name}{_ENDING}")
        if record is not None:
            return record
    return None


@contextmanager
def kept_record(record: WorkspaceRecord) -> Iterator[Callable[[], WorkspaceRecord]]:
    """Keep a record readable after its root has removed the file.

    Yields a function that returns the newest record; ``record`` if its file is gone already.
    """
    with ExitStack() as opened:
        fds = []
        for folder in _folders():
            with suppress(FileNotFoundError):
                fds.append(opened.enter_context(_opened(folder / f"{record.name}{_ENDING}")))

        def read() -> WorkspaceRecord:
            found = (_decode(Path(record.name), os.pread(fd, 1 << 16, 0)) for fd in fds)
            return next((one for one in found if one and one.pid == record.pid), record)

        yield read


def _read(path: Path) -> WorkspaceRecord | None:
    """Read a record; None if no live root holds it."""
    try:
        _check(path, path.lstat(), is_folder=False)
        with _opened(path) as fd:
            _check(path, os.fstat(fd), is_folder=False)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _decode(path, os.pread(fd, 1 << 16, 0))
            # No root holds it. This process has the lock, so no new root can take the file now.
            if _is_same(fd, path):
                path.unlink()
    except FileNotFoundError:
        pass
    return None


def _decode(path: Path, data: bytes) -> WorkspaceRecord | None:
    if not data.strip():
        return None  # a root is about to start
    try:
        return msgspec.json.decode(data, type=WorkspaceRecord)
    except (ValueError, RecursionError):  # ValueError: also text that is not UTF-8
        msg = f"{path} is not in a form that this phalanx reads: another version's workspace"
        raise DistributedError(msg) from None


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
