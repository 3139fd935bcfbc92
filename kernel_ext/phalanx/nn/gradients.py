"""Average, sum and clip the gradients of all ranks."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from phalanx.distributed.bootstrap.init import init
from phalanx.distributed.group.group import Group
from phalanx.distributed.operations.exchanges import all_gather
from phalanx.distributed.operations.objects import all_gather_object
from phalanx.distributed.operations.reductions import all_sum
from phalanx.distributed.operations.run_collective import IN_PLACE
from phalanx.errors import CollectiveMismatch

from .arrays import ArrayKind, dtype_name_of, is_real, kind_of
from .trees import Leaf, check_devices, flatten, rebuild

_WIDE = {"float16": "float32", "bfloat16": "float32"}
_MOST_NAMED = 3  # leaves that an error about different trees names


class _Bucket(NamedTuple):
    """Leaves that one all_sum carries, by their places in the tree."""

    kind: ArrayKind
    sent: str  # dtype that the ranks exchange
    places: list[int]


def average_gradients(
    gradients: Any,
    group: Any = None,
    all_reduce_size: int = 32 * 1024**2,
    communication_stream: Any = None,
    *,
    weights: Any = None,
    communication_type: Any = None,
) -> Any:
    """Average a tree of gradients over all ranks.

    Parameters
    ----------
    gradients : tree of arrays
        Nested dicts, lists, tuples and dataclasses of arrays of numpy, torch (on the CPU) or MLX.
        None stands for a parameter without a gradient. Every rank passes the same tree: the same
        keys in the same order, shapes and dtypes.
    group : Group or mlx.core.distributed.Group, optional
        Ranks that take part; ``None``: all.
    all_reduce_size : int, optional
        Small arrays of one dtype are sent together: a bucket is closed when it has this many bytes.
        0 sends each array on its own.
    communication_stream : mlx.core.Stream, optional
        The stream on which MLX sends; only for arrays of MLX.
    weights : number, optional
        The weight of this rank's gradients, for example the number of its tokens. The result is the
        weighted mean. A rank with weight 0 adds nothing, even if its gradients are NaN.
    communication_type : dtype or str, optional
        Floating-point dtype in which gradients are sent, for example ``"bfloat16"``.

    Returns
    -------
    tree
        A tree of the same form with the means, alike on all ranks. Floating-point and complex
        arrays keep their dtype. Integers become float64 (numpy) or float32. In a group of one:
        ``gradients`` itself.

    Raises
    ------
    CollectiveMismatch
        The trees or the options of the ranks differ; names the first leaves that do.
    RankFailure
        A rank was lost.
    TypeError
        A leaf is no array, or ``communication_stream`` is given for arrays that are not MLX's.
    ValueError
        ``communication_type`` is no floating-point dtype, a weight is negative or not finite, or
        all weights are 0.
    NotSupported
        A leaf is on another device than the CPU (names it).

    See Also
    --------
    sum_gradients : for layers that have their input on every rank, and divide their output.

    Notes
    -----
    float16 and bfloat16 are summed in float32, and rounded once: the sum cannot overflow. This
    doubles the bytes sent; ``communication_type="bfloat16"`` sends 16 bits.

    A tree of MLX arrays (without ``group``, or with a group of MLX) is averaged by
    `mlx.core.distributed`: lazily, also inside `mx.compile` and `mx.grad`. There, only shapes and
    dtypes are compared. All other trees are averaged at once, and a bucket is packed while the one
    before it is sent.

    Cost: one `all_sum` for each bucket, an `all_gather` of 16 bytes, and a copy of the gradients.
    The signature is that of `mlx.nn.average_gradients`.

    Examples
    --------
    >>> import numpy as np, phalanx as px
    >>> px.nn.average_gradients({"w": np.ones(2), "b": None}, weights=12)
    {'w': array([1., 1.]), 'b': None}
    """
    caller = "average_gradients"
    leaves = flatten(caller, gradients)
    sent_as = None if communication_type is None else dtype_name_of(communication_type)
    lazy = _mlx_group(leaves, group)
    if lazy is not None:
        if lazy.size() == 1:
            return gradients
        stream = communication_stream
        arrays = _average_lazily(leaves, lazy, all_reduce_size, stream, weights, sent_as)
        return rebuild(gradients, iter(arrays))
    if communication_stream is not None:
        msg = f"{caller}: communication_stream is for trees of MLX arrays without a phalanx.Group"
        raise TypeError(msg)
    group = init() if group is None else group
    weight = _checked_weight(caller, weights)
    if group.size() == 1:
        return gradients
    weighted = "no weights" if weights is None else "weights"
    options = f"all_reduce_size={all_reduce_size}, communication_type={sent_as}, {weighted}"
    total = agree(caller, group, [leaf.text for leaf in leaves], options, weight)
    check_devices(caller, leaves)  # after the ranks know that all have it there
    scale = None if weights is None else weight
    arrays = _average_now(leaves, group, all_reduce_size, scale, total, sent_as)
    return rebuild(gradients, iter(arrays))


def _mlx_group(leaves: Sequence[Leaf], group: Any) -> Any:
    """Return the group of MLX that can average the leaves, or None."""
    kinds = {leaf.kind.name for leaf in leaves if leaf.kind is not None}
    return group_of_mlx(group) if kinds == {"MLX"} or group is not None else None


def group_of_mlx(group: Any) -> Any:
    """Return MLX's group of these ranks; None if only Phalanx has one.

    Raises
    ------
    TypeError
        ``group`` is neither a group of Phalanx nor of MLX.
    """
    if isinstance(group, Group):
        return None
    if group is not None:
        if not type(group).__module__.startswith("mlx."):
            msg = f"group must be a phalanx.Group or None, not {type(group).__name__}"
            raise TypeError(msg)
        return group
    ours = sys.modules["mlx.core"].distributed.init()
    # Without the library for MLX, its group has one rank, and would average nothing.
    return ours if ours.size() == init().size() else None


def _checked_weight(caller: str, weights: Any) -> float:
    weight = 1.0 if weights is None else float(weights)
    if not 0 <= weight < np.inf:
        msg = f"{caller}: a weight must be 0 or more and finite, not {weights!r}"
        raise ValueError(msg)
    return weight


def agree(caller: str, group: Group, lines: list[str], options: str, weight: float) -> float:
    """Return the sum of all weights.

    Raises an error if the ranks pass different trees or options.
    """
    digest = hashlib.blake2b("\n".join((options, *lines)).encode(), digest_size=8).digest()
    mine = np.frombuffer(digest + np.float64(weight).tobytes(), np.uint64)
    all_ = all_gather(mine, group=group).reshape(-1, 2)
    if (all_[:, 0] != all_[0, 0]).any():
        raise CollectiveMismatch(_difference(caller, group, (options, *lines)))
    total = float(np.ascontiguousarray(all_[:, 1]).view(np.float64).sum())
    if total == 0:
        msg = f"{caller}: the weights of all ranks are 0"
        raise ValueError(msg)
    return total


def _difference(caller: str, group: Group, mine: tuple[str, ...]) -> str:
    """Describe how the ranks' trees differ; every rank calls this."""
    by_rank = all_gather_object(mine, group=group)
    first = by_rank[0]
    other = next(rank for rank, lines in enumerate(by_rank) if lines != first)
    theirs = by_rank[other]
    if first[0] != theirs[0]:
        return f"{caller}: rank 0 passes {first[0]}, rank {other} {theirs[0]}"
    only = [
        [f"only rank {rank} has {line}" for line in lines if line not in others]
        for rank, lines, others in ((0, first, theirs), (other, theirs, first))
    ]
    found = [line for pair in zip(*only, strict=False) for line in pair] or only[0] or only[1]
    found = found or [f"rank {other} has the leaves of rank 0 in another order"]
    more = f", and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return f"{caller}: the trees of the ranks differ: {'; '.join(found[:_MOST_NAMED])}{more}"


