"""Whether the root can be reached at one of its endpoints, and why not: tcp's first packets only."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Reached", "reach"]


class Reached(NamedTuple):
    """The first endpoint that answered, and our address towards it; or ``why_not``.

    ``is_refused``: nobody listens at the first one that was tried.
    """

    endpoint: str
    own: str
    why_not: str
    is_refused: bool


async def reach(endpoints: Sequence[str], timeout_s: float) -> Reached:
    """Try endpoints in turn, each for so long."""
    refused = []
    is_refused = False
    for endpoint in endpoints:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        try:
            _, writer = await asyncio.wait_for(
                asyncio.open_connection(host.strip("[]"), int(port)), timeout_s
            )
        except asyncio.TimeoutError:
            refused.append(f"{host}:{port} (no answer: blocked by a firewall?)")
            continue
        except OSError as error:
            is_refused |= not refused and isinstance(error, ConnectionRefusedError)
            refused.append(f"{host}:{port} ({_words(error)})")
            continue
        own = str(writer.get_extra_info("sockname")[0])
        writer.close()
        return Reached(endpoint, own, "", is_refused=False)
    return Reached("", "", ", ".join(refused), is_refused)


def _words(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    return (
        error.strerror or str(error) if not isinstance(error, socket.gaierror) else "no such name"
    )
