"""What MLX's automatic differentiation makes of a collective.

An operation moves real bytes when it is called, so nothing of it would be on MLX's graph without
these rules, and its derivative would be taken for zero. Where `mlx.core.distributed` has a rule,
it is that one, but for the forward derivative of all_max and all_min, whose rule there is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from phalanx.errors import NotSupported

__all__ = ["with_gradient"]


def with_gradient(op: str, x: Any, call: Callable[[Any], Any], rank: int) -> Any:
    """Call ``call`` with an array of MLX so that `mx.grad` and `mx.jvp` know its derivative.

    Raises
    ------
    NotSupported
        Of an operation that has none; when it is asked for.
    """
    function = sys.modules["mlx.core"].custom_function(call)
    function.vjp(partial(_RULES.get(op, _no_rule), op, rank))
    if op in ("all_max", "all_min"):
        function.jvp(partial(_no_rule, op))
    else:  # it is linear
        function.jvp(lambda _x, tangent: call(tangent))
    return function(x)


def _as_it_is(_op: str, _rank: int, _x: Any, cotangent: Any, _result: Any) -> Any:
    return cotangent


def _own_part(_op: str, rank: int, x: Any, cotangent: Any, _result: Any) -> Any:
    if not cotangent.ndim:  # a group of one
        return cotangent
    rows = x.shape[0] if x.ndim else 1
    return cotangent[rank * rows : (rank + 1) * rows].reshape(x.shape)


def _no_rule(op: str, *_: Any) -> Any:
    msg = f"{op} has no such derivative (see phalanx.all_sum and phalanx.all_gather for one)"
    raise NotSupported(msg)


_RULES: dict[str, Callable[..., Any]] = {
    "all_sum": _as_it_is,
    "all_max": _as_it_is,
    "all_min": _as_it_is,
    "all_gather": _own_part,
}
