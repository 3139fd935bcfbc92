"""View arrays of other frameworks as numpy arrays and return matching results.

torch and MLX have an adapter each; `Adapter` itself is for all others, through DLPack. No framework
is imported here, because a caller with an array of a framework has loaded it.

`with_gradient` defines the derivatives of collectives for MLX's automatic differentiation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from phalanx import _native
from phalanx.errors import NotSupported

DTYPE_NAMES = _native.supported_dtypes()
_NAMES = frozenset(DTYPE_NAMES)
DTYPES = frozenset(np.dtype(name) for name in DTYPE_NAMES if name != "bfloat16")
# numpy has no bfloat16: the engine gets the bits as uint16 and the name "bfloat16".
BITS = np.dtype(np.uint16)

# Backends for arrays of a device; this release has none of them.
_BACKENDS = {"cuda": "nccl", "metal": "jaccl", "mps": "jaccl"}

# DLPack's device types with memory that the CPU can read: CPU, pinned memory of CUDA and ROCm.
_ON_CPU = (1, 3, 11)

_DEVICES = {2: "cuda", 8: "metal", 10: "rocm", 13: "cuda"}


class ArrayView(NamedTuple):
    """Array memory, with the name of its dtype if numpy has none."""

    array: NDArray[Any]
    dtype: str = ""


class ResultMemory(NamedTuple):
    """Memory for a result and the conversion to the caller's type.

    ``array`` is the memory to write, ``held`` the object that owns it.
    """

    array: NDArray[Any]
    held: Any
    finish: Callable[[Any], Any] | None = None  # None: held is the result

    def give(self) -> Any:
        """Return the result; call this after it was written."""
        return self.held if self.finish is None else self.finish(self.held)


# Allocates results of a certain kind.
Like: TypeAlias = Callable[[tuple[int, ...]], ResultMemory]


def check_name(op: str, name: str) -> str:
    """Return the dtype's name if the engine needs it, else "".

    Raises `NotSupported`: ranks cannot exchange this dtype.
    """
    if name not in _NAMES:
        msg = f"{op}: dtype {name} is not supported; {', '.join(DTYPE_NAMES)} are; convert it first"
        raise NotSupported(msg)
    return name if name == "bfloat16" else ""


def view_of_numpy(op: str, x: NDArray[Any]) -> ArrayView:
    """View a numpy array.

    Raises `NotSupported`: the bytes are swapped, or ranks cannot exchange the dtype.
    """
    dtype = x.dtype
    if not dtype.isnative:
        msg = (
            f"{op}: dtype {dtype.str} has its bytes swapped; "
            f"pass x.astype({dtype.newbyteorder('=').name!r})"
        )
        raise NotSupported(msg)
    if dtype in DTYPES:
        return ArrayView(x)
    name = check_name(op, str(dtype))
    return ArrayView(x.view(BITS), name)


def refuse_device(op: str, device: str, hint: str) -> NoReturn:
    """Raise for an array on a device, naming the right backend."""
    backend = _BACKENDS.get(device.partition(":")[0])
    other = f"that is for backend='{backend}', which is not in this release; " if backend else ""
    msg = f"{op}: the array is on {device}, not in memory of the CPU; {other}{hint}"
    raise NotSupported(msg)


class Adapter:
    """Adapter for arrays of any framework that supports DLPack."""

    def view(self, op: str, x: Any) -> ArrayView:
        """View an array, without a copy if numpy can describe its layout."""
        try:
            device, number = x.__dlpack_device__()
        except AttributeError:  # jax's stand-in for an array that jit, grad or vmap traces
            msg = f"{op}: this {type(x).__name__} has no values yet that could be sent; call it outside"
            raise NotSupported(msg) from None
        if int(device) not in _ON_CPU:
            name = _DEVICES.get(int(device), f"device {int(device)} of DLPack")
            refuse_device(op, f"{name}:{number}", "pass a copy on the CPU")
        try:
            array = np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            msg = f"{op}: this {type(x).__name__} cannot be read through __dlpack__ ({error})"
            raise NotSupported(msg) from error
        return view_of_numpy(op, array)

    def out(self, op: str, x: Any) -> ArrayView:
        """View an array that will be written to."""
        return self.view(op, x)

    def note_change(self, out: Any) -> None:
        """Tell the framework that an array is now written to by others."""

    def like(self, x: Any) -> Like:
        """Return an allocator for the dtype and device of ``x``."""
        return partial(_room_by_dlpack, np.from_dlpack(x).dtype, _from_dlpack(x))


def _room_by_dlpack(
    dtype: np.dtype[Any], from_dlpack: Callable[[Any], Any], shape: tuple[int, ...]
) -> ResultMemory:
    def finish(array: NDArray[Any]) -> Any:
        made = from_dlpack(array)
        kept = np.from_dlpack(made).dtype
        if kept != dtype:  # jax narrows 64 bits unless x64 is enabled
            msg = (
                f"a result of {dtype} would become {kept} there; enable 64 bits (jax: "
                "jax_enable_x64), or pass np.from_dlpack(x)"
            )
            raise NotSupported(msg)
        return made

    result: NDArray[Any] = np.empty(shape, dtype)
    return ResultMemory(result, result, finish)


def _from_dlpack(x: Any) -> Callable[[Any], Any]:
    """Return the function that converts numpy arrays to the type of ``x``."""
    if hasattr(x, "__array_namespace__"):
        namespace = x.__array_namespace__()
    else:
        namespace = sys.modules.get(type(x).__module__.partition(".")[0])
    if not hasattr(namespace, "from_dlpack"):
        msg = (
            f"a result cannot be made a {type(x).__name__} again: its module has no from_dlpack; "
            "pass np.from_dlpack(x)"
        )
        raise NotSupported(msg)
    return namespace.from_dlpack  # type: ignore[no-any-return]


class _Torch(Adapter):
    def out(self, op: str, x: Any) -> ArrayView:
        if x.is_conj() or x.is_neg():
            msg = (
                f"{op}: out is a view that conjugates or negates what is put into it; "
                "pass out.resolve_conj().resolve_neg()"
            )
            raise ValueError(msg)
        return self.view(op, x)

    def note_change(self, out: Any) -> None:
        """Increment the tensor's version before it is written to.

        Autograd then refuses values that it saved of the tensor.
        """
        if not out.is_inference():  # inference tensors have no version; autograd saves none
            sys.modules["torch"].autograd.graph.increment_version(out)

    def view(self, op: str, x: Any) -> ArrayView:
        """View a tensor; raise if part of its information would be lost.

        Each call into torch costs 100 to 1000 ns, much for a small tensor. So rare cases are
        checked last, or only after numpy() has failed.
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
        # Negative outside forward-mode differentiation. The name is private to torch: if a release
        # lacks it, unpack_dual is called each time.
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
            return ArrayView((x.resolve_neg().view(torch.uint16) if dtype else x).numpy(), dtype)
        except RuntimeError as error:
            if x.is_conj() or x.is_neg():
                return ArrayView(x.resolve_conj().resolve_neg().numpy())
            if "storage" not in str(error):
                raise
            msg = (
                f"{op}: inside torch.func.jvp, grad and vmap a tensor has no values yet that could "
                "be sent; call it outside"
            )
            raise NotSupported(msg) from None

    def like(self, x: Any) -> Like:
        return partial(_room_of_torch, x.dtype)


