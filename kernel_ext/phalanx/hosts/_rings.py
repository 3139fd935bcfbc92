"""Finds a ring through all hosts over the cables there are, or says why there is none.

It knows numbers of cables between numbered hosts, nothing of interfaces or addresses.

A ring through all is a Hamiltonian cycle. Of the libraries, networkx has it for tournaments only,
rustworkx and igraph not at all, and OR-Tools' circuit constraint is a dependency of 30 MB for this
one question; so it is searched for here. Steps are counted, not seconds: the same cables always
give the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ._exact_ring import exact_ring
from ._separators import bits, why_no_ring

__all__ = ["RingSearch", "find_ring", "missing_in_mesh", "missing_in_ring"]

# Steps until a way of searching gives up. Measured on 64 hosts on the two-core machine: a step of
# the walk takes 1 us, a rotation 5 us, one of the exact search 0.1-0.3 ms, so all of it is below
# a second.
_WALK_STEPS = 20_000
_ROTATIONS = 20_000
_EXACT_STEPS = 300_000  # divided by the number of hosts: so long a step takes


@dataclass(frozen=True)
class RingSearch:
    """What became of a search.

    ``ring`` holds all hosts in order, or nothing; each two neighbours (the last and the first,
    too) have at least ``cables`` between them. Without a ring ``reason`` says why; ``is_certain``
    is false where there may be one that was not found within the limit.
    """

    ring: tuple[int, ...] = ()
    cables: int = 0
    is_certain: bool = True
    reason: str = ""


def find_ring(cables: Sequence[Sequence[int]], names: Sequence[str] | None = None) -> RingSearch:
    """Find the ring through all hosts whose thinnest place has the most cables.

    Parameters
    ----------
    cables : sequence of sequence of int
        How many there are between host i and host j: symmetric.
    names : sequence of str, optional
        What the hosts are called in ``reason``.

    Returns
    -------
    RingSearch
        One host is a ring of itself; two with one cable are a ring (as for MLX).

    Notes
    -----
    For each number of cables, the highest first: the hosts are walked in their order with a step
    back where it ends (what small and dense worlds need; the first ring in the order of hosts);
    then the path is turned at its end (Posa 1976, doi:10.1016/0012-365X(76)90068-6); then an exact
    search over edges that are taken or left out. All three count their steps.

    Examples
    --------
    >>> find_ring([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]]).ring
    (0, 1, 2, 3)
    >>> find_ring([[0, 1, 1], [1, 0, 0], [1, 0, 0]], "abc").reason
    'b and c have one neighbour only'
    """
    n = len(cables)
    names = names or [f"host {i}" for i in range(n)]
    if n < 2:
        return RingSearch(tuple(range(n)), 0)
    is_certain = True
    for most in sorted({count for row in cables for count in row if count > 0}, reverse=True):
        near = [
            sum(1 << j for j in range(n) if j != i and row[j] >= most)
            for i, row in enumerate(cables)
        ]
        found, is_sure = _search(near)
        if found:
            return RingSearch(_turned(found), most)
        is_certain = is_sure  # that of the fewest cables counts, which comes last
    near = [sum(1 << j for j in range(n) if j != i and row[j] > 0) for i, row in enumerate(cables)]
    reason = why_no_ring(near, names)
    if reason:
        return RingSearch(reason=reason)
    if is_certain:
        return RingSearch(reason="no order of the hosts has a cable between all neighbours")
    return RingSearch(is_certain=False, reason="none was found within the limit of the search")


def _search(near: Sequence[int]) -> tuple[tuple[int, ...], bool]:
    """Return a ring or nothing, and whether that is certain."""
    n = len(near)
    if n == 2:
        return ((0, 1) if near[0] else ()), True
    if any(row.bit_count() < 2 for row in near):
        return (), True
    found, is_certain = _walk(near)
    if found or is_certain:
        return found, True
    found = _rotate(near)
    if found:
        return found, True
    if why_no_ring(near, [str(i) for i in range(n)]):
        return (), True
    return exact_ring(near, _EXACT_STEPS // n)


def _walk(near: Sequence[int]) -> tuple[tuple[int, ...], bool]:
    """Walk from host 0, always to the first host that is free, and back where there is none."""
    n = len(near)
    everybody = (1 << n) - 1
    path, visited, left = [0], 1, [near[0]]
    for _ in range(_WALK_STEPS):
        if not left:
            return (), True
        options = left[-1] & ~visited
        if visited == everybody and near[path[-1]] & 1:
            return tuple(path), True
        if not options:
            left.pop()
            visited ^= 1 << path.pop()
            continue
        low = options & -options
        left[-1] &= ~low
        at = low.bit_length() - 1
        path.append(at)
        visited |= low
        left.append(near[at])
    return (), False


def _rotate(near: Sequence[int]) -> tuple[int, ...]:
    """Lengthen a path at its end; where that is stuck, turn a part of it to have another end."""
    n = len(near)
    path = [min(range(n), key=lambda i: near[i].bit_count())]
    visited, state = 1 << path[0], n
    for _ in range(_ROTATIONS):
        end = path[-1]
        free = near[end] & ~visited
        if free:
            # The host with the fewest free neighbours first: later it may have none.
            after = min(bits(free), key=lambda j: ((near[j] & ~visited).bit_count(), j))
            path.append(after)
            visited |= 1 << after
            continue
        if len(path) == n and near[end] >> path[0] & 1:
            return tuple(path)
        options = list(bits(near[end] & ~(1 << path[-2])))
        # A linear congruential generator (Knuth, MMIX): the same choices in every run.
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        pivot = path.index(options[(state >> 33) % len(options)])
        path[pivot + 1 :] = path[:pivot:-1]
        if len(path) < n and not near[path[-1]] & ~visited and state >> 60 == 0:
            path.reverse()  # the other end may have somewhere to go
    return ()


def _turned(ring: Sequence[int]) -> tuple[int, ...]:
    """Begin with host 0, and go on with the lower of its neighbours."""
    at = ring.index(0)
    turned = [*ring[at:], *ring[:at]]
    if len(turned) > 2 and turned[-1] < turned[1]:
        turned[1:] = turned[:0:-1]
    return tuple(turned)


def missing_in_mesh(cables: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return all pairs of hosts that have no cable between them.

    Examples
    --------
    >>> missing_in_mesh([[0, 1, 0], [1, 0, 0], [0, 0, 0]])
    [(0, 2), (1, 2)]
    """
    n = len(cables)
    return [(i, j) for i in range(n) for j in range(i + 1, n) if cables[i][j] <= 0]


