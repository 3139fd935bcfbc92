"""``sys.stdin`` of a rank: a text file over the lines that are typed for its cell.

It knows a function that returns the next line; nothing of logs, kernels or front ends.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable

__all__ = ["CellInput"]


class CellInput(io.TextIOBase):
    r"""A file whose lines are read one by one from ``next_line``, until it raises EOFError.

    Iteration and `readlines` are `io.TextIOBase`'s. Where a read takes less than a line, the rest
    is kept for the next read, until `forget`.

    Examples
    --------
    >>> lines = iter(["ann", "bob"])
    >>> file = CellInput(lambda: next(lines))
    >>> file.readline(2), file.readline(), file.readline()
    ('an', 'n\n', 'bob\n')
    """

    # Typeshed has it writable, the class says what a file over str has to say.
    encoding = "utf-8"
    errors = "strict"
    name = "<stdin>"
    mode = "r"

    def __init__(self, next_line: Callable[[], str]) -> None:
        self._next_line = next_line
        self._rest = ""
        self._lock = threading.RLock()

    def forget(self) -> None:
        """Drop the rest of a line: a new cell begins."""
        with self._lock:
            self._rest = ""

    def readable(self) -> bool:
        """Tell that one can read."""
        return True

    def isatty(self) -> bool:
        """Tell that there is no terminal: lines come from a notebook."""
        return False

    def fileno(self) -> int:
        """Refuse.

        Raises
        ------
        io.UnsupportedOperation
            Always; a cell's input is no descriptor.
        """
        msg = "the input of a cell has no file descriptor; read sys.stdin itself"
        raise io.UnsupportedOperation(msg)

    def readline(self, size: int | None = -1) -> str:  # type: ignore[override]
        """Return the next line with its end, or what is left of it (``size`` characters at most).

        An empty string is the end of input.
        """
        with self._lock:
            self._check_open()
            if size == 0:
                return ""
            line = self._rest or self._fetch()
            n_taken = len(line) if size is None or size < 0 else size
            self._rest = line[n_taken:]
            return line[:n_taken]

    def read(self, size: int | None = -1) -> str:
        """Return ``size`` characters, or all lines until the end of input."""
        with self._lock:
            self._check_open()
            is_all = size is None or size < 0
            pieces = [self._rest]
            n_read = len(self._rest)
            while is_all or n_read < (size or 0):
                line = self._fetch()
                if not line:
                    break
                pieces.append(line)
                n_read += len(line)
            text = "".join(pieces)
            n_taken = len(text) if is_all else size
            self._rest = text[n_taken:]
            return text[:n_taken]

    def _fetch(self) -> str:
        try:
            return self._next_line() + "\n"
        except EOFError:
            return ""

    def _check_open(self) -> None:
        if self.closed:
            msg = "I/O operation on closed file"
            raise ValueError(msg)
