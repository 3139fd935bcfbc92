"""Find a ring through all hosts, or why there is none.

A ring through all hosts is a Hamiltonian cycle. networkx finds one for tournaments only, rustworkx
and igraph not at all, and OR-Tools' circuit constraint is a dependency of 30 MB; so the search is
written here. Steps are limited, not seconds: the same cables always give the same answer.

Sets of hosts are integers used as bit masks. `why_no_ring` may find no reason although there is no
ring; a reason that it finds is certain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

# Step limits of the search methods. The walk tries all orders of 8 hosts in fewer steps. Measured on
# 64 hosts on the two-core machine: a step of the walk takes 1 us, a rotation 5 us.
_WALK_STEPS = 30_000
_ROTATIONS = 40_000
# Rotations from one start. With restarts all of 60 random graphs (64 hosts, three cables each) gave
# a ring within 4,632 rotations; without, three gave none within 20,000.
_RESTART_AFTER = 2_000


def why_no_ring(near: Sequence[int], names: Sequence[str]) -> str:
    """Return a reason why no ring exists, or "".

    Parameters
    ----------
    near : sequence of int
        For each host its neighbours as a bit mask: bit j for host j.
    names : sequence of str
        Names of the hosts.

    Notes
    -----
    A ring without k of its hosts has at most k connected parts (Chvatal 1973,
    doi:10.1016/0012-365X(73)90138-6); checked for k = 0, 1, 2. And a ring in a bipartite graph has
    equally many hosts on both sides.
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
    """Return a reason if the hosts are bipartite with unequal sides."""
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
    """Yield the positions of the set bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def parts(near: Sequence[int], among: int) -> list[int]:
    """Return the connected parts of a set of hosts, as bit masks."""
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


@dataclass(frozen=True)
class RingSearch:
    """Result of a ring search.

    ``ring`` holds all hosts in order, or is empty. Every two neighbours (the last and the first
    too) have at least ``cables`` between them. If there is no ring, ``reason`` says why.
    ``is_certain`` is False if the search stopped at its limit, so that a ring may exist.
    """

    ring: tuple[int, ...] = ()
    cables: int = 0
    is_certain: bool = True
    reason: str = ""


def find_ring(cables: Sequence[Sequence[int]], names: Sequence[str] | None = None) -> RingSearch:
    """Find the ring with the most cables between its worst-connected neighbours.

    Parameters
    ----------
    cables : sequence of sequence of int
        Number of cables between host i and host j; symmetric.
    names : sequence of str, optional
        Names of the hosts in ``reason``.

    Returns
    -------
    RingSearch
        One host is a ring; two hosts with one cable are a ring (as for MLX).

    Notes
    -----
    For each number of cables, highest first: a depth-first walk in host order with backtracking,
    which is certain up to 8 hosts and gives the first ring in host order. If the walk reaches its
    limit of steps (on more hosts), rotations of a path at its end follow (Posa 1976,
    doi:10.1016/0012-365X(76)90068-6); they find a ring in most graphs that have one, but cannot
    prove that there is none.

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
        is_certain = is_sure  # the last round counts, which allows the fewest cables
    near = [sum(1 << j for j in range(n) if j != i and row[j] > 0) for i, row in enumerate(cables)]
    reason = why_no_ring(near, names)
    if reason:
        return RingSearch(reason=reason)
    if is_certain:
        return RingSearch(reason="no order of the hosts has a cable between all neighbours")
    return RingSearch(is_certain=False, reason="none was found within the limit of the search")


def _search(near: Sequence[int]) -> tuple[tuple[int, ...], bool]:
    """Return a ring or (), and whether the result is certain."""
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
    return (), bool(why_no_ring(near, [str(i) for i in range(n)]))


def _walk(near: Sequence[int]) -> tuple[tuple[int, ...], bool]:
    """Search depth-first from host 0, lowest free host first, with backtracking."""
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
    """Build a ring by rotations, from one start after the other."""
    n, state = len(near), len(near)
    starts = sorted(range(n), key=lambda i: near[i].bit_count())
    for attempt in range(_ROTATIONS // _RESTART_AFTER):
        found, state = _rotate_from(near, starts[attempt % n], state)
        if found:
            return found
    return ()


def _rotate_from(near: Sequence[int], start: int, state: int) -> tuple[tuple[int, ...], int]:
    """Extend a path; if stuck, reverse a part to change its end.

    ``state`` is the state of the random numbers. Returns a ring or (), and the new state.
    """
    n = len(near)
    path, visited = [start], 1 << start
    for _ in range(_RESTART_AFTER):
        end = path[-1]
        free = near[end] & ~visited
        if free:
            # Prefer the host with the fewest free neighbours: it may have none later.
            after = min(bits(free), key=lambda j: ((near[j] & ~visited).bit_count(), j))
            path.append(after)
            visited |= 1 << after
            continue
        if len(path) == n and near[end] >> path[0] & 1:
            return tuple(path), state
        options = list(bits(near[end] & ~(1 << path[-2])))
        # A linear congruential generator (Knuth, MMIX): the same choices in every run.
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        pivot = path.index(options[(state >> 33) % len(options)])
        path[pivot + 1 :] = path[:pivot:-1]
        if len(path) < n and not near[path[-1]] & ~visited and state >> 60 == 0:
            path.reverse()  # the other end may be extensible
    return (), state


def _turned(ring: Sequence[int]) -> tuple[int, ...]:
    """Rotate the ring to begin with host 0 and its lower neighbour."""
    at = ring.index(0)
    turned = [*ring[at:], *ring[:at]]
    if len(turned) > 2 and turned[-1] < turned[1]:
        turned[1:] = turned[:0:-1]
    return tuple(turned)


def missing_in_mesh(cables: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return all pairs of hosts without a cable.

    Examples
    --------
    >>> missing_in_mesh([[0, 1, 0], [1, 0, 0], [0, 0, 0]])
    [(0, 2), (1, 2)]
    """
    n = len(cables)
    return [(i, j) for i in range(n) for j in range(i + 1, n) if cables[i][j] <= 0]


def missing_in_ring(cables: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return cables that would complete a ring: few, not always the fewest.

    Notes
    -----
    Greedy paths along the existing cables form a tour; a gap between two paths needs a cable. Parts
    of the tour are reversed (2-opt) as long as that removes a gap.

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
    """Build a tour along cables; jump where no cable leads on.

    The next host is the one with the fewest free neighbours.
    """
    n = len(cables)
    tour, free = [start], set(range(n)) - {start}
    while free:
        linked = [j for j in sorted(free) if cables[tour[-1]][j] > 0]
        after = min(linked or sorted(free), key=lambda j: sum(cables[j][k] > 0 for k in free))
        tour.append(after)
        free.discard(after)
    return tour


def _save(tour: list[int], cables: Sequence[Sequence[int]]) -> None:
    """Reverse parts of the tour while that removes gaps (2-opt)."""
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
