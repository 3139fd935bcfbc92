"""The search for a ring: beside brute force where that is possible, and on 64 hosts."""

from __future__ import annotations

import itertools
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.cli.config.ring_search import find_ring, missing_in_ring


def matrix(n, edges):
    found = [[0] * n for _ in range(n)]
    for a, b in edges:
        found[a][b] += 1
        found[b][a] += 1
    return found


def around(ring):
    return zip(ring, [*ring[1:], *ring[:1]], strict=True)


def brute(cables):
    """The most cables that the thinnest place of a ring can have; 0: there is no ring."""
    n = len(cables)
    rings = ((0, *rest) for rest in itertools.permutations(range(1, n)))
    return max(min(cables[a][b] for a, b in around(ring)) for ring in rings)


@st.composite
def worlds(draw, most=6, cables=3):
    n = draw(st.integers(2, most))
    count = st.integers(0, cables)
    found = [[0] * n for _ in range(n)]
    for i, j in itertools.combinations(range(n), 2):
        found[i][j] = found[j][i] = draw(count)
    return found


@given(worlds())
@settings(max_examples=80, deadline=None)
def test_a_ring_is_found_exactly_where_there_is_one(cables):
    search, most = find_ring(cables), brute(cables)
    assert search.cables == most
    assert bool(search.ring) == bool(most) != bool(search.reason)
    if most:
        assert sorted(search.ring) == list(range(len(cables)))
        assert min(cables[a][b] for a, b in around(search.ring)) == most
        assert missing_in_ring(cables) == [] or len(cables) > 3  # its rows are a guess


@given(worlds(cables=1))
@settings(max_examples=60, deadline=None)
def test_the_cables_that_are_missing_make_a_ring(cables):
    for a, b in missing_in_ring(cables):
        assert not cables[a][b]
        cables[a][b] = cables[b][a] = 1
    assert find_ring(cables).ring


def petersen(m):
    """The generalised Petersen graph of m and 2; no ring where m leaves 5 when divided by 6."""
    inner = [(m + i, m + (i + 2) % m) for i in range(m)]
    return matrix(
        2 * m, [*((i, (i + 1) % m) for i in range(m)), *((i, i + m) for i in range(m)), *inner]
    )


def grid(width, height, *, is_round=False):
    edges = []
    for x, y in itertools.product(range(width), range(height)):
        if is_round or x + 1 < width:
            edges.append((x * height + y, (x + 1) % width * height + y))
        if is_round or y + 1 < height:
            edges.append((x * height + y, x * height + (y + 1) % height))
    return matrix(width * height, edges)


RINGLESS = {
    "two hosts without a cable": (matrix(2, []), "no neighbour"),
    "a row": (matrix(3, [(0, 1), (1, 2)]), "one neighbour only"),
    "two rings": (matrix(6, [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)]), "2 parts"),
    "a bow tie": (
        matrix(5, [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 2)]),
        "lead through host 2",
    ),
    "three ways between two": (
        matrix(5, [(0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4)]),
        "lead through host 0 and host 1",
    ),
    "three against five": (
        matrix(8, itertools.product(range(3), range(3, 8))),
        "no order of the hosts",
    ),
    "Petersen": (petersen(5), "no order of the hosts"),
}


@pytest.mark.parametrize("name", RINGLESS)
def test_why_there_is_none_is_said(name):
    cables, reason = RINGLESS[name]
    search = find_ring(cables)
    assert not search.ring
    assert reason in search.reason


def test_giving_up_is_not_called_none():
    search = find_ring(petersen(17))  # it has none, but no reason tells so
    assert not search.ring
    assert "limit" in search.reason


def _shuffled(cables, seed):
    place = list(range(len(cables)))
    random.Random(seed).shuffle(place)
    return [[cables[i][j] for j in place] for i in place]


def _cubic(seed):
    draw = random.Random(seed)
    while True:
        ends = [host for host in range(64) for _ in range(3)]
        draw.shuffle(ends)
        edges = {tuple(sorted(ends[k : k + 2])) for k in range(0, len(ends), 2)}
        if len(edges) == 96 and all(a != b for a, b in edges):
            return matrix(64, edges)


LARGE = {
    "mesh": matrix(64, itertools.combinations(range(64), 2)),
    "ring": _shuffled(matrix(64, [(i, (i + 1) % 64) for i in range(64)]), 1),
    "double ring": _shuffled(matrix(64, [(i, (i + 1) % 64) for i in range(64)] * 2 + [(0, 9)]), 2),
    "hypercube": matrix(64, [(i, i ^ 1 << k) for i in range(64) for k in range(6) if i < i ^ 1 << k]),
    "torus": _shuffled(grid(8, 8, is_round=True), 3),
    "grid": _shuffled(grid(8, 8), 4),
    "two meshes and two cables": matrix(
        64,
        [*itertools.combinations(range(32), 2), *itertools.combinations(range(32, 64), 2), (5, 40), (9, 50)],
    ),
    # Without restarts the rotations miss the rings of the last two.
    **{f"three cables each, {seed}": _cubic(seed) for seed in (0, 1, 21, 46)},
}  # fmt: skip


# Calls and returns of functions, which do not depend on how busy the machine is: 1.3 million take
# 0.27 s on the two-core machine, and are what the search among 58 hosts needs to find that it gives up.
MOST_EVENTS = 3_000_000


def counted(function, *arguments):
    """Return what a function returns, and how many calls and returns that took."""
    events = itertools.count()
    sys.setprofile(lambda *_: next(events))
    try:
        return function(*arguments), next(events)
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("name", [*LARGE, "none found"])
def test_sixty_four_hosts_take_few_steps(name):
    cables = LARGE.get(name, petersen(29))
    search, n_events = counted(find_ring, cables)
    assert n_events < MOST_EVENTS
    if name in LARGE:
        assert sorted(search.ring) == list(range(64))
        assert all(cables[a][b] for a, b in around(search.ring))
        assert search == find_ring(cables)
        assert search.cables == (2 if name == "double ring" else 1)


def test_the_order_of_the_hosts_is_kept_where_it_is_a_ring():
    assert find_ring(matrix(6, itertools.combinations(range(6), 2))).ring == tuple(range(6))
