"""Claim and find the names of workspaces in the user's runtime directory.

The root of workspace NAME listens on the Unix socket NAME.sock. A socket file on which nobody listens
belongs to a dead root, and the next claim removes it.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import socket
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from phalanx.errors import DistributedError

_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,99}", re.ASCII)
_ENDING = ".sock"
_MAC_PATH = 103  # bytes of a socket's path on macOS


def check_name(name: str) -> str:
    """Return ``name`` if a workspace may have it, else raise `ValueError`."""
    if not _NAME.fullmatch(name):
        msg = f"{name!r} cannot name a workspace: use a-z, A-Z, 0-9, '_', '-' and '.', 100 at most"
        raise ValueError(msg)
    return name


# -- folders --------------------------------------------------------------------------------------


def _own_folder() -> Path:
    """Return the folder for this process's sockets; it need not exist."""
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
    """Return the folders that may hold this user's sockets.

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
    if not (stat.S_ISDIR if is_folder else stat.S_ISSOCK)(found.st_mode):
        msg = f"{path} is no {'folder' if is_folder else 'socket'}: it is not used"
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


# -- names ----------------------------------------------------------------------------------------


class Claim:
    """A name, held by a listening socket until `release`."""

    def __init__(self, path: Path, sock: socket.socket) -> None:
        self.name = path.stem
        self.sock = sock
        self.path = path
        self._made = _made(path)

    def release(self) -> None:
        """Remove the socket's file, unless it is another root's; idempotent."""
        with suppress(FileNotFoundError):
            if _made(self.path) == self._made:
                self.path.unlink()


def _made(path: Path) -> tuple[int, int]:
    """Identify a file: a later one may get its number."""
    found = path.lstat()
    return found.st_ino, found.st_mtime_ns


def claim_name(name: str, *, is_fixed: bool) -> Claim:
    """Claim a name for a new workspace; remove dead roots' files.

    A name that is not ``is_fixed`` gets a number if it is taken.

    Raises
    ------
    DistributedError
        A workspace of this name runs, the folder belongs to another user, or no socket can be made.
    """
    folder = _own_folder()
    names = [name] if is_fixed else [name, *(f"{name}-{n}" for n in range(2, 1000))]
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        _check(folder, folder.lstat(), is_folder=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            # One claim at a time: else two could remove a dead root's file, one of them the other's.
            fcntl.flock(fd, fcntl.LOCK_EX)
            taken = {path.stem for path in folder.glob(f"*{_ENDING}") if not _is_removed(path)}
            for candidate in names:
                if candidate not in taken:
                    return _listen(folder, fd, candidate)
        finally:
            os.close(fd)  # ends the lock
    except OSError as error:
        msg = (
            f"no socket can be made in {folder}: {error.strerror or error}; make room there, or set "
            "XDG_RUNTIME_DIR to a folder of yours"
        )
        raise DistributedError(msg) from error
    msg = (
        f"a workspace {name!r} runs already: choose another name, or %distributed attach {name}"
        f" (in a terminal, phalanx stop {name} ends it)"
    )
    raise DistributedError(msg)


def _is_removed(path: Path) -> bool:
    """Remove a dead root's file; return False for a living one."""
    try:
        sock = connect(path)
    except BlockingIOError:  # it takes no more connections at the moment
        return False
    if sock is None:
        path.unlink(missing_ok=True)
        return True
    sock.close()
    return False


def _listen(folder: Path, fd: int, name: str) -> Claim:
    """Listen on a new socket in a locked folder, open as ``fd``."""
    path = folder / f"{name}{_ENDING}"
    fresh = folder / ".new"  # nobody sees it before its mode is set and it listens
    fresh.unlink(missing_ok=True)
    place = f"/proc/self/fd/{fd}"  # a socket's path has at most 107 bytes
    if sys.platform != "linux":
        place = str(folder)
        if len(os.fsencode(path)) > _MAC_PATH:
            msg = "the path of the socket is too long"
            raise OSError(msg)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(f"{place}/{fresh.name}")
        fresh.chmod(0o600)
        sock.listen()
        fresh.rename(path)
        return Claim(path, sock)
    except BaseException:
        sock.close()
        raise


def socket_paths(name: str = "*") -> list[Path]:
    """Return the sockets of this user's roots, or of one name.

    Raises
    ------
    DistributedError
        A folder belongs to another user or is accessible to others.
    """
    return sorted(path for folder in _folders() for path in folder.glob(f"{name}{_ENDING}"))


def connect(path: Path) -> socket.socket | None:
    """Connect to the root that listens on a socket; None: nobody does.

    Raises
    ------
    DistributedError
        The socket belongs to another user, or is accessible to others.
    BlockingIOError
        The root does not answer, and too many wait for it.
    """
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.setblocking(False)
        _check(path, path.lstat(), is_folder=False)
        if sys.platform == "linux":
            fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                sock.connect(f"/proc/self/fd/{fd}")  # the path itself may be too long
            finally:
                os.close(fd)
        else:
            sock.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        return None
    except BaseException:
        sock.close()
        raise
    return sock
