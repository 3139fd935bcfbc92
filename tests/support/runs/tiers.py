"""Choose which cases of a matrix run for every change, and which only in `tests/run all`.

A test, class or file marked ``pytest.mark.deep`` is left out of `tests/run`. ``PHALANX_DEEP=1``, which
`tests/run all` and `tests/run deep` set, draws new and more examples where hypothesis makes them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest

IS_DEEP = os.environ.get("PHALANX_DEEP") == "1"
deep = pytest.mark.deep


def examples(n: int) -> int:
    """Return how many examples hypothesis draws: ``n``, in the deep tier five times as many."""
    return 5 * n if IS_DEEP else n


def deep_but(kept: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Return ``values`` as parameters, of which all but ``kept`` are deep."""
    kept = list(kept)
    values = list(values)
    assert all(value in values for value in kept), "a case that is kept must be one of the cases"
    return [value if value in kept else pytest.param(value, marks=deep) for value in values]


def pairwise(
    axes: Mapping[str, Sequence[Any]], is_case: Callable[..., bool] = lambda *_: True
) -> list[Any]:
    """Return all combinations as parameters; those not needed to cover each pair are deep.

    ``axes`` maps each argument name to its values; ``is_case(*values)`` leaves combinations out.
    Most faults need two values together, so every pair of values of two axes is in the first tier
    (Kuhn, Wallace and Gallo 2004, doi:10.1109/TSE.2004.24). The choice is greedy and always the same.
    """
    cases = [case for case in product(*axes.values()) if is_case(*case)]
    pairs_of = {
        index: set(combinations(enumerate(map(repr, case)), 2)) for index, case in enumerate(cases)
    }
    open_pairs = set().union(*pairs_of.values()) if cases else set()
    chosen = set()
    while open_pairs:
        best = max(pairs_of, key=lambda index: (len(pairs_of[index] & open_pairs), -index))
        chosen.add(best)
        open_pairs -= pairs_of[best]
    return [
        pytest.param(*case, marks=() if index in chosen else deep)
        for index, case in enumerate(cases)
    ]


def each_with_first(axes: Mapping[str, Sequence[Any]]) -> list[Any]:
    """Return all combinations as parameters; deep are those with two values that are not the first.

    For axes that do not act on each other: each value is in the first tier, with the first value of
    every other axis.
    """
    firsts = [values[0] for values in axes.values()]

    def is_deep(case: tuple[Any, ...]) -> bool:
        return sum(one is not first for one, first in zip(case, firsts, strict=True)) > 1

    return [
        pytest.param(*case, marks=deep if is_deep(case) else ()) for case in product(*axes.values())
    ]
