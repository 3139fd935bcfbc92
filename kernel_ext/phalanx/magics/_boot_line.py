"""One line on how the hosts of a world come up, written anew with each that does.

It knows what the root tells of a start, and the place of a status line.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from phalanx.protocol import BootProgress

from ._status import status_for

__all__ = ["BootLine", "boot_text"]


class BootLine:
    """The line; made for one start, closed when that is over. Of one host nothing is shown."""

    def __init__(self, shell: Any) -> None:
        self._status = status_for(shell)
        self._hosts: dict[int, BootProgress] = {}

    def take(self, progress: BootProgress) -> None:
        """Show how a host stands now."""
        self._hosts[progress.host] = progress
        self._status.show(boot_text(self._hosts[index] for index in sorted(self._hosts)))

    def close(self) -> None:
        """Take the line away."""
        if self._hosts:
            self._status.show("")


def boot_text(hosts: Iterable[BootProgress]) -> str:
    """Write the line, hosts in their order.

    Examples
    --------
    >>> boot_text([
    ...     BootProgress(1, "b", "up", 2.31), BootProgress(2, "c", "failed", 0.1, "no route to host"),
    ...     BootProgress(3, "d", "starting", 1.0, "waits for a connection"),
    ... ])
    '▸ up: b (2.3 s) · starting: d (waits for a connection) · failed: c (no route to host)'
    """
    said: dict[str, list[str]] = {"up": [], "starting": [], "failed": []}
    for its in hosts:
        note = f"{its.seconds:.1f} s" if its.state == "up" else its.text
        said[its.state].append(f"{its.name} ({note})" if note else its.name)
    parts = [f"{state}: {', '.join(names)}" for state, names in said.items() if names]
    return "▸ " + " · ".join(parts)
