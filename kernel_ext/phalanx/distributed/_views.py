"""Memory of arrays as numpy sees it, and room for results: what all adapters of frameworks share.

It knows numpy and the dtypes that ranks can exchange; of operations their names, for its errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from phalanx import _native
from phalanx.errors import NotSupported

__all__ = [
    "BITS",
    "DTYPES",
    "DTYPE_NAMES",
    "Adapter",
    "Like",
    "Target",
    "View",
    "check_name",
    "refuse_device",
    "refuse_out",
    "view_of_numpy",
]

DTYPE_NAMES = _native.supported_dtypes()
_NAMES = frozenset(DTYPE_NAMES)
DTYPES = frozenset(np.dtype(name) for name in DTYPE_NAMES if name != "bfloat16")
# numpy has no bfloat16 of its own: the engine is given the bits and this name.
BITS = np.dtype(np.uint16)

# Which backend moves arrays of a device; none of them is in this release.
_BACKENDS = {"cuda": "nccl", "metal": "jaccl", "mps": "jaccl"}


class View(NamedTuple):
    """Memory of an array, and the name of its dtype where numpy has none."""

    array: NDArray[Any]
    dtype: str = ""


class Target(NamedTuple):
    """Memory for a result, what lies there, and how that becomes what the caller gets."""

    array: NDArray[Any]
    held: Any
    finish: Callable[[Any], Any] | None = None  # None: it is that already

    def give(self) -> Any:
        """Return the result, once it is there."""
        return self.held if self.finish is None else self.finish(self.held)


class Like(Protocol):
    """Makes room for results like a certain array."""

    def __call__(self, shape: tuple[int, ...]) -> Target: ...


class Adapter(Protocol):
    """What one framework's arrays need."""

    def view(self, op: str, x: Any) -> View:
        """See what an array holds, without a copy where numpy can describe its layout."""

    def out(self, op: str, x: Any) -> View:
        """See an array that is to be written to."""

    def note_change(self, out: Any) -> None:
        """Tell the framework that an array is now written to, behind its back."""

    def like(self, x: Any) -> Like:
        """Make results of the dtype of ``x`` and where ``x`` is."""

    def like_dtype(self, dtype: Any) -> Like | None:
        """Make results of this dtype, if it is one of the framework's."""


def check_name(op: str, name: str) -> str:
    """Return what the engine must be told of a dtype beyond its bytes.

    Raises
    ------
    NotSupported
        It is none of those that ranks can exchange.
    """
    if name not in _NAMES:
        msg = f"{op}: dtype {name} is not supported; {', '.join(DTYPE_NAMES)} are; convert it first"
        raise NotSupported(msg)
    return name if name == "bfloat16" else ""


def view_of_numpy(op: str, x: NDArray[Any]) -> View:
    """See an array of numpy.

    Raises
    ------
    NotSupported
        Its bytes are swapped, or of a dtype that ranks cannot exchange.
    """
    dtype = x.dtype
    if not dtype.isnative:
        msg = (
            f"{op}: dtype {dtype.str} has its bytes swapped; "
            f"pass x.astype({dtype.newbyteorder('=').name!r})"
        )
        raise NotSupported(msg)
    if dtype in DTYPES:
        return View(x)
    name = check_name(op, str(dtype))
    return View(x.view(BITS), name)


def refuse_device(op: str, device: str, hint: str) -> NoReturn:
    """Say that an array lies on a device, and what is for that."""
    backend = _BACKENDS.get(device.partition(":")[0])
    other = f"that is for backend='{backend}', which is not in this release; " if backend else ""
    msg = f"{op}: the array is on {device}, not in memory of the CPU; {other}{hint}"
    raise NotSupported(msg)


def refuse_out(op: str, framework: str) -> NoReturn:
    """Say that arrays of a framework cannot be ``out``."""
    msg = f"{op}: arrays of {framework} are never changed; out must be a numpy array or a tensor"
    raise TypeError(msg)
