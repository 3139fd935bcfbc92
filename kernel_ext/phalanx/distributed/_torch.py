"""Tensors of torch, seen as numpy sees memory, and results that are tensors.

Torch is not imported here: whoever has a tensor has loaded it.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from phalanx.errors import NotSupported

from ._views import Like, Target, View, check_name, refuse_device

__all__ = ["Torch"]


class Torch:
    """The adapter of torch."""

    def out(self, op: str, x: Any) -> View:
        """See a tensor that is to be written to."""
        if x.is_conj() or x.is_neg():
            msg = (
                f"{op}: out is a view that conjugates or negates what is put into it; "
                "pass out.resolve_conj().resolve_neg()"
            )
            raise ValueError(msg)
        return self.view(op, x)

    def note_change(self, out: Any) -> None:
        """Have autograd refuse what was saved of a tensor before it is written to."""
        if not out.is_inference():  # those have no version: nothing is saved of them
            sys.modules["torch"].autograd.graph.increment_version(out)

    def view(self, op: str, x: Any) -> View:
        """See what a tensor holds; refuse it where something of it would be lost.

        Each word to torch costs a small tensor 100 to 1000 ns: what is rare is asked last, or where
        numpy() has refused.
        """
        torch = sys.modules["torch"]
        if type(x) is not torch.Tensor and type(x) is not torch.nn.Parameter:
            msg = f"{op}: {type(x).__name__} would lose what it has beyond a plain tensor"
            raise NotSupported(msg)
        if not x.is_cpu:
            hint = "it has no values" if x.is_meta else "pass x.cpu()"
            refuse_device(op, str(x.device), hint)
        if x.layout is not torch.strided:
            msg = f"{op}: a tensor of layout {x.layout} is not supported; pass x.to_dense()"
            raise NotSupported(msg)
        if x.requires_grad:
            if torch.is_grad_enabled():
                msg = (
                    f"{op}: the result would be cut off from the graph of x, which requires grad; "
                    "pass x.detach(), or call it under torch.no_grad()"
                )
                raise NotSupported(msg)
            x = x.detach()
        forward_ad = torch.autograd.forward_ad
        # Negative where no forward derivative is taken. It is torch's own name: where a release has
        # it no more, unpack_dual is asked each time.
        if getattr(forward_ad, "_current_level", 0) >= 0:
            if forward_ad.unpack_dual(x).tangent is not None:
                msg = (
                    f"{op}: the forward derivative that x carries would be lost; "
                    "pass torch.autograd.forward_ad.unpack_dual(x).primal"
                )
                raise NotSupported(msg)
            x = x.detach()
        dtype = check_name(op, str(x.dtype).removeprefix("torch."))
        try:
            return View((x.resolve_neg().view(torch.uint16) if dtype else x).numpy(), dtype)
        except RuntimeError as error:
            if x.is_conj() or x.is_neg():
                return View(x.resolve_conj().resolve_neg().numpy())
            if "storage" not in str(error):
                raise
            msg = (
                f"{op}: inside torch.func.jvp, grad and vmap a tensor has no values yet that could "
                "be sent; call it outside"
            )
            raise NotSupported(msg) from None

    def like(self, x: Any) -> Like:
        """Make tensors of the dtype of ``x``."""
        return partial(_room, x.dtype)

    def like_dtype(self, dtype: Any) -> Like | None:
        """Make tensors of this dtype, if it is torch's."""
        if not isinstance(dtype, sys.modules["torch"].dtype):
            return None
        check_name("recv", str(dtype).removeprefix("torch."))
        return partial(_room, dtype)


def _room(dtype: Any, shape: tuple[int, ...]) -> Target:
    torch = sys.modules["torch"]
    # Where the engine can write to it, whatever device is the default one.
    result = torch.empty(shape, dtype=dtype, device="cpu")
    bits = result.view(torch.uint16) if dtype is torch.bfloat16 else result
    return Target(bits.numpy(), result)
