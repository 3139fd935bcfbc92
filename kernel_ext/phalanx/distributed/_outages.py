"""Paths between addresses that are out: how long each is tried, and what is said of one.

A cable that is pulled refuses nothing, it is silent: what is lost there is waited for. That wait
has a bound where another way is left, a shorter one on a path that was silent a moment ago, and
none of it is the peer's doing: its kernel answers, however busy the peer is.
"""

from __future__ import annotations

import logging
import time

from ._listen import Endpoint

__all__ = ["Outages", "where"]

# Judgement: an answer takes less than 1 ms in a machine room and 0.3 s around the world. The first
# packet may be lost, also by a kernel with hundreds of connections that wait to be taken, and is
# repeated after 1 s.
FIRST_S = 1.5
AGAIN_S = 0.4  # as often as a new group is made, and at once good again when the cable is back
REMEMBERED_S = 60.0

_log = logging.getLogger(__name__)


class Outages:
    """Paths of one process that were silent lately; its groups have them together.

    Threads that make groups at the same time may overtake each other: the worst is a path that is
    tried for longer, or told of twice.
    """

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}  # by endpoint's host, source
        self._told: dict[tuple[str, int], float] = {}  # by endpoint's host, peer

    def patience_s(self, host: str, source: str) -> float:
        """Return how long a connection may take that has another way to go."""
        since = self._since.get((host, source))
        is_known = since is not None and time.monotonic() - since < REMEMBERED_S
        return AGAIN_S if is_known else FIRST_S

    def note(self, host: str, source: str) -> None:
        """Learn that a path was silent; that it still is says nothing new."""
        if self.patience_s(host, source) == FIRST_S:
            self._since[host, source] = time.monotonic()

    def forget(self, host: str, source: str) -> None:
        """Learn that a path lets connections through."""
        self._since.pop((host, source), None)

    def warn(self, me: int, peer: int, direct: str, why: str, over: str) -> None:
        """Tell once a minute that a connection to a peer goes another way than it should."""
        key, now = (direct, peer), time.monotonic()
        if now - self._told.get(key, -REMEMBERED_S) < REMEMBERED_S:
            return
        self._told[key] = now
        _log.warning(
            "rank %d: a path to rank %d cannot be used (%s): what should go there goes over %s as "
            "well, and is slower",
            me, peer, why, over,
        )  # fmt: skip


def where(endpoint: Endpoint, source: str) -> str:
    """Name a path in an error.

    Examples
    --------
    >>> where(Endpoint("10.0.1.1", 4711), "10.0.1.2")
    '10.0.1.1 port 4711 from 10.0.1.2'
    """
    return f"{endpoint.host} port {endpoint.port}{f' from {source}' if source else ''}"
