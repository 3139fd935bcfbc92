"""Divide the parameters of MLX modules among the ranks.

They are gathered while a module computes. Imported only where MLX is loaded. Source: Rajbhandari et
al. 2020, "ZeRO: memory optimizations toward training trillion parameter models",
doi:10.1109/SC41405.2020.00024, stage 3. `nn/checkpoints.py` saves a divided module: its
`whole_parameters`, or the part of each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial, wraps
from itertools import accumulate
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from phalanx.distributed.bootstrap.init import init
from phalanx.distributed.operations.exchanges import all_gather
from phalanx.distributed.operations.reductions import sum_scatter
from phalanx.errors import NotSupported

from ..gradients import agree, group_of_mlx
from ..states import restore
from .linear import place_of

_Arrays = list[mx.array]

# Gradients of 16 bits are summed in 32, as in `average_gradients`.
_WIDE = {mx.float16: mx.float32, mx.bfloat16: mx.float32}


def fully_shard(
    module: Module,
    *,
    group: Any = None,
    compute_dtype: Any = None,
    reshard_after_forward: bool = True,
) -> Module:
    """Divide the parameters of a module among the ranks, in place.

    Each rank keeps and updates a part of every parameter. While the module computes, its parameters
    are whole.

    Parameters
    ----------
    module : mlx.nn.Module
        The module, the same on all ranks. Modules in it that are divided already stay as they are:
        divide the layers first, and then the model.
    group : Group or mlx.core.distributed.Group, optional
        Ranks that share the module; ``None``: all.
    compute_dtype : mlx.core.Dtype, optional
        Dtype to which trainable floating-point parameters are converted before they are gathered.
    reshard_after_forward : bool, optional
        Whether the whole parameters are dropped after the forward pass, and gathered again in the
        backward pass. If not, they stay until the gradients of the module are computed.

    Returns
    -------
    Module
        ``module`` itself, now of a subclass of its class. Unchanged: in a group of one, without
        parameters of its own, or if it is divided already.

    Raises
    ------
    CollectiveMismatch
        The parameters or the options of the ranks differ (names the first that do).
    ValueError
        A part of the module is divided among the same ranks already, or ``compute_dtype`` is no
        floating-point dtype. A call of the module raises it for a parameter of another shape.
    TypeError
        ``module`` is no module of MLX.
    NotSupported
        Raised by a call, with a `Group`: inside `mx.compile`, and for second derivatives.

    See Also
    --------
    shard_linear : divides what a layer computes, too.
    whole_parameters : returns whole parameters, to save them.

    Notes
    -----
    Each rank keeps ``ceil(rows / size)`` rows of a parameter. Missing rows are zeros, with zeros as
    gradients. A scalar is one row. The names of the parameters stay. Gradients have the shapes of
    the parts and are means over the ranks (16 bits are summed in 32 bits): an optimizer takes them
    as they are. Frozen parameters, such as quantized weights, are gathered as they are and have no
    gradient. If the module changes one, as BatchNorm does, each rank keeps its part of its change.

    Only ``module(...)`` and ``module.as_linear(...)`` see whole parameters. Quantize a module and
    add adapters before it is divided.

    Cost of a forward pass: an `all_gather` for each dtype. Of a backward pass: a `sum_scatter` for
    each dtype of the gradients, or an `all_sum` with MLX's own groups, most of which lack it.

    MLX keeps the operands of each operation until its gradient is computed. So with
    ``reshard_after_forward`` the backward pass also gathers again and repeats the forward pass of
    the module, with the same random numbers: about a third more to compute. It saves the whole
    parameters, their gradients and the intermediate values of all modules but one with a `Group`,
    which computes each call at once. MLX's groups compute ahead: of 64 and of 192 layers about 35
    were whole at a time. Arrays that are neither arguments nor parameters of the module have no
    gradient then. The whole parameters stay nevertheless in a module with divided modules in it,
    which would be repeated twice, and inside `mx.compile` with ``mx.random.state``.

    Examples
    --------
    >>> import mlx.nn, phalanx as px
    >>> layer = px.nn.fully_shard(mlx.nn.Linear(3, 5))
    >>> layer.weight.shape  # on two ranks: (3, 3)
    (5, 3)
    """
    given: object = module
    if not isinstance(given, Module):
        msg = f"fully_shard takes a module of MLX, not {type(given).__name__}"
        raise TypeError(msg)
    if compute_dtype is not None and not _is_of(mx.floating, compute_dtype):
        msg = f"fully_shard: compute_dtype must be a floating-point dtype, not {compute_dtype!r}"
        raise ValueError(msg)
    if place_of(group).size > 1 and not _is_wrapped(module) and _leaves(module):
        _check(module, group)
        _Sharding(module, group, compute_dtype, reshard_after_forward)
    return module


def whole_parameters(module: Module) -> dict[str, Any]:
    """Return the whole parameters of a divided module.

    Every rank that shares the module calls this.

    Parameters
    ----------
    module : mlx.nn.Module
        A module that `fully_shard` has divided, or with such modules in it. It stays divided.

    Returns
    -------
    dict
        A tree as of ``module.parameters()``, the same on all ranks. Parameters that `fully_shard`
        has not divided are in it as they are.

    Raises
    ------
    RankFailure
        A rank was lost.
    TypeError
        ``module`` is no module of MLX.
    ValueError
        A parameter has another shape than its part had.

    See Also
    --------
    fully_shard : divides the module.

    Notes
    -----
    To save a model, write the tree on one rank: `mlx.utils.tree_flatten` makes the list that
    `mlx.core.save_safetensors` takes as a dict. A whole module with the same names takes the tree
    with ``update``.

    Cost: an `all_gather` for each dtype of each divided module, and memory for the whole model on
    each rank.

    Examples
    --------
    >>> import mlx.nn, phalanx as px
    >>> layer = px.nn.fully_shard(mlx.nn.Linear(3, 5))
    >>> px.nn.whole_parameters(layer)["weight"].shape
    (5, 3)
    """
    given: object = module
    if not isinstance(given, Module):
        msg = f"whole_parameters takes a module of MLX, not {type(given).__name__}"
        raise TypeError(msg)
    found = dict(tree_flatten(module.parameters()))
    for path, inner in module.named_modules():
        if _is_wrapped(inner):
            whole = inner._fully_sharded.whole(inner)
            found |= {f"{path}.{name}" if path else name: array for name, array in whole.items()}
    mx.eval(list(found.values()))
    tree: dict[str, Any] = tree_unflatten(list(found.items()))
    return tree


def _is_of(category: Any, dtype: Any) -> bool:
    return isinstance(dtype, mx.Dtype) and mx.issubdtype(dtype, category)


def _is_input(x: Any) -> bool:
    return isinstance(x, mx.array) and _is_of(mx.inexact, x.dtype)


def _is_wrapped(module: Any) -> bool:
    return isinstance(module, Module) and "_fully_sharded" in vars(module)


def _leaves(
    module: Module, valid: Callable[..., bool] = Module.valid_parameter_filter
) -> dict[str, mx.array]:
    """Return the parameters outside of divided modules, by path."""
    tree = module.filter_and_map(lambda m, k, v: not _is_wrapped(v) and valid(m, k, v))
    return dict(tree_flatten(tree))


def _own_modules(module: Module) -> Iterator[Module]:
    """Yield a module and those in it, without divided ones."""
    yield module
    for child in _flat(module.children()):
        if not _is_wrapped(child):
            yield from _own_modules(child)


def _check(module: Module, group: Any) -> None:
    """Raise an error if these ranks share a part already."""
    known = init() if group is None else group
    for part in _own_modules(module):
        name = f"fully_shard: {type(module).__name__}: {type(part).__name__}"
        if "_fully_sharded_in" in vars(part):
            msg = f"{name} is divided already, with a module around it; divide inner modules first"
            raise ValueError(msg)
        if hasattr(part, "is_output") and part.group is known:
            msg = f"{name} is divided by shard_linear among the same {place_of(group).size} ranks"
            raise ValueError(msg)


@cache
def _class_of(base: Any) -> type:
    """Return a subclass that gathers the parameters for its methods."""

    def gathering(name: str) -> Any:
        method = getattr(base, name)

        @wraps(method)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            return self._fully_sharded.call(self, partial(method, self), (args, kwargs))

        return run

    methods = {name: gathering(name) for name in ("__call__", "as_linear") if hasattr(base, name)}
    return type(f"FullySharded{base.__name__}", (base,), methods)


class _Sharding:
    """Shapes and options of a divided module; gathers and reduces its parameters."""

    def __init__(self, module: Module, group: Any, compute_dtype: Any, reshards: bool) -> None:
        self._group, self._place = group, place_of(group)
        self._compute_dtype, self._reshards = compute_dtype, reshards
        self._is_whole = False
        leaves = _leaves(module)
        if not type(group).__module__.startswith("mlx."):  # those compare nothing
            trainable = _leaves(module, Module.trainable_parameter_filter)
            lines = [f"{p}: {a.dtype}{a.shape}, {p in trainable=}" for p, a in leaves.items()]
            options = f"{compute_dtype=}, reshard_after_forward={reshards}"
            agree("fully_shard", init() if group is None else group, lines, options, 1.0)
        parts = {path: self._own_part(array) for path, array in leaves.items()}
        mx.eval(parts)  # so that the whole arrays can be freed
        self._shapes = {path: array.shape for path, array in leaves.items()}
        self._part_shapes = {path: part.shape for path, part in parts.items()}
        for inner in _own_modules(module):
            inner._fully_sharded_in = True
        _put(module, parts)
        module._fully_sharded = self
        kind: Any = type(module)
        module.__class__ = _class_of(kind)

    def _rows(self, array: mx.array) -> mx.array:
        """Return the parts of all ranks along a new first axis."""
        array = array if array.ndim else array[None]
        n_rows, *rest = array.shape
        n_own = -(-n_rows // self._place.size)
        missing = mx.zeros((n_own * self._place.size - n_rows, *rest), array.dtype)
        return mx.concatenate([array, missing]).reshape(self._place.size, n_own, *rest)

    def _own_part(self, array: mx.array) -> mx.array:
        return mx.contiguous(self._rows(array)[self._place.rank])

    def _gather(self, parts: _Arrays, trainable: list[bool]) -> _Arrays:
        """Return the whole arrays; their gradients go back to the parts."""
        lazy = group_of_mlx(self._group)
        shapes = list(self._shapes.values())
        reduced = [i for i, part in enumerate(parts) if trainable[i] and _is_input(part)]

        def gather(parts: _Arrays) -> _Arrays:
            whole = list(parts)
            for i in reduced if self._compute_dtype else ():
                if _is_of(mx.floating, parts[i].dtype):
                    whole[i] = parts[i].astype(self._compute_dtype)
            for places in _by_dtype(whole, range(len(whole))):
                row = mx.concatenate([whole[i].flatten()[None] for i in places], axis=1)
                if lazy is None:
                    rows = all_gather(row, group=self._group)
                else:
                    rows = mx.distributed.all_gather(row, group=lazy)
                for i, part in zip(places, _split(rows, [parts[i] for i in places]), strict=True):
                    n_rows, *rest = parts[i].shape
                    array = part.reshape(n_rows * self._place.size, *rest)
                    whole[i] = array[: shapes[i][0] if shapes[i] else 1].reshape(shapes[i])
            return whole

        def reduce(parts: _Arrays, cotangents: _Arrays, _: _Arrays) -> _Arrays:
            gradients = [mx.zeros_like(part) for part in parts]
            for places in _by_dtype(cotangents, reduced):
                rows = mx.concatenate(
                    [self._rows(cotangents[i]).flatten(1) for i in places], axis=1
                )
                rows = rows.astype(_WIDE.get(rows.dtype, rows.dtype))
                if lazy is None:
                    row = sum_scatter(rows, group=self._group)
                else:
                    row = mx.distributed.all_sum(rows, group=lazy)[self._place.rank][None]
                means = _split(row / self._place.size, [parts[i] for i in places])
                for i, mean in zip(places, means, strict=True):
                    gradients[i] = mean.reshape(parts[i].shape).astype(parts[i].dtype)
            return gradients

        function: Any = mx.custom_function(gather)
        function.vjp(reduce)
        # MLX would ask for gradients of quantized weights, which have none.
        return [x if i in reduced else mx.stop_gradient(x) for i, x in enumerate(function(parts))]

    def _ordered_parts(self, module: Module) -> _Arrays:
        """Return the parts of the module's parameters; all must have their shapes."""
        parts = _leaves(module)
        shapes = {path: part.shape for path, part in parts.items()}
        for path in [*self._shapes, *shapes]:
            found, known = shapes.get(path), self._part_shapes.get(path)
            if found != known:
                msg = (
                    f"{type(module).__name__}: {path} has shape {found}, and not {known}, the part "
                    f"of {self._shapes.get(path)} that each of {self._place.size} ranks has"
                )
                raise ValueError(msg)
        return [parts[path] for path in self._shapes]

    def whole(self, module: Module) -> dict[str, mx.array]:
        """Return the whole parameters by path."""
        parts = self._ordered_parts(module)
        # Nothing is trainable here: the parts keep their dtype.
        arrays = self._gather(parts, [False] * len(parts))
        return dict(zip(self._shapes, arrays, strict=True))

    def call(self, module: Module, method: Any, arguments: Any) -> Any:
        """Call a method of the module with whole parameters."""
        if self._is_whole:  # the module calls itself
            return method(*arguments[0], **arguments[1])
        ordered = self._ordered_parts(module)
        names = _leaves(module, Module.trainable_parameter_filter)
        trainable = [path in names for path in self._shapes]
        holds_wrapped = any(_is_wrapped(m) for m in module.modules() if m is not module)
        if self._reshards and not holds_wrapped and _knows_random_state():
            return self._call_twice(module, method, arguments, ordered, trainable)
        return self._call(module, method, arguments, self._gather(ordered, trainable))

    def _call(self, module: Module, method: Any, arguments: Any, whole: _Arrays) -> Any:
        """Call a method with these parameters, and put the parts back.

        Parameters that the method has replaced are kept.
        """
        parts, ours = _leaves(module), {id(array) for array in whole}
        _put(module, dict(zip(self._shapes, whole, strict=True)))
        self._is_whole = True
        try:
            result = method(*arguments[0], **arguments[1])
            changed = {p: a for p, a in _leaves(module).items() if p in parts and id(a) not in ours}
            parts |= {path: self._own_part(array) for path, array in changed.items()}
            return result
        finally:
            self._is_whole = False
            _put(module, parts)

    def _call_twice(
        self, module: Module, method: Any, arguments: Any, parts: _Arrays, trainable: list[bool]
    ) -> Any:
        """Call a method now, and again in the backward pass."""
        is_lazy = group_of_mlx(self._group) is not None
        places = [i for i, is_trainable in enumerate(trainable) if is_trainable]
        key = _random_state()
        results: list[Any] = []  # empty between calls: a result would keep what it is computed from

        def compute(*inputs: mx.array) -> _Arrays:
            known = list(parts)
            for i, part in zip(places, inputs, strict=False):
                known[i] = part
            if is_lazy and inputs:  # gather when the input is there, not all modules at once
                known = mx.depends(known, list(inputs))
            given = iter(inputs[len(places) :])
            its = _map(lambda x: next(given) if _is_input(x) else x, arguments)
            results[:] = [self._call(module, method, its, self._gather(known, trainable))]
            return [x for x in _flat(results) if isinstance(x, mx.array)]

        def forward(inputs: _Arrays) -> _Arrays:
            found = compute(*(inputs if is_lazy else _detached(inputs)))
            return found if is_lazy else _detached(found)

        def backward(inputs: _Arrays, cotangents: _Arrays) -> _Arrays:
            before, now = _leaves(module), _random_state()
            restore(mx.random.state, key)
            try:
                if is_lazy:
                    return mx.vjp(compute, mx.depends(inputs, cotangents), cotangents)[1]
                return _detached(mx.vjp(compute, _detached(inputs), _detached(cotangents))[1])
            finally:
                results.clear()
                restore(mx.random.state, now)
                _put(module, before)  # what the method replaces counts once

        step: Any = mx.custom_function(forward)
        back: Any = mx.custom_function(backward)
        step.vjp(lambda inputs, cotangents, _: back(inputs, cotangents))
        if not is_lazy:  # without the graph derivatives would be 0
            step.jvp(_refuse)
            back.vjp(_refuse)
        found = iter(
            step([parts[i] for i in places] + [x for x in _flat(arguments) if _is_input(x)])
        )
        return _map(lambda x: next(found) if isinstance(x, mx.array) else x, results.pop())


