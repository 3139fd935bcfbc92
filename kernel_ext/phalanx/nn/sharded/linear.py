"""Divide linear layers of MLX among the ranks, evenly or not.

Imported only where MLX is loaded. The layers are those of `mlx.nn.layers.distributed`, with sizes
that the ranks need not divide.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import QuantizedLinear
from mlx.utils import tree_map_with_path

from phalanx.distributed.bootstrap.init import init
from phalanx.distributed.group.group import Group
from phalanx.distributed.operations.reductions import all_sum

from ..gradients import group_of_mlx, sum_gradients

if TYPE_CHECKING:
    from typing_extensions import Self

_SHARDINGS = ("all-to-sharded", "sharded-to-all")
Segments = int | Sequence[int] | Sequence[float]


def partition(size: int, n_ranks: int, block: int = 1) -> list[tuple[int, int]]:
    """Return the begin and the end of each rank's part.

    Parts consist of whole blocks of rows or columns. If the ranks do not divide the blocks, the
    first ranks have one block more.

    Raises
    ------
    ValueError
        The blocks do not divide the size, or there are fewer blocks than ranks.

    Examples
    --------
    >>> partition(8, 3), partition(192, 2, 64)
    ([(0, 3), (3, 6), (6, 8)], [(0, 128), (128, 192)])
    """
    n_blocks, rest = divmod(size, block)
    if rest:
        msg = f"a size of {size} does not consist of blocks of {block}"
        raise ValueError(msg)
    if n_blocks < n_ranks:
        blocks = f" in blocks of {block}" if block > 1 else ""
        msg = f"a size of {size}{blocks} is too small for {n_ranks} ranks"
        raise ValueError(msg)
    fewest, n_larger = divmod(n_blocks, n_ranks)
    ends = [block * (fewest * (rank + 1) + min(rank + 1, n_larger)) for rank in range(n_ranks)]
    return list(zip([0, *ends], ends, strict=False))


class GroupPosition(NamedTuple):
    """The ranks that share a layer, and this one among them."""

    rank: int
    size: int


def place_of(group: Any) -> GroupPosition:
    """Return this rank's place in a group; ``None``: all ranks."""
    known = init() if group is None else group
    return GroupPosition(known.rank(), known.size())


def sum_over_ranks(x: mx.array, group: Any) -> mx.array:
    """Sum over the ranks; the gradient passes through unchanged."""
    if place_of(group).size == 1:
        return x
    lazy = group_of_mlx(group)
    if lazy is not None:
        return mx.distributed.all_sum(x, group=lazy)
    return all_sum(x, group=cast("Group | None", group))