def _room_of_torch(dtype: Any, shape: tuple[int, ...]) -> ResultMemory:
    torch = sys.modules["torch"]
    # The engine writes to CPU memory; the default device may be another.
    result = torch.empty(shape, dtype=dtype, device="cpu")
    bits = result.view(torch.uint16) if dtype is torch.bfloat16 else result
    return ResultMemory(bits.numpy(), result)


class _Mlx(Adapter):
    def view(self, op: str, x: Any) -> ArrayView:
        mx = sys.modules["mlx.core"]
        dtype = check_name(op, str(x.dtype).rpartition(".")[2])
        try:
            mx.eval(x)
        except ValueError as error:
            if "transformations" not in str(error):
                raise
            msg = (
                f"{op}: inside mx.vmap and mx.compile an array has no values yet that could be "
                "sent; call it outside (inside mx.grad it works)"
            )
            raise NotSupported(msg) from None
        return ArrayView(np.asarray(x.view(mx.uint16) if dtype else x), dtype)

    def out(self, op: str, x: Any) -> ArrayView:
        msg = f"{op}: arrays of MLX are never changed; out must be a numpy array or a tensor"
        raise TypeError(msg)

    def like(self, x: Any) -> Like:
        return partial(_room_of_mlx, x.dtype)


def _room_of_mlx(dtype: Any, shape: tuple[int, ...]) -> ResultMemory:
    mx = sys.modules["mlx.core"]
    is_bfloat16 = dtype == mx.bfloat16
    # MLX has no empty(). zeros() fills the memory for nothing, which is cheaper than copying a
    # result into it. On the CPU, because the default device may be a GPU, which has no float64.
    result = mx.zeros(shape, mx.uint16 if is_bfloat16 else dtype, stream=mx.cpu)
    mx.eval(result)
    return ResultMemory(np.array(result, copy=False), result, _as_bfloat16 if is_bfloat16 else None)


