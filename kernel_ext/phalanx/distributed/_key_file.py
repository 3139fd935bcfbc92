"""The key of a world that no supervisor hands one to: a file of the user's, for nobody else.

It knows the file; what is proved with the key is the handshake's business.
"""

from __future__ import annotations

import hashlib
import os
import stat

from phalanx.errors import DistributedError

from ._handshake import KEY_MIN_NBYTES

__all__ = ["KEY_FILE_VARIABLE", "read_key"]

KEY_FILE_VARIABLE = "PHALANX_KEY_FILE"
_MAX_NBYTES = 1 << 16


def read_key(path: str) -> bytes:
    """Read a key file; white space around its contents does not count.

    Raises
    ------
    DistributedError
        It cannot be read, is no file, is another user's, may be read by others, or is too short.
        The text never holds what is in it.
    """
    try:
        # Never waits, as opening a pipe would; looked at through the descriptor that is read.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        wrong = getattr(error, "strerror", None) or str(error)
        raise DistributedError(_said(path, f"cannot be read: {wrong}")) from None
    try:
        found = os.fstat(fd)
        mode = stat.S_IMODE(found.st_mode)
        if not stat.S_ISREG(found.st_mode):
            wrong = "is not a file"
        elif found.st_uid != os.geteuid():
            wrong = f"belongs to user {found.st_uid}, not to you ({os.geteuid()})"
        elif mode & 0o077:
            wrong = f"is open to other users (mode {mode:04o}); run: chmod 600 {path}"
        elif len(contents := os.read(fd, _MAX_NBYTES).strip()) < KEY_MIN_NBYTES:
            wrong = (
                f"holds {len(contents)} bytes, at least {KEY_MIN_NBYTES} are needed; make one "
                "with: (umask 077; head -c 32 /dev/urandom | base64 > FILE)"
            )
        else:
            return hashlib.sha256(b"phalanx key file\0" + contents).digest()
    finally:
        os.close(fd)
    raise DistributedError(_said(path, wrong))


def _said(path: str, wrong: str) -> str:
    return f"{KEY_FILE_VARIABLE}={path!r} {wrong}"