def _lengths(size: int, segments: Segments) -> list[int]:
    if isinstance(segments, int):
        if size % segments:
            msg = f"a size of {size} does not consist of {segments} equal segments"
            raise ValueError(msg)
        return [size // segments] * segments
    cuts = [int(cut * size) if isinstance(cut, float) else cut for cut in segments]
    ends = [0, *cuts, size]
    lengths = [end - begin for begin, end in pairwise(ends)]
    if min(lengths) < 0:
        msg = f"the segments {list(segments)} are not in order within a size of {size}"
        raise ValueError(msg)
    return lengths


def own_part(
    array: mx.array,
    axis: int,
    segments: Segments,
    place: GroupPosition,
    block: int,
    scale: float = 1,
) -> mx.array:
    """Return this rank's part of each segment, along one axis.

    ``scale`` is the number of elements of the array for one of the layer's rows or columns: less
    than 1 where several are packed into one element.
    """
    size = round(array.shape[axis] / scale)
    parts, begin = [], 0
    for length in _lengths(size, segments):
        low, high = partition(length, place.size, block)[place.rank]
        first, end = (round((begin + at) * scale) for at in (low, high))
        parts.append(mx.take(array, mx.arange(first, end), axis=axis))
        begin += length
    return mx.contiguous(mx.concatenate(parts, axis=axis))


@contextmanager
def naming(what: str, module: Module) -> Iterator[None]:
    """Name the layer in an error about its sizes."""
    try:
        yield
    except ValueError as error:
        msg = f"{what}: {type(module).__name__}: {error}"
        raise ValueError(msg) from None


def shard_inplace(
    module: Module,
    sharding: str | Callable[[str, mx.array], Any],
    *,
    segments: Segments = 1,
    group: Any = None,
    block: int = 1,
) -> None:
    """Divide the parameters of a module among the ranks, in place.

    No communication is added: the module must do that.

    Parameters
    ----------
    module : mlx.nn.Module
        The module; not a quantized one.
    sharding : str or callable
        ``"all-to-sharded"`` divides the outputs (with the bias), ``"sharded-to-all"`` the inputs.
        Or a function of the path and the array of a parameter that returns the axis, the axis and
        the segments, or None.
    segments : int or sequence, optional
        Parts of which the layer consists, each of which is divided: their number, or the places of
        the cuts as indices or fractions. 3 for queries, keys and values in one layer.
    group : Group or mlx.core.distributed.Group, optional
        Ranks that share the module; ``None``: all.
    block : int, optional
        Rows or columns that stay together, such as the size of an attention head.

    Raises
    ------
    ValueError
        The sharding is unknown, or the sizes do not fit the ranks.

    See Also
    --------
    shard_linear : returns a layer that communicates.

    Notes
    -----
    If the ranks do not divide the blocks, the first ranks have one block more. Cost: no
    communication.

    Examples
    --------
    >>> import mlx.nn, phalanx as px
    >>> layer = mlx.nn.Linear(4, 6)
    >>> px.nn.shard_inplace(layer, "all-to-sharded")
    >>> layer.weight.shape
    (6, 4)
    """
    place = place_of(group)
    choose = _chooser(sharding, segments) if isinstance(sharding, str) else sharding

    def part(path: str, array: Any) -> Any:
        chosen = choose(path, array) if isinstance(array, mx.array) else None
        if chosen is None:
            return array
        axis, its = (chosen, 1) if isinstance(chosen, int) else _axis_and_segments(chosen)
        with naming(f"shard_inplace: {path}", module):
            return own_part(array, axis, its, place, block)

    module.update(tree_map_with_path(part, module.parameters()))


def _axis_and_segments(chosen: Any) -> tuple[int, Segments]:
    if not isinstance(chosen, tuple):
        msg = "The sharding function should return int or tuple[int, list]"
        raise ValueError(msg)  # noqa: TRY004 - MLX's
    return chosen[0], chosen[1]


def check_sharding(sharding: str) -> None:
    """Raise `ValueError` for an unknown way to divide a layer."""
    if sharding not in _SHARDINGS:
        msg = (
            f"Sharding type {sharding=} not supported, "
            "choose one of 'all-to-sharded' or 'sharded-to-all'"
        )
        raise ValueError(msg)


def _chooser(sharding: str, segments: Segments) -> Callable[[str, mx.array], Any]:
    check_sharding(sharding)

    def choose(path: str, array: mx.array) -> Any:
        is_bias = path.endswith("bias")
        if sharding == "all-to-sharded":
            return (-1 if is_bias else max(array.ndim - 2, 0)), segments
        return None if is_bias else (-1, segments)

    return choose


def keep_state(made: Module, layer: Module) -> None:
    """Freeze what is frozen in the whole layer, and take its mode."""
    made.freeze(keys=[key for key in layer._no_grad if key in made], recurse=False)
    made.train(layer.training)


class _Sharded(Module):  # type: ignore[misc]
    """A part of a linear layer; ``dims`` are those of the whole."""

    is_output: bool  # divides the output, and not the input
    whole_type: Any  # the class of the layers that it divides

    def __init__(self, dims: tuple[int, int], group: Any) -> None:
        super().__init__()
        self._dims = dims
        self._group = group

    @property
    def group(self) -> Any:
        """Return the ranks that share the layer."""
        return init() if self._group is None else self._group

    def _extra_repr(self) -> str:
        return f"input_dims={self._dims[0]}, output_dims={self._dims[1]}, bias={'bias' in self}"

    @classmethod
    def divide(
        cls, layer: Any, segments: Segments = 1, group: Any = None, block: int | None = None
    ) -> Self:
        """Return this rank's part of a whole layer."""
        if not isinstance(layer, cls.whole_type):
            msg = (
                f"{cls.__name__} divides a {cls.whole_type.__name__}, not a {type(layer).__name__}"
            )
            raise TypeError(msg)
        made = cls.__new__(cls)
        _Sharded.__init__(made, cls._dims_of(layer), group)
        place = place_of(group)
        with naming("shard_linear", layer):
            size = cls.block_of(layer, segments, place.size) if block is None else block

            def part(array: mx.array, scale: float = 1) -> mx.array:
                return own_part(array, 0 if cls.is_output else 1, segments, place, size, scale)

            made._take(layer, part, size)
            if "bias" in layer:
                made.bias = part(layer["bias"]) if cls.is_output else layer["bias"]
        keep_state(made, layer)
        if cls.whole_type is QuantizedLinear:
            made.freeze()
        return made

    @classmethod
    def block_of(cls, _layer: Any, _segments: Segments, _n_ranks: int) -> int:
        """Return how many outputs or inputs of a whole layer stay together."""
        return 1

    @classmethod
    @abstractmethod
    def _dims_of(cls, layer: Any) -> tuple[int, int]:
        """Return the input and the output size of a whole layer."""

    @abstractmethod
    def _take(self, layer: Any, part: Callable[..., mx.array], block: int) -> None:
        """Take this rank's part of the weights."""

    @abstractmethod
    def affine(self, x: mx.array) -> mx.array:
        """Apply this rank's weights."""

    @abstractmethod
    def matrix(self) -> mx.array:
        """Return this rank's weights as a plain matrix."""

    def _new_weight(self, block: int) -> mx.array:
        """Return random weights of this rank's shape."""
        n_inputs, n_outputs = self._dims
        place = place_of(self._group)
        with naming("px.nn", self):
            whole = n_outputs if self.is_output else n_inputs
            low, high = partition(whole, place.size, block)[place.rank]
        shape = (high - low, n_inputs) if self.is_output else (n_outputs, high - low)
        scale = math.sqrt(1.0 / n_inputs)
        return mx.random.uniform(-scale, scale, shape)

    def __call__(self, x: mx.array) -> mx.array:
        """Apply the layer."""
        if self.is_output:
            x = self.affine(sum_gradients(self._group)(x))
        else:
            x = sum_over_ranks(self.affine(x), self._group)
        return x + self["bias"] if "bias" in self else x


class _ShardedLinear(_Sharded):
    whole_type = Linear

    def __init__(
        self, input_dims: int, output_dims: int, bias: bool = True, group: Any = None
    ) -> None:
        super().__init__((input_dims, output_dims), group)
        self.weight = self._new_weight(1)
        if bias:
            scale = math.sqrt(1.0 / input_dims)
            self.bias = mx.random.uniform(-scale, scale, (self.weight.shape[0],))

    @classmethod
    def from_linear(
        cls, linear_layer: Module, *, segments: Segments = 1, group: Any = None
    ) -> Self:
        """Return this rank's part of a linear layer, as `shard_linear` does."""
        return cls.divide(linear_layer, segments, group)

    @classmethod
    def _dims_of(cls, layer: Linear) -> tuple[int, int]:
        n_outputs, n_inputs = layer.weight.shape
        return n_inputs, n_outputs

    def _take(self, layer: Linear, part: Callable[..., mx.array], _block: int) -> None:
        self.weight = part(layer.weight)

    def affine(self, x: mx.array) -> mx.array:
        return x @ self.matrix().T

    def matrix(self) -> mx.array:
        weight: mx.array = self["weight"]
        return weight


class AllToShardedLinear(_ShardedLinear):
    """A linear layer with a part of the outputs on each rank.

    Every rank has the whole input. Backward, the gradients of the input are summed.

    Parameters
    ----------
    input_dims, output_dims : int
        Sizes of the whole layer.
    bias : bool, optional
        Whether the layer has a bias.
    group : Group or mlx.core.distributed.Group, optional
        Ranks that share the layer; ``None``: all.

    Raises
    ------
    ValueError
        The divided size is smaller than the number of ranks.

    Examples
    --------
    >>> import mlx.core as mx, phalanx as px
    >>> px.nn.AllToShardedLinear(4, 6)(mx.ones((2, 4))).shape
    (2, 6)
    """

    is_output = True


class ShardedToAllLinear(_ShardedLinear):
    """A linear layer with a part of the inputs on each rank.

    All ranks get the whole output, which is summed. The bias is added once.

    Parameters
    ----------
    input_dims, output_dims : int
        Sizes of the whole layer.
    bias : bool, optional
        Whether the layer has a bias.
    group : Group or mlx.core.distributed.Group, optional
        Ranks that share the layer; ``None``: all.

    Raises
    ------
    ValueError
        The divided size is smaller than the number of ranks.

    Examples
    --------
    >>> import mlx.core as mx, phalanx as px
    >>> px.nn.ShardedToAllLinear(4, 6)(mx.ones((2, 4))).shape
    (2, 6)
    """

    is_output = False


class _QuantizedSharded(_Sharded):
    whole_type = QuantizedLinear

    def __init__(
        self,
        input_dims: int,
        output_dims: int,
        bias: bool = True,
        group_size: int = 64,
        bits: int = 4,
        mode: str = "affine",
        group: Any = None,
    ) -> None:
        super().__init__((input_dims, output_dims), group)
        self.group_size, self.bits, self.mode = group_size, bits, mode
        outputs = [output_dims] if self.is_output else []
        weight = self._new_weight(self._block(outputs, group_size, place_of(group).size))
        self.weight, self.scales, *biases = mx.quantize(weight, group_size, bits, mode=mode)
        self.biases = biases[0] if biases else None
        if bias:
            self.bias = mx.zeros((weight.shape[0],))
        self.freeze()

    @classmethod
    def from_quantized_linear(
        cls, quantized_linear_layer: Module, *, segments: Segments = 1, group: Any = None
    ) -> Self:
        """Return this rank's part of a quantized layer, as `shard_linear` does."""
        return cls.divide(quantized_linear_layer, segments, group)

    @classmethod
    def _dims_of(cls, layer: QuantizedLinear) -> tuple[int, int]:
        n_outputs, n_columns = layer.weight.shape
        return n_columns * 32 // layer.bits, n_outputs

    @classmethod
    def block_of(cls, layer: Any, segments: Segments, n_ranks: int) -> int:
        lengths = _lengths(cls._dims_of(layer)[1], segments) if cls.is_output else []
        return cls._block(lengths, layer.group_size, n_ranks)

    @staticmethod
    def _block(lengths: list[int], group_size: int, n_ranks: int) -> int:
        # The next layer divides its inputs by groups, so outputs are divided in the same way, if
        # there are enough.
        fits = all(n % group_size == 0 and n >= group_size * n_ranks for n in lengths)
        return group_size if fits else 1

    def _take(self, layer: QuantizedLinear, part: Callable[..., mx.array], block: int) -> None:
        self.group_size, self.bits = layer.group_size, layer.bits
        self.mode = getattr(layer, "mode", "affine")
        if not self.is_output and block % layer.group_size:
            msg = f"blocks of {block} do not consist of groups of {layer.group_size}"
            raise ValueError(msg)
        # Along the inputs several elements are packed into one, and a group has one scale.
        packed = 1.0 if self.is_output else layer.bits / 32
        grouped = 1.0 if self.is_output else 1 / layer.group_size
        self.weight = part(layer.weight, packed)
        self.scales = part(layer.scales, grouped)
        biases = layer.get("biases")
        self.biases = None if biases is None else part(biases, grouped)

    def unfreeze(self, *args: Any, **kwargs: Any) -> None:
        """Unfreeze other parameters: the quantized ones stay frozen."""
        super().unfreeze(*args, **kwargs)
        self.freeze(recurse=False)

    def affine(self, x: mx.array) -> mx.array:
        return mx.quantized_matmul(
            x,
            self["weight"],
            scales=self["scales"],
            biases=self.get("biases"),
            transpose=True,
            group_size=self.group_size,
            bits=self.bits,
            mode=self.mode,
        )

    def matrix(self) -> mx.array:
        how = (self.group_size, self.bits, self.mode)
        return mx.dequantize(self["weight"], self["scales"], self.get("biases"), *how)


class QuantizedAllToShardedLinear(_QuantizedSharded):
    """A quantized layer with a part of the outputs on each rank.

    Its parameters are frozen.

    Parameters
    ----------
    input_dims, output_dims, bias, group : optional
        As for `AllToShardedLinear`.
    group_size, bits, mode : optional
        As for `mlx.core.quantize`.

    Examples
    --------
    >>> import mlx.nn, phalanx as px
    >>> whole = mlx.nn.Linear(64, 64).to_quantized(32, 4)
    >>> px.nn.shard_linear(whole, "all-to-sharded")
    QuantizedAllToShardedLinear(input_dims=64, output_dims=64, bias=True)
    """

    is_output = True


class QuantizedShardedToAllLinear(_QuantizedSharded):
    """A quantized layer with a part of the inputs on each rank.

    Its parameters are frozen.

    Parameters
    ----------
    input_dims, output_dims, bias, group : optional
        As for `AllToShardedLinear`.
    group_size, bits, mode : optional
        As for `mlx.core.quantize`.

    Examples
    --------
    >>> import mlx.nn, phalanx as px
    >>> whole = mlx.nn.Linear(64, 64).to_quantized(32, 4)
    >>> px.nn.shard_linear(whole, "sharded-to-all")
    QuantizedShardedToAllLinear(input_dims=64, output_dims=64, bias=True)
    """

    is_output = False