def _put(module: Module, arrays: dict[str, mx.array]) -> None:
    module.update(tree_unflatten(list(arrays.items())))


def _map(function: Callable[[Any], Any], tree: Any) -> Any:
    return tree_map(function, tree, is_leaf=Module.is_module)


def _flat(tree: Any) -> list[Any]:
    found: list[Any] = []
    _map(found.append, tree)
    return found


def _random_state() -> list[mx.array]:
    state: Any = mx.random.state
    return list(state)


def _knows_random_state() -> bool:
    """Return whether random numbers can be drawn again.

    In `mx.compile` the key may be a tracer.
    """
    try:
        mx.eval(_random_state())
    except ValueError:
        return False
    return True


def _by_dtype(arrays: Sequence[mx.array], places: Iterable[int]) -> list[list[int]]:
    groups: dict[Any, list[int]] = {}
    for i in places:
        groups.setdefault(arrays[i].dtype, []).append(i)
    return list(groups.values())


def _split(rows: mx.array, parts: _Arrays) -> _Arrays:
    ends = list(accumulate(part.size for part in parts))
    return list(mx.split(rows, ends[:-1], axis=1))


def _detached(arrays: _Arrays) -> _Arrays:
    """Return copies without the graph, which inside `mx.grad` would keep all operands."""
    # numpy has no bfloat16.
    bits = [x.view(mx.uint16) if x.dtype == mx.bfloat16 else x for x in arrays]
    try:
        mx.eval(bits)
    except ValueError:
        msg = "a fully sharded module with a phalanx.Group cannot be called inside mx.compile"
        raise NotSupported(msg) from None
    return [
        mx.array(np.asarray(b), b.dtype).view(x.dtype) for b, x in zip(bits, arrays, strict=True)
    ]


def _refuse(*_: Any) -> None:
    msg = "fully_shard: with a phalanx.Group only reshard_after_forward=False has this derivative"
    raise NotSupported(msg)
