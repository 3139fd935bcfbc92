"""How many connections a link is made of, and which way each of them goes.

Pure: addresses and counts in, routes out. Both ends come to the same number by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ._handshake import Lane
from ._listen import Endpoint, Share

__all__ = ["ONE_WAY", "Route", "Ways", "n_stripes", "routes_of"]


@dataclass(frozen=True, slots=True)
class Ways:
    """How a rank uses its addresses: the first ``at_once`` of them together.

    With ``per_address`` connections over each of these; the others stand in for one that cannot be
    reached. A link has what both its ends allow.
    """

    at_once: int = 1
    per_address: int = 1


ONE_WAY = Ways()


class Route(NamedTuple):
    """Where to connect to, and from: "" leaves that to the system.

    A detour shares the path of another connection, so the link is slower than it should be.
    """

    endpoint: Endpoint
    source: str = ""
    is_detour: bool = False


def n_stripes(lane: Lane, mine: Share, theirs: Share) -> int:
    """Tell how many connections two ranks make of a link.

    Messages from rank to rank have one: who sends several at a time uses several pairs, and each
    lane more is a socket more for every two ranks.

    Examples
    --------
    >>> two, three = Share(((), ()), (), at_once=2), Share(((), ()), (), at_once=3, per_address=2)
    >>> [n_stripes(Lane.COLLECTIVE, *both) for both in ((two, two), (two, three), (three, three))]
    [2, 2, 6]
    >>> n_stripes(Lane.PAIR, three, three)
    1
    """
    if lane is Lane.PAIR:
        return 1
    return _at_once(mine, theirs) * min(mine.per_address, theirs.per_address)


def routes_of(
    lane: Lane, stripe: int, mine: Share, theirs: Share, sources: Sequence[str]
) -> tuple[Route, ...]:
    """Return the ways that one connection is to be tried, the best first.

    Where several addresses are used at once, each connection goes from one's own to the peer's of
    the same place; then from wherever the system would (a card may be in another network than the
    address says), then to the peer's other addresses: a world whose second cable is out is slow,
    not down.

    Examples
    --------
    >>> a, b = Endpoint("10.0.0.2", 1), Endpoint("10.0.1.2", 2)
    >>> two = Share(((), ()), (a, b), at_once=2)
    >>> [tuple(r)[1:] for r in routes_of(Lane.COLLECTIVE, 1, two, two, ["10.0.0.1", "10.0.1.1"])]
    [('10.0.1.1', False), ('', False), ('', True)]
    >>> routes_of(Lane.PAIR, 0, two, two, ["10.0.0.1", "10.0.1.1"])[0].source
    ''
    """
    at_once = 1 if lane is Lane.PAIR else _at_once(mine, theirs)
    endpoints = theirs.endpoints
    if at_once == 1:
        return tuple(map(Route, endpoints))
    place = stripe % at_once
    own = endpoints[place]
    others = (*endpoints[:place], *endpoints[place + 1 :])
    return (
        Route(own, sources[place]),
        Route(own),
        *(Route(endpoint, is_detour=True) for endpoint in others),
    )


def _at_once(mine: Share, theirs: Share) -> int:
    return min(mine.at_once, theirs.at_once)
