"""What MLX's automatic differentiation makes of a collective.

An operation moves real bytes when it is called, so nothing of it would be on MLX's graph without
these rules, and its derivative would be taken for zero. Where `mlx.core.distributed` has a rule,
it is that one, but for the forward derivative of all_max and all_min, whose rule there is wrong.
MLX's rules are those of a loss that all ranks compute alike and that counts once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from phalanx.errors import NotSupported

__all__ = ["with_gradient"]

Move = Callable[[str, Any], Any]


def with_gradient(op: str, x: Any, call: Callable[[Any], Any], move: Move, rank: int) -> Any:
    """Call ``call`` with an array of MLX so that `mx.grad` and `mx.jvp` know its derivative.

    ``move(op, array)`` carries out a collective that the derivative is made of, on every rank.

    Raises
    ------
    NotSupported
        Of an operation that has none; when it is asked for.
    """
    function = sys.modules["mlx.core"].custom_function(call)
    rule = _RULES.get(op)
    function.vjp(partial(_no_rule, op) if rule is None else partial(rule, move, rank))
    # The others are linear. What `send` sends is another rank's, where nobody takes a derivative.
    has_none = op in ("all_max", "all_min", "send")
    function.jvp(partial(_no_rule, op) if has_none else lambda _x, tangent: move(op, tangent))
    return function(x)


def _as_it_is(_move: Move, _rank: int, _x: Any, cotangent: Any, _result: Any) -> Any:
    return cotangent


def _own_part(_move: Move, rank: int, x: Any, cotangent: Any, _result: Any) -> Any:
    if not cotangent.ndim:  # a group of one
        return cotangent
    rows = x.shape[0] if x.ndim else 1
    return cotangent[rank * rows : (rank + 1) * rows].reshape(x.shape)


def _all_parts(move: Move, _rank: int, _x: Any, cotangent: Any, _result: Any) -> Any:
    return move("all_gather", cotangent)


def _back(move: Move, _rank: int, _x: Any, cotangent: Any, _result: Any) -> Any:
    return move("all_to_all", cotangent)


def _no_rule(op: str, *_: Any) -> Any:
    msg = (
        f"{op} has no such derivative (all_sum, all_gather, sum_scatter and all_to_all have one); "
        "call it outside of what is differentiated, or with mx.stop_gradient(x)"
    )
    raise NotSupported(msg)


_RULES: dict[str, Callable[..., Any]] = {
    "all_sum": _as_it_is,
    "all_max": _as_it_is,
    "all_min": _as_it_is,
    "all_gather": _own_part,
    "sum_scatter": _all_parts,
    "all_to_all": _back,
}
