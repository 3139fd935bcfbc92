"""Keep exceptions of users' signal handlers out of the code between cells."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

from .output.error_text import describe_error

_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGINT})


class SignalHandlers:
    """Replace users' signal handlers between cells by one that never raises.

    An exception of a handler would otherwise come out of any line of the kernel: a request would be
    lost, or the process end. The code of a cell gets the handlers themselves. A handler that raises
    on a signal that ends the process (SIGTERM) ends it. SIGINT is the kernel's between cells.

    Make this object, and call all methods, on the main thread.

    Parameters
    ----------
    tell : callable
        Called in a signal handler with a text for the user: once per signal between two cells.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._own: dict[int, Any] = {number: signal.getsignal(number) for number in _SIGNALS}
        self._kept: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._n_raised: dict[int, int] = {}
        self._is_open = True

    def open(self) -> None:
        """Set users' handlers again, before the code of a cell."""
        self._is_open = True
        while self._kept:
            number, handler = self._kept.popitem()
            if signal.getsignal(number) == self._call:
                signal.signal(number, handler)
        while self._n_raised:
            number, n_raised = self._n_raised.popitem()
            if n_raised > 1:
                self._tell(f"{_name(number)}: its handler raised {n_raised} times between cells")

    def close(self) -> None:
        """Replace users' handlers, after the code of a cell; idempotent."""
        if not self._is_open:
            return
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and handler not in (self._own[number], self._call):
                self._kept[number] = handler
                signal.signal(number, self._call)
        self._is_open = False

    def _call(self, number: int, frame: FrameType | None) -> None:
        try:
            self._kept[number](number, frame)
        except BaseException as error:  # noqa: BLE001 - any code may be interrupted here
            self._n_raised[number] = n_raised = self._n_raised.get(number, 0) + 1
            if n_raised == 1:
                text = f"{_name(number)}: its handler raised between cells"
                self._tell(f"{text}\n{describe_error(error)}")
            if callable(self._own[number]):
                self._own[number](number, frame)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
