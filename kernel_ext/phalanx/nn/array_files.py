"""Write arrays to safetensors files, and read them.

A file gets its name when it is complete and on the disk.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.errors import NotSupported

from .arrays import kind_of


class ArrayEntry(NamedTuple):
    """Place and form of an array in a checkpoint.

    ``path`` is its place in the state, ``file`` the name of its file.
    """

    path: str
    file: str
    framework: str
    dtype: str
    shape: list[int]


def library() -> Any:
    """Return the package safetensors; raise `NotSupported` without it."""
    try:
        import safetensors
    except ModuleNotFoundError:
        msg = "checkpoints need the package safetensors: pip install 'safetensors>=0.8'"
        raise NotSupported(msg) from None
    return safetensors


def write_arrays(path: Path, arrays: Mapping[str, Any], metadata: dict[str, str]) -> None:
    """Write arrays by name, and texts."""
    safetensors = library()
    specs, held = {}, []
    for name, array in arrays.items():
        kind = kind_of(array)
        assert kind is not None
        memory, dtype = kind.memory(array), kind.dtype_name(array)
        shape = list(array.shape)
        if dtype == "complex128":  # safetensors has none: pairs of real numbers
            dtype, shape = "float64", [*shape, 2]
        held.append(memory)
        specs[name] = safetensors.TensorSpec(
            dtype=dtype, shape=shape, data_ptr=memory.ctypes.data, data_len=memory.nbytes
        )
    part = path.with_name(path.name + ".part")
    safetensors.serialize_file(specs, part, metadata or None)
    _publish(part, path)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file as a whole, or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    _publish(part, path)


def _publish(part: Path, path: Path) -> None:
    """Bring a file to the disk, then give it its name."""
    _sync(part)
    part.rename(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ArrayReader:
    """Reads arrays of a checkpoint, each as an array of its framework."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: dict[tuple[str, str], Any] = {}

    def __call__(self, entry: ArrayEntry) -> Any:
        """Read one array."""
        file = self._path / entry.file
        safetensors = library()
        try:
            if entry.dtype == "bfloat16" and entry.framework != "torch":
                return _from_bits(entry, _read_bits(file, entry.path))
            array = self._file(file, entry.framework).get_tensor(entry.path)
        except (safetensors.SafetensorError, RuntimeError) as error:
            msg = f"load: {file} is damaged: {error}"
            raise ValueError(msg) from None
        if entry.framework == "MLX":
            import mlx.core as mx

            return mx.array(array)
        if entry.dtype == "complex128":
            if entry.framework == "torch":
                return sys.modules["torch"].view_as_complex(array)
            return array.view(np.complex128).reshape(entry.shape)
        return array

    def _file(self, file: Path, framework: str) -> Any:
        name = "pt" if framework == "torch" else "numpy"
        key = (str(file), name)
        if key not in self._open:
            self._open[key] = library().safe_open(str(file), name)
        return self._open[key]

    def metadata(self, file: str) -> dict[str, str]:
        """Return the texts of a file."""
        return self._file(self._path / file, "numpy").metadata() or {}


def _read_bits(file: Path, name: str) -> NDArray[np.uint16]:
    """Read 16-bit elements as they are: numpy has no bfloat16.

    Source of the format: https://github.com/huggingface/safetensors#format
    """
    with file.open("rb") as opened:
        n_header = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(n_header))
        begin, end = header[name]["data_offsets"]
        opened.seek(8 + n_header + begin)
        return np.frombuffer(opened.read(end - begin), np.uint16)


def _from_bits(entry: ArrayEntry, bits: NDArray[np.uint16]) -> Any:
    if entry.framework == "MLX":
        import mlx.core as mx

        return mx.array(bits.reshape(entry.shape)).view(mx.bfloat16)
    try:
        return bits.view(np.dtype("bfloat16")).reshape(entry.shape)
    except TypeError:
        msg = f"numpy has no bfloat16, the dtype of {entry.path}; import ml_dtypes"
        raise NotSupported(msg) from None
