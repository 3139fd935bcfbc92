"""Divide layers of MLX: linear ones, with adapters, and embeddings.

Imported only where MLX is loaded.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import QuantizedEmbedding, QuantizedLinear

from phalanx.distributed.bootstrap.init import init

from ..gradients import sum_gradients
from .linear import (
    AllToShardedLinear,
    QuantizedAllToShardedLinear,
    QuantizedShardedToAllLinear,
    Segments,
    ShardedToAllLinear,
    check_sharding,
    keep_state,
    naming,
    own_part,
    partition,
    place_of,
    sum_over_ranks,
)


def shard_linear(
    module: Module,
    sharding: str,
    *,
    segments: Segments = 1,
    group: Any = None,
    block: int | None = None,
) -> Module:
    """Return a layer that is divided among the ranks.

    Parameters
    ----------
    module : mlx.nn.Module
        The whole layer, the same on all ranks: a Linear, a QuantizedLinear, one of them in mlx-lm's
        LoRALinear or DoRALinear, an Embedding or a QuantizedEmbedding.
    sharding : str
        ``"all-to-sharded"``: every rank has the whole input, and computes a part of the output.
        ``"sharded-to-all"``: every rank has a part of the input, and all get the whole output.
        An embedding takes numbers on every rank: the first divides its features, the second its
        rows, and each rank looks up its own.
    segments : int or sequence, optional
        As for `shard_inplace`.
    group : Group or mlx.core.distributed.Group, optional
        Ranks that share the layer; ``None``: all.
    block : int, optional
        Outputs or inputs that stay together, such as the size of an attention head. ``None``: 1,
        and for a quantized layer its group size (1 if the outputs have too few groups, and for the
        rows of an embedding). Give the two layers that follow one another the same, so that the
        parts fit.

    Returns
    -------
    Module
        `AllToShardedLinear`, `ShardedToAllLinear` or the quantized one; for a layer with an adapter
        and for an embedding a layer of the same parameter names. Frozen parameters stay frozen.

    Raises
    ------
    ValueError
        The sharding is unknown, or the sizes do not fit the ranks (names layer, size and ranks).
    TypeError
        The module is none of these layers.

    See Also
    --------
    fully_shard : divides what is kept, and not what is computed.
    shard_inplace : divides the parameters of any module.

    Notes
    -----
    As `mlx.nn.layers.distributed.shard_linear`, but the ranks need not divide the sizes: if they do
    not divide the blocks, the first ranks have one block more.

    An adapter is divided as its layer: ``lora_b`` and the magnitude by outputs, or ``lora_a`` by
    inputs. The other factor is whole on all ranks, and gets the same gradient on all. The dropout
    of each rank may draw its own numbers.

    The `as_linear` of an embedding goes the other way: it takes this rank's part of the features
    and returns the whole output, or takes the whole and returns the outputs of this rank's rows.

    Cost: none here; ``"sharded-to-all"`` sums its output forward, ``"all-to-sharded"`` the gradient
    of its input backward. An adapter sums the gradient of its whole factor, too, and DoRA with
    ``"sharded-to-all"`` one number for each output forward.

    Examples
    --------
    >>> import mlx.nn, phalanx as px
    >>> px.nn.shard_linear(mlx.nn.Linear(4, 6), "all-to-sharded")
    AllToShardedLinear(input_dims=4, output_dims=6, bias=True)
    """
    check_sharding(sharding)
    is_output = sharding == "all-to-sharded"
    if isinstance(module, Linear):
        kind = AllToShardedLinear if is_output else ShardedToAllLinear
        return kind.divide(module, segments, group, block)
    if isinstance(module, QuantizedLinear):
        known = QuantizedAllToShardedLinear if is_output else QuantizedShardedToAllLinear
        return known.divide(module, segments, group, block)
    if isinstance(module, Embedding | QuantizedEmbedding):
        return ShardedEmbedding(module, is_output, segments, group, block)
    # mlx-lm's LoRALinear and DoRALinear; one with quantized factors has their scales.
    if {"linear", "lora_a", "lora_b"} <= set(module) and "lora_a_scales" not in module:
        linear = shard_linear(module.linear, sharding, segments=segments, group=group, block=block)
        return ShardedLoRALinear(module, linear, segments, block)
    msg = (
        "shard_linear takes a Linear or a QuantizedLinear of MLX, one with an adapter (LoRA, DoRA), "
        f"or an embedding, not {type(module).__name__}; for other modules there is shard_inplace"
    )
    raise TypeError(msg)


class ShardedLoRALinear(Module):  # type: ignore[misc]
    """A divided linear layer with the adapter of LoRA or DoRA."""

    def __init__(self, layer: Any, linear: Any, segments: Segments, block: int | None) -> None:
        super().__init__()
        self.linear, self.dropout, self.scale = linear, layer.dropout, layer.scale
        self.is_output, self.group = linear.is_output, linear.group
        place = place_of(linear.group)
        size = linear.block_of(layer.linear, segments, place.size) if block is None else block
        axes = {"lora_b": 1, "m": 0} if linear.is_output else {"lora_a": 0}
        with naming("shard_linear", layer):
            for name in {"lora_a", "lora_b", "m"} & layer.keys():
                array = layer[name]
                if name in axes:
                    array = own_part(array, axes[name], segments, place, size)
                self[name] = array
        keep_state(self, layer)

    def __call__(self, x: mx.array) -> mx.array:
        """Apply the layer."""
        a, b, linear = self["lora_a"], self["lora_b"], self.linear
        summed = sum_gradients(linear._group)
        # Each rank has a part of the gradient of the factor that is whole on all ranks.
        if linear.is_output:
            x, a = summed(x), summed(a)
        else:
            b = summed(b)
        low_rank = (self.dropout(x) @ a) @ b
        y: mx.array = linear.affine(x) + (self.scale * low_rank).astype(x.dtype)
        if not linear.is_output:
            y = sum_over_ranks(y, linear._group)
        if "m" in self:
            y = (self["m"] / self._norms()).astype(x.dtype) * y
        return y + linear["bias"] if "bias" in linear else y

    def _norms(self) -> mx.array:
        """Return the norms of the adapted rows, without a gradient."""
        adapted = self.linear.matrix() + (self.scale * self["lora_b"].T) @ self["lora_a"].T
        squares = mx.square(mx.stop_gradient(adapted).astype(mx.float32)).sum(axis=1)
        if not self.linear.is_output:
            squares = sum_over_ranks(squares, self.linear._group)
        return mx.sqrt(squares)


class ShardedEmbedding(Module):  # type: ignore[misc]
    """An embedding with a part of the features or rows."""

    def __init__(
        self, layer: Any, is_output: bool, segments: Segments, group: Any, block: int | None
    ) -> None:
        super().__init__()
        self.is_output, self._group, self._n_rows = is_output, group, layer.weight.shape[0]
        place, scales = place_of(group), {"weight": 1.0, "scales": 1.0, "biases": 1.0}
        group_size = 1
        self._how: Any = None
        if "scales" in layer:
            self._how = (layer.group_size, layer.bits, layer.mode)
            if is_output:
                group_size = layer.group_size
                scales = {"weight": layer.bits / 32, "scales": 1 / group_size}
                scales["biases"] = scales["scales"]
        size = group_size if block is None else block
        with naming("shard_linear", layer):
            if size % group_size:
                msg = f"blocks of {size} do not consist of groups of {group_size}"
                raise ValueError(msg)
            if not is_output:
                if segments != 1:
                    msg = "the rows of an embedding have no segments"
                    raise ValueError(msg)
                self._first = partition(self._n_rows, place.size, size)[place.rank][0]
            for name in scales.keys() & layer.keys():
                array = layer[name]
                self[name] = own_part(array, int(is_output), segments, place, size, scales[name])
        keep_state(self, layer)

    @property
    def group(self) -> Any:
        """Return the ranks that share the layer."""
        return init() if self._group is None else self._group

    def _extra_repr(self) -> str:
        what = "features" if self.is_output else "rows"
        return f"{self._n_rows} rows, divided by {what}"

    def _look_up(self, numbers: mx.array) -> mx.array:
        weight: mx.array = self["weight"][numbers]
        if self._how is None:
            return weight
        biases = self["biases"][numbers] if "biases" in self else None
        return mx.dequantize(weight, self["scales"][numbers], biases, *self._how)

    def __call__(self, x: mx.array) -> mx.array:
        """Look up rows: this rank's features, or all."""
        if self.is_output:
            return self._look_up(x)
        own = x.astype(mx.int64)
        own = mx.where(own < 0, own + self._n_rows, own) - self._first  # -1 is the last row
        is_own = (own >= 0) & (own < self["weight"].shape[0])
        found = self._look_up(mx.where(is_own, own, 0))
        return sum_over_ranks(mx.where(is_own[..., None], found, 0), self._group)

    def as_linear(self, x: mx.array) -> mx.array:
        """Multiply by the transpose of this rank's part."""
        if not self.is_output:
            x = sum_gradients(self._group)(x)
        if self._how is None:
            y: mx.array = x @ self["weight"].T
        else:
            arrays = self["weight"], self["scales"], self.get("biases")
            y = mx.quantized_matmul(x, *arrays, True, *self._how)
        return sum_over_ranks(y, self._group) if self.is_output else y