def _result_dtype(leaf: Leaf) -> str:
    assert leaf.kind is not None
    name = leaf.kind.dtype_name(leaf.array)
    return name if is_real(name) or name.startswith("complex") else leaf.kind.integers_as


def _sent_dtype(leaf: Leaf, sent_as: str | None) -> str:
    name = _result_dtype(leaf)
    return sent_as if sent_as is not None and is_real(name) else _WIDE.get(name, name)


def _buckets(leaves: Sequence[Leaf], size: int, sent_as: str | None) -> Iterator[_Bucket]:
    """Yield buckets as they fill up, then those that are not full."""
    open_: dict[tuple[str, str], tuple[_Bucket, int]] = {}
    for place, leaf in enumerate(leaves):
        if leaf.kind is None:
            continue
        sent = _sent_dtype(leaf, sent_as)
        key = (leaf.kind.name, sent)
        bucket, nbytes = open_.pop(key, (_Bucket(leaf.kind, sent, []), 0))
        bucket.places.append(place)
        nbytes += leaf.array.nbytes
        if nbytes >= size or size <= 0:
            yield bucket
        else:
            open_[key] = bucket, nbytes
    for bucket, _ in open_.values():
        yield bucket


def _average_now(
    leaves: Sequence[Leaf],
    group: Group,
    size: int,
    scale: float | None,
    total: float,
    sent_as: str | None,
) -> list[Any]:
    """Average in buckets: pack the next bucket while one is sent."""
    started = []
    for bucket in _buckets(leaves, size, sent_as):
        arrays = [leaves[i].array for i in bucket.places]
        flat = bucket.kind.join(arrays, bucket.sent, scale)
        out = flat
        if bucket.kind.name == "MLX":
            # One array that needs no change is sent as it is, from the caller's memory.
            is_new = len(arrays) > 1 or scale is not None
            is_new = is_new or bucket.kind.dtype_name(arrays[0]) != bucket.sent
            out = IN_PLACE if is_new else None
        started.append((bucket, all_sum(flat, group=group, out=out, async_op=True)))
    means: list[Any] = [None] * len(leaves)
    for bucket, work in started:
        _unpack(bucket, work.wait(), leaves, total, means)
    return means


