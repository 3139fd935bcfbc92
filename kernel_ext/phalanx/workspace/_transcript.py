"""The full text of what each rank printed, on disk, for whoever wants more than was shown.

It knows files, not what is shown.
"""

from __future__ import annotations

import tempfile
import threading
from typing import IO

__all__ = ["Transcript"]


class Transcript:
    """One unlinked file a rank: it has no name, so nothing of it is left when we are gone.

    The thread that runs cells writes, any may read; one lock.
    """

    def __init__(self) -> None:
        self._files: dict[int, IO[bytes]] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def write(self, rank: int, text: str) -> None:
        """Append what a rank printed."""
        with self._lock:
            if self._is_closed:
                return
            if rank not in self._files:
                self._files[rank] = tempfile.TemporaryFile()  # noqa: SIM115 - see close
            file = self._files[rank]
            file.seek(0, 2)
            file.write(text.encode(errors="replace"))

    def read(self, rank: int, *, last_bytes: int = 1 << 20) -> str:
        """Return the end of what a rank printed, from the beginning of a line on where one is.

        What is left out is said in a line of its own.
        """
        with self._lock:
            file = self._files.get(rank)
            if file is None or self._is_closed:
                return ""
            size = file.seek(0, 2)
            begin = max(0, size - last_bytes)
            file.seek(begin)
            data = file.read()
        if not begin:
            return data.decode(errors="replace")
        _, end, whole = data.partition(b"\n")
        # A line without a beginning here is shown all the same where there is no other.
        text = (whole if end and whole else data).decode(errors="replace")
        left_out = size - len(whole if end and whole else data)
        return f"… {left_out:,} bytes before this are left out\n{text}"

    def close(self) -> None:
        """Close the files; idempotent."""
        with self._lock:
            self._is_closed = True
            for file in self._files.values():
                file.close()
            self._files.clear()
