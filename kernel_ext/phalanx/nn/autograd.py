"""Sum gradients of torch on their way back.

Imported only where torch is loaded.
"""

from __future__ import annotations

from typing import Any

import torch

from phalanx.distributed.bootstrap.init import init
from phalanx.distributed.group.group import Group
from phalanx.distributed.operations.reductions import all_sum


class _SumBackward(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group | None) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return all_sum(gradients[0].contiguous(), group=ctx.group), None


def sum_backward(x: torch.Tensor, group: Group | None) -> torch.Tensor:
    """Return ``x``; its gradient is summed over the ranks of ``group``."""
    if (init() if group is None else group).size() == 1:
        return x
    result: torch.Tensor = _SumBackward.apply(x, group)
    return result