def _unpack(
    bucket: _Bucket, summed: Any, leaves: Sequence[Leaf], total: Any, means: list[Any]
) -> None:
    # Divide in 32 bits or more, so that a mean is rounded once.
    names = {_result_dtype(leaves[i]) for i in bucket.places}
    divided = next(iter(names)) if len(names) == 1 else max(names, key=_width)
    flat = bucket.kind.divide(summed, total, _WIDE.get(divided, divided))
    start = 0
    for place in bucket.places:
        leaf = leaves[place]
        means[place] = bucket.kind.part(flat, start, leaf.array, _result_dtype(leaf))
        start += int(np.prod(leaf.array.shape, dtype=np.int64))


def _width(name: str) -> int:
    return int("".join(c for c in name if c.isdigit()))


def _average_lazily(
    leaves: Sequence[Leaf],
    group: Any,
    size: int,
    stream: Any,
    weights: Any,
    sent_as: str | None,
) -> list[Any]:
    """Add the averaging to MLX's graph."""
    mx = sys.modules["mlx.core"]

    def sum_of(x: Any) -> Any:
        # Looked up at each call, as MLX's own tests replace it.
        return mx.distributed.all_sum(x, group=group, stream=stream)

    scale, total = None, group.size()
    if weights is not None:
        if not isinstance(weights, mx.array):
            weights = _checked_weight("average_gradients", weights)
        scale = mx.array(weights, mx.float32)
        total = sum_of(scale)
    means: list[Any] = [None] * len(leaves)
    for bucket in _buckets(leaves, size, sent_as):
        flat = bucket.kind.join([leaves[i].array for i in bucket.places], bucket.sent, scale)
        _unpack(bucket, sum_of(flat), leaves, total, means)
    return means


def sum_gradients(group: Any = None) -> Callable[[Any], Any]:
    """Return the identity, with a gradient that is summed over all ranks.

    Parameters
    ----------
    group : Group or mlx.core.distributed.Group, optional
        Ranks that take part; ``None``: all.

    Returns
    -------
    callable
        For an array of MLX or a tensor of torch. It returns its argument. Backward, the gradients
        of all ranks are summed.

    Raises
    ------
    TypeError
        The function is called with something else.

    See Also
    --------
    average_gradients : for the gradients of parameters that every rank has.

    Notes
    -----
    Apply it to the input of a layer that is divided among the ranks by its output: each rank then
    has a part of the input's gradient.

    Cost: forward none; backward one `all_sum` of the size of the input.

    Examples
    --------
    >>> import phalanx as px
    >>> px.nn.sum_gradients()(None)
    Traceback (most recent call last):
        ...
    TypeError: sum_gradients takes an array of MLX or a tensor of torch, not NoneType
    """
    return partial(_sum_gradients, group)


