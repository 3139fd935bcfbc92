"""Find a ring through all hosts, or why there is none.

A ring through all hosts is a Hamiltonian cycle. networkx finds one for tournaments only, rustworkx
and igraph not at all, and OR-Tools' circuit constraint is a dependency of 30 MB; so the search is
written here. Steps are limited, not seconds: the same cables always give the same answer.

Sets of hosts are integers used as bit masks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

# Step limits of the search methods. The walk tries all orders of 8 hosts in fewer steps. Measured on
# 64 hosts on the two-core machine: a step of the walk takes 1 us, a rotation 5 us.
_WALK_STEPS = 30_000
_ROTATIONS = 40_000
# Rotations from one start. With restarts all of 60 random graphs (64 hosts, three cables each) gave
# a ring within 4,632 rotations; without, three gave none within 20,000.
_RESTART_AFTER = 2_000
_MOST_NAMED = 8  # hosts of one list in a reason


@dataclass(frozen=True)
class RingSearch:
    """Result of a ring search.

    ``ring`` holds all hosts in order, or is empty. Every two neighbours (the last and the first
    too) have at least ``cables`` between them. If there is no ring, ``reason`` says why.
    """

    ring: tuple[int, ...] = ()
    cables: int = 0
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
    if n < 2:
        return RingSearch(tuple(range(n)))
    is_certain = True
    for most in sorted({count for row in cables for count in row if count > 0}, reverse=True):
        near = _neighbours(cables, most)
        if any(row.bit_count() < min(2, n - 1) for row in near):
            continue
        ring, is_certain = _walk(near)
        if ring or (not is_certain and (ring := _rotate(near))):
            return RingSearch(_turned(ring), most)
    reason = _why_no_ring(_neighbours(cables, 1), names or [f"host {i}" for i in range(n)])
    if not reason and is_certain:
        reason = "no order of the hosts has a cable between all neighbours"
    return RingSearch(reason=reason or "none was found within the limit of the search")


def _neighbours(cables: Sequence[Sequence[int]], most: int) -> list[int]:
    """Return each host's neighbours, as bit masks.

    Neighbours have ``most`` cables or more between them.
    """
    return [
        sum(1 << j for j, count in enumerate(row) if j != i and count >= most)
        for i, row in enumerate(cables)
    ]


def _why_no_ring(near: Sequence[int], names: Sequence[str]) -> str:
    """Return a reason why no ring exists, or "".

    A ring without k of its hosts has at most k connected parts (Chvatal 1973,
    doi:10.1016/0012-365X(73)90138-6); checked for k = 0, 1, 2.
    """
    n = len(near)
    everybody = (1 << n) - 1

    def listed(hosts: Sequence[int]) -> str:
        said = [names[i] for i in hosts[:_MOST_NAMED]]
        if len(hosts) > _MOST_NAMED:
            return f"{', '.join(said)} and {len(hosts) - _MOST_NAMED} more"
        return " and ".join([", ".join(said[:-1]), said[-1]]) if len(said) > 1 else said[0]

    def apart(pieces: Sequence[int], between: str) -> str:
        return between.join(listed(list(_bits(piece))) for piece in pieces)

    def lacking(hosts: Sequence[int], what: str) -> str:
        return f"{listed(hosts)} {'have' if len(hosts) > 1 else 'has'} {what}"

    if alone := [i for i in range(n) if not near[i]]:
        return lacking(alone, "no neighbour")
    pieces = _parts(near, everybody)
    if len(pieces) > 1:
        return f"the hosts fall into {len(pieces)} parts: {apart(pieces, '; ')}"
    if n > 2 and (ends := [i for i in range(n) if near[i].bit_count() == 1]):
        return lacking(ends, "one neighbour only")
    for k in (1, 2):
        for taken in combinations(range(n), k):
            pieces = _parts(near, everybody & ~sum(1 << i for i in taken))
            if len(pieces) > k:
                through = " and ".join(names[i] for i in taken)
                return f"all ways between {apart(pieces, ' | ')} lead through {through}"
    return ""


def _bits(mask: int) -> Iterator[int]:
    """Yield the positions of the set bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _parts(near: Sequence[int], among: int) -> list[int]:
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


def _walk(near: Sequence[int]) -> tuple[tuple[int, ...], bool]:
    """Search depth-first from host 0, lowest free host first, with backtracking.

    Return a ring or (), and whether the result is certain.
    """
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
    starts = sorted(range(len(near)), key=lambda i: near[i].bit_count())
    choices = random.Random(0)  # noqa: S311 - the same choices in every run
    for attempt in range(_ROTATIONS // _RESTART_AFTER):
        if found := _rotate_from(near, starts[attempt % len(near)], choices):
            return found
    return ()


def _rotate_from(near: Sequence[int], start: int, choices: random.Random) -> tuple[int, ...]:
    """Extend a path; if stuck, reverse a part to change its end."""
    n = len(near)
    path, visited = [start], 1 << start
    for _ in range(_RESTART_AFTER):
        end = path[-1]
        free = near[end] & ~visited
        if free:
            # Prefer the host with the fewest free neighbours: it may have none later.
            after = min(_bits(free), key=lambda j: ((near[j] & ~visited).bit_count(), j))
            path.append(after)
            visited |= 1 << after
            continue
        if len(path) == n and near[end] >> path[0] & 1:
            return tuple(path)
        options = list(_bits(near[end] & ~(1 << path[-2])))
        pivot = path.index(options[int(choices.random() * len(options))])
        path[pivot + 1 :] = path[:pivot:-1]
        if len(path) < n and not near[path[-1]] & ~visited and choices.random() < 1 / 16:
            path.reverse()  # the other end may be extensible
    return ()


def _turned(ring: Sequence[int]) -> tuple[int, ...]:
    """Rotate the ring to begin with host 0 and its lower neighbour."""
    at = ring.index(0)
    turned = [*ring[at:], *ring[:at]]
    if len(turned) > 2 and turned[-1] < turned[1]:
        turned[1:] = turned[:0:-1]
    return tuple(turned)


def missing_in_ring(cables: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return cables that would complete a ring: few, not always the fewest.

    The best of some tours along the existing cables, each from another host.

    Examples
    --------
    >>> missing_in_ring([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]])
    [(0, 3)]
    """
    if len(cables) < 2:
        return []
    tours = [_tour(cables, start) for start in range(len(cables))]
    gaps = [
        sorted({(min(a, b), max(a, b)) for a, b in zip(tour, [*tour[1:], tour[0]], strict=True) if cables[a][b] <= 0})
        for tour in tours
    ]  # fmt: skip
    return min(gaps, key=len)


def _tour(cables: Sequence[Sequence[int]], start: int) -> list[int]:
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
