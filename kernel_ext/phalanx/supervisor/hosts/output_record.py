"""Create and read the file of a rank's output.

`phalanx.rank.OutputRecord` writes the file in the rank.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile

from phalanx.protocol import OUTPUT_GAP
from phalanx.protocol.host import Shown

MOST_NBYTES = 1 << 20  # most bytes read at once: as much as a person wants to see
COUNTED_NBYTES = 64 << 20  # lines are counted in up to this many bytes (30 ms)
LINE_NBYTES = 4096  # how far back the beginning of a line is searched
_GAP = re.compile(rb"\n?" + re.escape(OUTPUT_GAP))


def create_shown() -> int:
    """Create the output file without a name.

    The file vanishes with its supervisor.
    """
    with tempfile.TemporaryFile() as file:
        fd = os.dup(file.fileno())
    # A rank and its replacement share the file, and both only append.
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return fd


def read_shown(fd: int, since: int, max_lines: int) -> Shown:
    """Read the last lines that were shown from byte ``since`` on.

    If ``since`` is in the middle of a line, the whole line counts. The result has at most
    ``max_lines`` lines (0: any number) and at most `MOST_NBYTES`, plus one line for each
    `OUTPUT_GAP`.
    """
    end = os.fstat(fd).st_size
    since = _line_begin(fd, min(since, end))
    begin = max(since, end - MOST_NBYTES)
    data = os.pread(fd, end - begin, begin)
    end = begin + len(data)
    if begin > since:
        # Drop an incomplete first line, unless it is the only one.
        _, newline, whole = data.partition(b"\n")
        data = whole if newline and whole else data
    if max_lines:
        data = _last_lines(data, max_lines)
    begin = end - len(data)
    return Shown(_say_gaps(data), end, begin - since, _count_lines(fd, since, begin))


def _say_gaps(data: bytes) -> bytes:
    """Replace each gap marker by a line about missing output."""
    if OUTPUT_GAP not in data:
        return data
    folder = tempfile.gettempdir()
    said = (
        f"… output is missing here: {folder} was full; with room there, what comes next is kept\n"
    )
    line = said.encode(errors="replace")
    return _GAP.sub(lambda gap: b"\n" + line if gap.start() else line, data)


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
