"""Which path joins two ranks, for the pictures: the same rule by which they connect.

Pure; knows hosts by index only.
"""

from __future__ import annotations

from itertools import combinations

from phalanx.protocol import LinkInfo

__all__ = ["links_of"]


def links_of(hosts: tuple[int, ...], transport: str) -> tuple[LinkInfo, ...]:
    """Paths between all ranks, ``hosts[r]`` being rank r's host.

    Examples
    --------
    >>> [(link.a, link.b, link.transport) for link in links_of((0, 0, 1), "any")]
    [(0, 1, 'arena'), (0, 2, 'tcp'), (1, 2, 'tcp')]
    """
    return tuple(
        LinkInfo(a, b, "arena" if hosts[a] == hosts[b] and transport != "tcp" else "tcp")
        for a, b in combinations(range(len(hosts)), 2)
    )
