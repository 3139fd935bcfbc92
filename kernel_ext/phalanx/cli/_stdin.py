"""The launcher's own standard input, read on a thread so that the rest never waits for it.

It changes nothing about the terminal: neither its mode nor its descriptor's flags.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable

__all__ = ["InputThread"]

_NBYTES = 1 << 16
_BACKGROUND_S = 0.5  # no signal tells that a shell has brought us back (bash's `fg`)


class InputThread:
    """Hands on what is typed or piped; the end as no bytes. Made on the main thread.

    Parameters
    ----------
    give : callable
        Gets the bytes; it may wait until they are wanted.
    on_line : callable
        Called when a terminal has echoed the end of a typed line.
    """

    def __init__(self, give: Callable[[bytes], None], on_line: Callable[[], None]) -> None:
        self._give = give
        self._on_line = on_line
        # In the background a read of the terminal would stop us (SIGTTIN): ignored, it fails.
        self._previous = signal.signal(signal.SIGTTIN, signal.SIG_IGN)
        # A daemon: nothing can wake a thread out of the read of a terminal.
        threading.Thread(target=self._run, name="phalanx-stdin", daemon=True).start()

    def close(self) -> None:
        """Give back the signal; the thread ends with the process."""
        signal.signal(signal.SIGTTIN, self._previous)

    def _run(self) -> None:
        is_terminal = os.isatty(0)
        while True:
            try:
                data = os.read(0, _NBYTES)
            except OSError as error:
                if error.errno == errno.EIO and is_terminal and _is_in_background():
                    time.sleep(_BACKGROUND_S)
                    continue
                data = b""  # closed, or gone with its terminal
            if is_terminal and data.endswith(b"\n"):
                self._on_line()
            self._give(data)
            if not data:
                return


def _is_in_background() -> bool:
    try:
        return os.tcgetpgrp(0) != os.getpgrp()
    except OSError:
        return False
