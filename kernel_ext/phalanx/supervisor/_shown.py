"""The file in which a rank notes all that it shows, as its supervisor keeps and reads it.

It knows files and lines; nothing of cells. The rank's side is `phalanx.rank.OutputRecord`.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from dataclasses import dataclass

__all__ = ["Piece", "create_shown", "read_shown"]

MOST_NBYTES = 1 << 20  # read at once: as much as anybody wants to see of it
COUNTED_NBYTES = 64 << 20  # lines are counted in so much (30 ms); in more nobody asks how many
LINE_NBYTES = 4096  # so far back a line's beginning is looked for


@dataclass(frozen=True)
class Piece:
    """The end of what a rank has shown; ``left_out_lines`` is -1 where they are too many."""

    text: bytes
    end: int
    left_out_nbytes: int
    left_out_lines: int


def create_shown() -> int:
    """Make the file: it has no name, so nothing of it is left when its supervisor is gone."""
    with tempfile.TemporaryFile() as file:
        fd = os.dup(file.fileno())
    # A rank and the one that replaces it both only ever append.
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return fd


def read_shown(fd: int, since: int, max_lines: int) -> Piece:
    """Read what was shown from byte ``since`` on: its end, from the beginning of a line.

    ``since`` in the middle of a line means that line as a whole. At most ``max_lines`` lines (0:
    any number) and a MiB.
    """
    end = os.fstat(fd).st_size
    since = _line_begin(fd, min(since, end))
    begin = max(since, end - MOST_NBYTES)
    data = os.pread(fd, end - begin, begin)
    end = begin + len(data)
    if begin > since:
        # A line without its beginning is shown all the same where there is no other.
        _, newline, whole = data.partition(b"\n")
        data = whole if newline and whole else data
    if max_lines:
        data = _last_lines(data, max_lines)
    begin = end - len(data)
    return Piece(data, end, begin - since, _count_lines(fd, since, begin))


def _line_begin(fd: int, at: int) -> int:
    before = os.pread(fd, min(at, LINE_NBYTES), max(0, at - LINE_NBYTES))
    newline = before.rfind(b"\n")
    if newline < 0:
        return 0 if at <= LINE_NBYTES else at
    return at - (len(before) - newline - 1)


def _last_lines(data: bytes, most: int) -> bytes:
    at = len(data) - data.endswith(b"\n")
    for _ in range(most):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return data
    return data[at + 1 :]


def _count_lines(fd: int, begin: int, end: int) -> int:
    if end - begin > COUNTED_NBYTES:
        return -1
    n_lines = 0
    while begin < end:
        data = os.pread(fd, min(1 << 20, end - begin), begin)
        if not data:
            break
        n_lines += data.count(b"\n")
        begin += len(data)
    return n_lines
