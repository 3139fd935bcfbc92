"""Hold ranks in a cell until the test lets them go, whatever they are held by."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType


class Gate:
    """A FIFO: who reads from it waits until the test writes to it.

    The test decides when the wait ends, so a slow machine cannot end it too early. Closing the
    gate also ends the waits: readers then see the end of the file.
    """

    def __init__(self, folder: Path, name: str = "gate") -> None:
        self.path = folder / name
        os.mkfifo(self.path)
        # For reading as well: else opening would wait for a reader.
        self._fd = os.open(self.path, os.O_RDWR)

    def open(self) -> None:
        """Let everybody pass who waits now or comes later."""
        os.write(self._fd, b"x" * 4096)

    def close(self) -> None:
        """Let everybody pass, and give the descriptor back; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def wait(self) -> str:
        """Python expression that waits at the gate; an interrupt ends it."""
        return f"open({str(self.path)!r}, 'rb', 0).read(1)"

    def wait_in_c(self, library: str) -> str:
        """Return a Python expression that waits in C: 1 at the end, -1 after any signal.

        ``library`` is ``"PyDLL"``, which keeps Python's lock, or ``"CDLL"``, which releases it.
        """
        fd = f"__import__('os').open({str(self.path)!r}, 0)"
        ctypes = "__import__('ctypes')"
        return f"{ctypes}.{library}(None).poll(({ctypes}.c_int * 2)({fd}, 1), 1, -1)"

    def __enter__(self) -> Gate:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