def _as_bfloat16(bits: Any) -> Any:
    return bits.view(sys.modules["mlx.core"].bfloat16)


_ANY = Adapter()
# Key: top-level package of the type or of one of its base types.
_ADAPTERS: dict[str, Adapter] = {"torch": _Torch(), "mlx": _Mlx()}
_ROOMS = {"torch": _room_of_torch, "mlx": _room_of_mlx}


def is_mlx(x: object) -> bool:
    """Return whether ``x`` is an array of MLX."""
    return type(x).__module__ == "mlx.core" and type(x).__name__ == "array"


def is_mlx_dtype(dtype: object) -> bool:
    """Return whether ``dtype`` is a dtype of MLX."""
    return type(dtype).__module__ == "mlx.core" and type(dtype).__name__ == "Dtype"


def on_stream(stream: object) -> AbstractContextManager[Any]:
    """Return a context in which MLX computes on a stream or device.

    None: leave MLX's current stream in place.
    """
    if stream is None:
        return nullcontext()
    return sys.modules["mlx.core"].stream(stream)  # type: ignore[no-any-return]


def adapter_of(x: object) -> Adapter | None:
    """Return the adapter for an array, or None without ``__dlpack__``."""
    if not hasattr(x, "__dlpack__"):
        return None
    adapter = _ADAPTERS.get(type(x).__module__)  # fast path: a tensor's module is "torch"
    if adapter is not None:
        return adapter
    for kind in type(x).__mro__:
        adapter = _ADAPTERS.get(kind.__module__.partition(".")[0])
        if adapter is not None:
            return adapter
    return _ANY


def like_foreign_dtype(dtype: object) -> Like | None:
    """Return an allocator for a dtype of torch or MLX, else None."""
    room = _ROOMS.get(type(dtype).__module__.partition(".")[0])
    is_dtype = type(dtype).__name__ in ("dtype", "Dtype")
    return partial(room, dtype) if room is not None and is_dtype else None


# Derivatives for MLX. An operation moves real bytes when it is called, so MLX's graph would not
# contain it without these rules, and its derivative would be zero. The rules are those of
# `mlx.core.distributed` where it has one, except the forward derivative of all_max and all_min,
# which is wrong there. MLX's rules assume a loss that all ranks compute alike and that counts once.
Move = Callable[[str, Any], Any]


def with_gradient(op: str, x: Any, call: Callable[[Any], Any], move: Move, rank: int) -> Any:
    """Call ``call(x)`` so that `mx.grad` and `mx.jvp` know its derivative.

    ``move(op, array)`` runs a collective that the derivative needs, on every rank.

    Raises `NotSupported`: the operation has no such derivative. Raised only when the derivative is
    computed.
    """
    function = sys.modules["mlx.core"].custom_function(call)
    function.vjp(partial(_gradient, op, move, rank))
    # The other operations are linear. The value that `send` sends leaves this rank's graph.
    has_none = op in ("all_max", "all_min", "send")
    function.jvp(partial(_no_rule, op) if has_none else lambda _x, tangent: move(op, tangent))
    return function(x)


def _gradient(op: str, move: Move, rank: int, x: Any, cotangent: Any, _result: Any) -> Any:
    if op in ("all_sum", "all_max", "all_min"):
        return cotangent
    if op == "sum_scatter":
        return move("all_gather", cotangent)
    if op == "all_to_all":
        return move("all_to_all", cotangent)
    if op != "all_gather":
        return _no_rule(op)
    if not cotangent.ndim:  # a group of one
        return cotangent
    rows = x.shape[0] if x.ndim else 1
    return cotangent[rank * rows : (rank + 1) * rows].reshape(x.shape)


def _no_rule(op: str, *_: Any) -> Any:
    msg = (
        f"{op} has no such derivative (all_sum, all_gather, sum_scatter and all_to_all have one); "
        "call it outside of what is differentiated, or with mx.stop_gradient(x)"
    )
    raise NotSupported(msg)
