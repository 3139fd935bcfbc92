"""Looks that are taken again and again, of which one that fails must not be the last.

It knows nothing of what is looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Steady"]

log = logging.getLogger(__name__)


class Steady:
    """Lets looks fail; the first failure is logged, and those that follow are alike."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_said = False

    @contextmanager
    def look(self) -> Iterator[None]:
        """Go on after a failure of what is done inside."""
        try:
            yield
        except Exception:
            if not self._is_said:
                self._is_said = True
                log.exception(
                    "%s failed; it goes on, and further failures are not told", self._what
                )
