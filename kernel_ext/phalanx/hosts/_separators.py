"""Says in words why there can be no ring: hosts that stand alone, or that all ways lead through.

It knows sets of neighbours as numbers' bits. What it finds is certain; finding nothing says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

__all__ = ["bits", "parts", "why_no_ring"]


def why_no_ring(near: Sequence[int], names: Sequence[str]) -> str:
    """Return a reason why no ring goes through all, or nothing.

    Parameters
    ----------
    near : sequence of int
        For each host the set of its neighbours: bit j for host j.
    names : sequence of str
        What the hosts are called.

    Notes
    -----
    A ring from which k hosts are taken falls into k parts at most (Chvatal 1973,
    doi:10.1016/0012-365X(73)90138-6); looked at for k = 0, 1, 2. And of a ring each second host is on the other side.
    """
    n = len(near)
    everybody = (1 << n) - 1
    alone = [i for i in range(n) if not near[i]]
    if alone and n > 1:
        return f"{_listed(alone, names)} {_verb(alone)} no neighbour"
    pieces = parts(near, everybody)
    if len(pieces) > 1:
        said = "; ".join(_listed(list(bits(piece)), names) for piece in pieces)
        return f"the hosts fall into {len(pieces)} parts: {said}"
    if n < 3:
        return ""
    ends = [i for i in range(n) if near[i].bit_count() == 1]
    if ends:
        return f"{_listed(ends, names)} {_verb(ends)} one neighbour only"
    for k in (1, 2):
        for taken in combinations(range(n), k):
            left = everybody & ~sum(1 << i for i in taken)
            pieces = parts(near, left)
            if len(pieces) > k:
                said = " and ".join(names[i] for i in taken)
                return f"all ways between {_apart(pieces, names)} lead through {said}"
    return _unequal_sides(near, names)


def _unequal_sides(near: Sequence[int], names: Sequence[str]) -> str:
    """Say it where the hosts have two sides with cables between them only, and one side is larger."""
    sides, fresh = [1, 0], [0]
    while fresh:
        at = fresh.pop()
        here = 0 if sides[0] >> at & 1 else 1
        if near[at] & sides[here]:
            return ""
        fresh += bits(near[at] & ~sides[1 - here])
        sides[1 - here] |= near[at]
    few, many = sorted((list(bits(side)) for side in sides), key=len)
    if len(few) == len(many):
        return ""
    return (
        f"{_listed(many, names)} have no cables among them, and the others, {_listed(few, names)}, "
        "are fewer than they"
    )


def bits(mask: int) -> Iterator[int]:
    """Yield the places of the ones, from the lowest."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def parts(near: Sequence[int], among: int) -> list[int]:
    """Return the connected parts of a set of hosts, as sets."""
    found = []
    while among:
        part = fresh = among & -among
        while fresh:
            low = fresh & -fresh
            fresh ^= low
            more = near[low.bit_length() - 1] & among & ~part
            part |= more
            fresh |= more
        found.append(part)
        among &= ~part
    return found


def _apart(pieces: Iterable[int], names: Sequence[str]) -> str:
    groups = [_listed(list(bits(piece)), names) for piece in pieces]
    return " | ".join(groups)


def _listed(hosts: Sequence[int], names: Sequence[str]) -> str:
    said = [names[i] for i in hosts[:8]]
    if len(hosts) > 8:
        return f"{', '.join(said)} and {len(hosts) - 8} more"
    return " and ".join([", ".join(said[:-1]), said[-1]]) if len(said) > 1 else said[0]


def _verb(hosts: Sequence[int]) -> str:
    return "have" if len(hosts) > 1 else "has"
