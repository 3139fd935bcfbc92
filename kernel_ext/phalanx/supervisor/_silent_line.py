"""What a line from which nothing comes is called, and what else is known of the host behind it.

It asks the host's system, at all addresses of it that are known, whether it is there at all: a
refused connection is an answer. It knows addresses, nothing of what is said on the line.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence

from phalanx.hosts import interface_of

from ._reach import reach

__all__ = ["SilentLine"]

_ANY_PORT = 9  # discard: who is there lets us in or refuses, at any port


class SilentLine:
    """A line between ``here`` and ``there``, two addresses, to a host that may have ``others``.

    Over loopback there is no network that could be out, and nothing to be said.
    """

    def __init__(self, here: str, there: str, others: Sequence[str] = ()) -> None:
        self._here = here
        self._there = "" if _is_loopback(there) else there
        self._every = tuple(dict.fromkeys((there, *others))) if self._there else ()
        self._answering: tuple[str, ...] = ()
        self.is_asked = False

    async def ask(self, timeout_s: float) -> None:
        """Find out at which addresses the host's system answers."""
        self.is_asked = True
        found = await asyncio.gather(*(_answers(address, timeout_s) for address in self._every))
        self._answering = tuple(
            a for a, is_there in zip(self._every, found, strict=True) if is_there
        )

    def forget(self) -> None:
        """Learn that something has come: what was found out is of before."""
        self._answering, self.is_asked = (), False

    def __str__(self) -> str:
        """Return the end of a sentence that says for how long nothing has come.

        Examples
        --------
        >>> str(SilentLine("192.0.2.1", "192.0.2.2"))
        ': nothing comes from 192.0.2.2 to 192.0.2.1'
        >>> str(SilentLine("127.0.0.1", "127.0.0.1"))
        ''
        """
        if not self._there:
            return ""
        if self._there in self._answering:
            text = "its machine answers there, its supervisor is stopped or far too busy"
            return f" at {self._there}: {text}"
        card = interface_of(self._here)
        text = f": nothing comes from {self._there}"
        if self._here:
            text += f" to {self._here}{f' on {card}' if card else ''}"
        if self._answering:
            text += (
                f", while it answers at {', '.join(self._answering)}: the host lives, "
                "a card, cable or switch of that network does not"
            )
        return text


async def _answers(address: str, timeout_s: float) -> bool:
    host = f"[{address}]" if ":" in address else address
    found = await reach([f"tcp://{host}:{_ANY_PORT}"], timeout_s)
    return bool(found.endpoint) or found.is_refused


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:  # not known
        return True