def _sum_gradients(group: Any, x: Any) -> Any:
    kind = kind_of(x)
    if kind is None or kind.name == "numpy":
        msg = f"sum_gradients takes an array of MLX or a tensor of torch, not {type(x).__name__}"
        raise TypeError(msg)
    if kind.name == "torch":
        from .autograd import sum_backward

        return sum_backward(x, group)
    mx = sys.modules["mlx.core"]
    lazy = _mlx_group([Leaf("", x, kind)], group)
    if (lazy or group or init()).size() == 1:
        return x

    def backward(_x: Any, cotangent: Any, _result: Any) -> Any:
        if lazy is not None:
            return mx.distributed.all_sum(cotangent, group=lazy)
        return all_sum(cotangent, group=group)

    identity = mx.custom_function(lambda y: y)
    identity.vjp(backward)
    return identity(x)


def clip_grad_norm_sharded(
    gradients: Any,
    max_norm: float,
    group: Any = None,
    *,
    is_replicated: Callable[[str, Any], bool] | None = None,
) -> tuple[Any, Any]:
    """Limit the norm of the gradients of divided parameters.

    The norm is that over all ranks. If it is more than the limit, all gradients are scaled down.

    Parameters
    ----------
    gradients : tree of arrays
        As for `average_gradients`; each rank passes the gradients of its own parts.
    max_norm : float
        Largest norm.
    group : Group or mlx.core.distributed.Group, optional
        Ranks that take part; ``None``: all.
    is_replicated : callable, optional
        ``is_replicated(path, array)`` returns whether every rank has the whole of this leaf, which
        then counts once. ``None``: no leaf is replicated.

    Returns
    -------
    (tree, norm)
        The scaled gradients, of the same form and dtypes, and the norm before: a float, or an MLX
        array for trees of MLX.

    Raises
    ------
    ValueError
        ``max_norm`` is not more than 0.
    RankFailure
        A rank was lost.
    TypeError
        A leaf is no array.
    NotSupported
        A leaf is on another device than the CPU (names it).

    See Also
    --------
    average_gradients : averages gradients first.

    Notes
    -----
    The factor is ``min(max_norm / (norm + 1e-6), 1)``, as in `mlx.nn.utils.clip_grad_norm_sharded`.
    Squares are summed in float64 (MLX: float32), so 16-bit gradients do not overflow.

    Cost: one `all_sum` of one number, and a pass over the gradients.

    Examples
    --------
    >>> import numpy as np, phalanx as px
    >>> px.nn.clip_grad_norm_sharded([np.array([3.0, 4.0])], 10.0)
    ([array([3., 4.])], 5.0)
    """
    if not max_norm > 0:
        msg = f"max_norm must be more than 0, not {max_norm!r}"
        raise ValueError(msg)
    leaves = flatten("clip_grad_norm_sharded", gradients)
    check_devices("clip_grad_norm_sharded", leaves)
    own: Any = 0.0
    whole: Any = 0.0
    for leaf in leaves:
        if leaf.kind is None:
            continue
        squares = leaf.kind.sum_of_squares(leaf.array)
        if is_replicated is not None and is_replicated(leaf.path, leaf.array):
            whole = whole + squares
        else:
            own = own + squares
    lazy = _mlx_group(leaves, group)
    if lazy is None:
        mx = sys.modules.get("mlx.core")
        if mx is not None and isinstance(own + whole, mx.array):
            own, whole = (float(mx.array(number).item()) for number in (own, whole))
        norm: Any = float(np.sqrt(all_sum(own, group=group) + whole))
        factor: Any = min(max_norm / (norm + 1e-6), 1.0)
    else:
        mx = sys.modules["mlx.core"]
        norm = mx.sqrt(mx.distributed.all_sum(mx.array(own), group=lazy) + whole)
        factor = mx.minimum(max_norm / (norm + 1e-6), 1.0)
    scaled = (leaf.kind and leaf.kind.scaled(leaf.array, factor) for leaf in leaves)
    return rebuild(gradients, scaled), norm
