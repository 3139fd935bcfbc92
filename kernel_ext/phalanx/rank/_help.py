"""Answering what a person asks while typing, beside the cell that runs and the control messages.

It knows a thread and what waits for it; what is asked and how it is answered is its user's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

__all__ = ["HelpDesk"]

log = logging.getLogger(__name__)


class HelpDesk:
    """Runs answers on a thread of its own.

    The thread that takes control messages must stay free for typed lines and for a stop, and
    jedi can take seconds to read a library for the first time. Of each kind only the newest
    question waits: whoever asked before has typed on, so that questions never pile up.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, Callable[[], None]] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="help", daemon=True).start()

    def take(self, kind: str, answer: Callable[[], None]) -> None:
        """Have a question answered soon, in place of an older one of its kind that waits."""
        with self._changed:
            self._waiting[kind] = answer
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                answer = self._waiting.pop(next(iter(self._waiting)))
            try:
                answer()
            except Exception:
                # Looking at a user's objects runs their code; the next question is another one.
                log.exception("a question while typing could not be answered")
