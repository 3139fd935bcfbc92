"""How a start on several hosts goes on, in one line that is written over.

It knows what the root says of each host; starting is the workspace's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from phalanx.protocol import BootProgress

from ._status import status_for

__all__ = ["Booting", "say_boot"]

_MOST_NAMED = 8


class Booting:
    """The line of one start: called with each news, closed at the end."""

    def __init__(self, shell: Any) -> None:
        self._status = status_for(shell)
        self._news: dict[int, BootProgress] = {}

    def __call__(self, news: BootProgress) -> None:
        """Show how it stands now."""
        self._news[news.host] = news
        self._status.show(say_boot(self._news[host] for host in sorted(self._news)))

    def close(self) -> None:
        """Take the line away."""
        self._status.show("")


def say_boot(news: Iterable[BootProgress]) -> str:
    """Say which hosts are up, which are not yet and what they do, and which have failed.

    Examples
    --------
    >>> say_boot([
    ...     BootProgress(1, "b", "up", 1.2),
    ...     BootProgress(2, "c", "starting", 3.0, "ssh has not got in yet"),
    ... ])
    'starting hosts: up b · waiting for c (ssh has not got in yet)'
    """
    known = list(news)
    parts = [
        (word, [_name(its) for its in known if its.state == state])
        for word, state in (("up", "up"), ("waiting for", "starting"), ("failed", "failed"))
    ]
    told = " · ".join(f"{word} {_some(names)}" for word, names in parts if names)
    return f"starting hosts: {told}"


def _name(its: BootProgress) -> str:
    return f"{its.name} ({its.text})" if its.text and its.state == "starting" else its.name


def _some(names: list[str]) -> str:
    left = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {left} more" if left > 0 else "")