def missing_in_ring(cables: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return cables that would make a ring: few, though not always the fewest.

    Notes
    -----
    The hosts are put in rows along the cables; the rows' ends want a cable. Parts are turned (2-opt)
    as long as that saves one.

    Examples
    --------
    >>> missing_in_ring([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]])
    [(0, 3)]
    """
    n = len(cables)
    if n < 2:
        return []
    best: list[tuple[int, int]] | None = None
    for start in range(min(n, 8)):
        tour = _rows(cables, start)
        _save(tour, cables)
        pairs = zip(tour, [*tour[1:], tour[0]], strict=True)
        lacking = sorted({(min(a, b), max(a, b)) for a, b in pairs if cables[a][b] <= 0})
        if best is None or len(lacking) < len(best):
            best = lacking
    return best or []


def _rows(cables: Sequence[Sequence[int]], start: int) -> list[int]:
    """Go along cables, to the host with the fewest others to go to; jump where there is none."""
    n = len(cables)
    tour, free = [start], set(range(n)) - {start}
    while free:
        linked = [j for j in sorted(free) if cables[tour[-1]][j] > 0]
        after = min(linked or sorted(free), key=lambda j: sum(cables[j][k] > 0 for k in free))
        tour.append(after)
        free.discard(after)
    return tour


def _save(tour: list[int], cables: Sequence[Sequence[int]]) -> None:
    """Turn parts of the tour as long as there are fewer gaps afterwards."""
    n = len(tour)
    is_better = True
    while is_better:
        is_better = False
        for i in range(n - 1):
            a, b = tour[i], tour[i + 1]
            if cables[a][b] > 0:
                continue
            for j in [*range(i), *range(i + 2, n)]:
                low, high = min(i, j), max(i, j)
                c, d = tour[low], tour[low + 1]
                e, f = tour[high], tour[(high + 1) % n]
                was = (cables[c][d] <= 0) + (cables[e][f] <= 0)
                if (cables[c][e] <= 0) + (cables[d][f] <= 0) < was:
                    tour[low + 1 : high + 1] = tour[high:low:-1]
                    is_better = True
                    break
