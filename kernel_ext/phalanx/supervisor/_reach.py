"""Whether the root can be reached at one of its endpoints, and why not: tcp's first packets only."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Reached", "reach"]

# Between the starts of two tries: more than an answer takes in a cluster, so that which address is
# found is not a matter of chance.
LEAD_S = 0.05


class Reached(NamedTuple):
    """The first endpoint that answered, and our address towards it; or ``why_not``.

    ``is_refused``: nobody listens at the first one that was tried.
    """

    endpoint: str
    own: str
    why_not: str
    is_refused: bool


async def reach(
    endpoints: Sequence[str], timeout_s: float, *, is_refusal_final: bool = False
) -> Reached:
    """Try endpoints at once, an earlier one with a short lead; the first that answers it is.

    ``is_refusal_final``: where nobody listens at the first one, do not wait for others.
    """
    tries = [
        asyncio.ensure_future(_try(endpoint, place * LEAD_S, timeout_s))
        for place, endpoint in enumerate(endpoints)
    ]
    pending = set(tries)
    is_refused = False
    try:
        while pending and not (is_refused and is_refusal_final):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            over = [each.result() for each in tries if each.done()]
            for found in over:
                if found.endpoint:
                    return found
            is_refused = tries[0].done() and tries[0].result().is_refused
        why_not = ", ".join(each.result().why_not for each in tries if each.done())
        return Reached("", "", why_not, is_refused)
    finally:
        for each in pending:
            each.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def _try(endpoint: str, wait_s: float, timeout_s: float) -> Reached:
    await asyncio.sleep(wait_s)
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        _, writer = await asyncio.wait_for(
            asyncio.open_connection(host.strip("[]"), int(port)), timeout_s
        )
    except asyncio.TimeoutError:
        why_not = f"{host}:{port} (no answer: blocked by a firewall?)"
        return Reached("", "", why_not, is_refused=False)
    except OSError as error:
        is_refused = isinstance(error, ConnectionRefusedError)
        return Reached("", "", f"{host}:{port} ({_words(error)})", is_refused)
    own = str(writer.get_extra_info("sockname")[0])
    writer.close()
    return Reached(endpoint, own, "", is_refused=False)


def _words(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    return (
        error.strerror or str(error) if not isinstance(error, socket.gaierror) else "no such name"
    )
