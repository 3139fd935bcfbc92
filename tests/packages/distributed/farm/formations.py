"""The formations of worlds by name: how many ranks on which hosts, and over what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

# One, a pair, powers of two, odd, and even without being such a power: the others take their ways.
FORMATIONS = {
    **{f"{n} arena": (n, (0,) * n, "any") for n in (1, 2, 3, 4, 6, 7, 8)},
    **{f"{n} tcp": (n, (0,) * n, "tcp") for n in (2, 3, 4, 6, 7)},
    "1+1 composed": (2, (0, 1), "any"),
    "2+1 composed": (3, (0, 0, 1), "any"),
    "2+2 composed": (4, (0, 0, 1, 1), "any"),
    "2+2 interleaved": (4, (0, 1, 0, 1), "any"),
    "3+1+1 composed": (5, (0, 0, 0, 1, 2), "any"),
    "4+4 composed": (8, (0,) * 4 + (1,) * 4, "any"),
}
THREE = ("3 arena", "3 tcp", "2+1 composed")
FOUR = ("4 arena", "4 tcp", "2+2 composed")


def worlds(names: Iterable[Any]) -> Any:
    """Return a fixture: a world of each formation, or of the one that a test's parameter names."""

    @pytest.fixture(params=names)
    def world(request, rank_pool):
        return rank_pool(*FORMATIONS[request.param])

    return world
