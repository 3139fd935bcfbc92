"""Puts hosts in the order of a ring by what was measured between them.

Pure: matrices in, an order out. It knows nothing of how they were measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ._rings import find_ring

__all__ = ["order_ring"]

# Two measurements of the same path differ so much on a quiet network; an order is not to hang on it.
_NOISE = 0.1


def order_ring(
    bandwidth: Sequence[Sequence[float]], latency: Sequence[Sequence[float]]
) -> tuple[int, ...]:
    """Order the hosts so that the ring's slowest place is as fast as it can be.

    Parameters
    ----------
    bandwidth : sequence of sequence of float
        Between host i and host j, in any unit; 0 where there is no way. The lower of the two
        directions counts.
    latency : sequence of sequence of float
        The same; among rings of the same bandwidth the one with the least sum is taken.

    Returns
    -------
    tuple of int
        All hosts in order; nothing where no ring has a way between all its neighbours.

    Notes
    -----
    A ring's reduction is as fast as its slowest link, so this is the bottleneck travelling salesman
    (Gilmore and Gomory 1964, doi:10.1287/opre.12.5.655): the highest bandwidth for which there is a
    ring, found by halving, each step a search for a ring. Then parts are turned (2-opt) as long as
    that lowers the sum of latencies and uses no slower link. Bandwidths within 10 % are alike.

    Examples
    --------
    >>> fast, slow = 10.0, 1.0
    >>> order_ring([[0, slow, fast, fast], [slow, 0, fast, fast], [fast, fast, 0, slow], [fast, fast, slow, 0]], [[1] * 4] * 4)
    (0, 2, 1, 3)
    """
    n = len(bandwidth)
    if n < 2:
        return tuple(range(n))
    # Classes that are 10 % apart, so that noise does not decide.
    rates = [
        [0 if i == j else _class_of(min(bandwidth[i][j], bandwidth[j][i])) for j in range(n)]
        for i in range(n)
    ]
    steps = sorted({rate for row in rates for rate in row if rate})
    found: tuple[int, ...] = ()
    low, high, floor = 0, len(steps) - 1, 0
    while low <= high:
        middle = (low + high) // 2
        floor_here = steps[middle]
        search = find_ring([[int(rate >= floor_here) for rate in row] for row in rates])
        if search.ring:
            found, floor, low = search.ring, floor_here, middle + 1
        else:
            high = middle - 1
    if not found:
        return ()
    costs = [
        [
            (latency[i][j] + latency[j][i]) / 2 if rates[i][j] >= floor else math.inf
            for j in range(n)
        ]
        for i in range(n)
    ]
    return _shortened(found, costs)


def _class_of(rate: float) -> int:
    """Return the number of the 10 % step a bandwidth is on, from 1; 0 for none."""
    if not rate > 0:
        return 0
    return max(1, 10_000 + math.floor(math.log(rate, 1 + _NOISE)))


def _shortened(ring: Sequence[int], costs: Sequence[Sequence[float]]) -> tuple[int, ...]:
    tour = list(ring)
    n = len(tour)
    is_better = True
    while is_better:
        is_better = False
        for i in range(n - 1):
            for j in range(i + 2, n):
                a, b = tour[i], tour[i + 1]
                c, d = tour[j], tour[(j + 1) % n]
                # Less by more than rounding, or two equal orders would replace each other for ever.
                if a != d and costs[a][c] + costs[b][d] < (costs[a][b] + costs[c][d]) * (1 - 1e-9):
                    tour[i + 1 : j + 1] = tour[j:i:-1]
                    is_better = True
    at = tour.index(0)
    tour = [*tour[at:], *tour[:at]]
    if n > 2 and tour[-1] < tour[1]:
        tour[1:] = tour[:0:-1]
    return tuple(tour)
