"""Train on all ranks.

Average gradients, go on after the loss of a rank, save checkpoints, divide datasets and layers.
Users import it as ``phalanx.nn``. It imports neither torch nor MLX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from phalanx.errors import NotSupported

from .checkpoints import Saving, export, load, save
from .data import Shard, all_batches, seed, shard
from .gradients import average_gradients, clip_grad_norm_sharded, sum_gradients
from .training import TrainingStep, TrainingSteps, steps

if TYPE_CHECKING:
    from .sharded.fully_sharded import fully_shard, whole_parameters
    from .sharded.layers import shard_linear
    from .sharded.linear import (
        AllToShardedLinear,
        QuantizedAllToShardedLinear,
        QuantizedShardedToAllLinear,
        ShardedToAllLinear,
        shard_inplace,
    )

__all__ = [
    "AllToShardedLinear",
    "QuantizedAllToShardedLinear",
    "QuantizedShardedToAllLinear",
    "Saving",
    "Shard",
    "ShardedToAllLinear",
    "TrainingStep",
    "TrainingSteps",
    "all_batches",
    "average_gradients",
    "clip_grad_norm_sharded",
    "export",
    "fully_shard",
    "load",
    "save",
    "seed",
    "shard",
    "shard_inplace",
    "shard_linear",
    "steps",
    "sum_gradients",
    "whole_parameters",
]

# For modules of MLX: the file in sharded of each name, imported when one is first used.
_OF_MLX = {
    "AllToShardedLinear": "linear",
    "QuantizedAllToShardedLinear": "linear",
    "QuantizedShardedToAllLinear": "linear",
    "ShardedToAllLinear": "linear",
    "fully_shard": "fully_sharded",
    "shard_inplace": "linear",
    "shard_linear": "layers",
    "whole_parameters": "fully_sharded",
}


def __getattr__(name: str) -> Any:
    """Import what is for modules of MLX at its first use."""
    if name not in _OF_MLX:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    try:
        file = import_module(f".sharded.{_OF_MLX[name]}", __name__)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "mlx":
            raise
        msg = f"px.nn.{name} is for models of MLX, which is not installed: pip install mlx[cpu]"
        raise NotSupported(msg) from None
    return getattr(file, name)
