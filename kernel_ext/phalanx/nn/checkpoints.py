"""Save the state of a training, and load it.

The number of ranks may differ.

A checkpoint is a folder ``step-00000512`` with a file of arrays for each rank (safetensors) and
``index.json``. Every file gets its name when it is complete and on the disk. A checkpoint counts
only with all its files, so a save that was cut off leaves none.

Modules that `sharded/` divides differ between ranks. Save such a module in ``own``, for as many
ranks, or its `whole_parameters` in ``state``, for any number.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phalanx.distributed.bootstrap.init import init
from phalanx.distributed.group.group import Group
from phalanx.distributed.operations.objects import all_gather_object, broadcast_object
from phalanx.errors import CollectiveMismatch, DistributedError, NotSupported

from .array_files import ArrayEntry, ArrayReader, library, write_arrays, write_bytes
from .arrays import ArrayForm
from .states import capture, compute, decoded, encoded, pack, paths_of, restore, unpack

_FORMAT = 1
_INDEX = "index.json"
_NAME = re.compile(r"step-(\d{8,})")
_FILE = "rank-{:05d}.safetensors"


class Saving:
    """A save that runs in the background; made by `save`.

    ``path`` is the folder of the checkpoint.
    """

    def __init__(
        self,
        path: Path,
        group: Group,
        arrays: dict[str, Any],
        metadata: dict[str, str],
        index: bytes,
    ) -> None:
        self.path = path
        self._group = group
        self._error = ""
        written = arrays, metadata, index
        self._thread = threading.Thread(target=self._write, args=written, name="phalanx-save")
        self._thread.start()

    def _write(self, arrays: dict[str, Any], metadata: dict[str, str], index: bytes) -> None:
        try:
            write_arrays(self.path / _FILE.format(self._group.rank()), arrays, metadata)
            if index:
                write_bytes(self.path / _INDEX, index)
        except Exception as error:  # noqa: BLE001 - `wait` raises it on all ranks
            self._error = f"{type(error).__name__}: {error}"

    def wait(self) -> Path:
        """Wait until all ranks have written their files; every rank calls this.

        Returns
        -------
        Path
            The folder of the checkpoint.

        Raises
        ------
        OSError
            A rank could not write its file (names the rank and the reason).

        Examples
        --------
        >>> import tempfile, phalanx as px
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     px.nn.save(folder, {"step": 3}, wait=False).wait().name
        'step-00000003'
        """
        self._thread.join()
        errors = all_gather_object(self._error, group=self._group)
        for rank, error in enumerate(errors):
            if error:
                msg = f"save: rank {rank} could not write {self.path}: {error}"
                raise OSError(msg)
        return self.path


def save(
    folder: str | os.PathLike[str],
    state: dict[str, Any],
    *,
    own: dict[str, Any] | None = None,
    keep: int = 2,
    group: Group | None = None,
    wait: bool = True,
) -> Saving:
    """Save a checkpoint of the state of a training.

    Parameters
    ----------
    folder : path
        Folder for all checkpoints of this training, which all ranks can write to. This call makes
        ``step-NNNNNNNN`` in it, from ``state["step"]``.
    state : dict
        What all ranks have alike, as for `steps`. Each rank writes a part of its arrays.
    own : dict, optional
        What this rank has for itself, as for `steps`.
    keep : int, optional
        Number of complete checkpoints to keep, the newest; older ones are removed. 0: all.
    group : Group, optional
        Ranks that save together; ``None``: all.
    wait : bool, optional
        False copies the arrays of numpy and torch and writes in the background. Call
        ``Saving.wait`` on all ranks to know that all is written.

    Returns
    -------
    Saving
        Handle with ``path`` and ``wait()``.

    Raises
    ------
    CollectiveMismatch
        The ranks are at different steps, or their states have different forms.
    OSError
        A rank could not write (names the rank).
    TypeError
        A part of the state cannot be copied (names its path).
    NotSupported
        The package safetensors is missing, or a dtype cannot be saved.

    See Also
    --------
    load : loads a checkpoint.
    export : writes one plain file for use without Phalanx.

    Notes
    -----
    Files are written under a temporary name, synced to the disk, and renamed. If the ranks are on
    several hosts, ``folder`` must be on a file system that they share.

    Cost: each rank writes 1/size of the bytes of ``state``, and its own part; an
    `all_gather_object` and a `broadcast_object` of a few bytes before.

    Examples
    --------
    >>> import tempfile, numpy as np, phalanx as px
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved = px.nn.save(folder, {"w": np.ones(2), "step": 7})
    ...     state = {"w": np.zeros(2)}
    ...     px.nn.load(folder, state), state["w"]
    (7, array([1., 1.]))
    """
    library()
    group = init() if group is None else group
    saved, part = capture(state), None if own is None else capture(own)
    compute(saved)
    compute(part)
    form, arrays = pack(saved, _is_saved)
    paths = paths_of(form, len(arrays))
    files = _shares(arrays, group.size())
    entries = [
        ArrayEntry(path, _FILE.format(rank), *ArrayForm.of(array))
        for path, rank, array in zip(paths, files, arrays, strict=True)
    ]
    step = int(state.get("step", 0))
    as_json = encoded(form)
    path = _prepared(Path(folder), step, entries, group)
    mine = {
        entry.path: array
        for entry, rank, array in zip(entries, files, arrays, strict=True)
        if rank == group.rank()
    }
    own_form, own_arrays = pack(part, _is_saved)
    own_names = [f"own.{number}" for number in range(len(own_arrays))]
    own_kinds = [ArrayForm.of(array) for array in own_arrays]
    mine |= dict(zip(own_names, own_arrays, strict=True))
    metadata = {"own": json.dumps([encoded(own_form), own_kinds])} if own is not None else {}
    index = b""
    if group.rank() == 0:
        about = {
            "format": _FORMAT,
            "step": step,
            "ranks": group.size(),
            "form": as_json,
            "arrays": [entry._asdict() for entry in entries],
        }
        index = json.dumps(about).encode()
    saving = Saving(path, group, mine, metadata, index)
    if group.rank() == 0 and keep:
        _remove_old(Path(folder), keep, path)
    if wait:
        saving.wait()
    return saving


def load(
    folder: str | os.PathLike[str],
    state: dict[str, Any],
    *,
    own: dict[str, Any] | None = None,
    step: int | None = None,
    group: Group | None = None,
) -> int:
    """Load the newest complete checkpoint into the state of a training.

    Parameters
    ----------
    folder : path
        Folder given to `save`.
    state : dict
        The state to put the checkpoint into, of the same form as when it was saved. Arrays,
        modules and optimizers are changed in place.
    own : dict, optional
        What this rank has for itself. It is loaded only if the checkpoint is of as many ranks.
    step : int, optional
        The checkpoint to load; ``None``: the newest.
    group : Group, optional
        Ranks that load together; ``None``: all. Their number may differ from that of the save.

    Returns
    -------
    int
        The step of the checkpoint, which is ``state["step"]`` now.

    Raises
    ------
    FileNotFoundError
        There is no complete checkpoint (says what there is).
    ValueError
        The checkpoint is of another model (names the first array that differs), of a newer format,
        or a file is damaged.
    NotSupported
        The package safetensors is missing.

    See Also
    --------
    save : saves a checkpoint.

    Notes
    -----
    Rank 0 chooses the checkpoint, and every rank reads all its arrays: ``folder`` must be on a file
    system that the ranks share. All ranks raise the same error, and nothing is changed then.

    Cost: each rank reads the whole checkpoint; a `broadcast_object` and an `all_gather_object`.

    Examples
    --------
    >>> import phalanx as px
    >>> px.nn.load("no/such/folder", {})
    Traceback (most recent call last):
        ...
    FileNotFoundError: load: there is no checkpoint in no/such/folder
    """
    group = init() if group is None else group
    mine = _chosen(Path(folder), step) if group.rank() == 0 else Path()
    found = broadcast_object(mine, group=group)
    if isinstance(found, Exception):
        raise found
    error: Exception | None = None
    saved = part = None
    try:
        saved, part = _read(found, state, own, group)
    except (OSError, ValueError, KeyError, NotSupported) as failure:
        error = failure
    for rank, other in enumerate(all_gather_object(error, group=group)):
        if other is not None:
            if rank == group.rank():
                raise other
            msg = f"rank {rank}: {other}"
            raise type(other)(msg) from None
    restore(state, saved)
    if own is not None and part is not None:
        restore(own, part)
    return int(state["step"])


def export(
    folder: str | os.PathLike[str],
    file: str | os.PathLike[str],
    part: str = "",
    *,
    step: int | None = None,
) -> int:
    """Write the arrays of a checkpoint to one plain safetensors file.

    Call it on one rank, or without ranks.

    Parameters
    ----------
    folder : path
        Folder given to `save`.
    file : path
        File to write; replaced if it exists.
    part : str, optional
        Write only arrays below this path of the state, and drop the path from their names: with
        ``"model"`` the array ``model.layers.0.weight`` is called ``layers.0.weight``.
    step : int, optional
        The checkpoint; ``None``: the newest.

    Returns
    -------
    int
        Number of arrays written.

    Raises
    ------
    FileNotFoundError
        There is no complete checkpoint.
    ValueError
        The checkpoint has no arrays below ``part`` (names what it has).
    NotSupported
        The package safetensors is missing.

    See Also
    --------
    load : loads a checkpoint into the state of a training.

    Notes
    -----
    Cost: reads and writes the arrays once; they are all in memory at that time.

    Examples
    --------
    >>> import tempfile, numpy as np, phalanx as px
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved = px.nn.save(folder, {"model": {"w": np.ones(2), "b": np.ones(1)}})
    ...     px.nn.export(folder, f"{folder}/model.safetensors", "model")
    2
    """
    path = _chosen(Path(folder), step)
    if isinstance(path, Exception):
        raise path
    index = _read_index(path)
    below = f"{part}." if part else ""
    entries = [entry for entry in index.entries if entry.path.startswith(below)]
    if not entries:
        tops = sorted({entry.path.partition(".")[0] for entry in index.entries})
        msg = f"export: the checkpoint has no arrays below {part!r}; it has {', '.join(tops)}"
        raise ValueError(msg)
    read = ArrayReader(path)
    # Read as numpy where numpy has the dtype, so that the framework need not be there.
    arrays = {entry.path.removeprefix(below): read(entry) for entry in entries}
    write_arrays(Path(file), arrays, {"step": str(index.step)})
    return len(arrays)


# -- folders ----------------------------------------------------------------------------------


class _Index(NamedTuple):
    step: int
    ranks: int
    form: Any
    entries: list[ArrayEntry]


def _prepared(folder: Path, step: int, entries: list[ArrayEntry], group: Group) -> Path:
    """Make the folder of a checkpoint on rank 0.

    All ranks must agree on what to save.
    """
    forms = all_gather_object((step, entries), group=group)
    for rank, (other, others) in enumerate(forms):
        if other != forms[0][0]:
            msg = f"save: rank 0 is at step {forms[0][0]}, rank {rank} at step {other}"
            raise CollectiveMismatch(msg)
        if others != forms[0][1]:
            first = {entry.path for entry in forms[0][1]}
            lacks = sorted(first.symmetric_difference(entry.path for entry in others))
            where = f", such as {lacks[0]}" if lacks else " in dtypes or shapes"
            msg = f"save: the states of ranks 0 and {rank} differ{where}"
            raise CollectiveMismatch(msg)
    path = folder / f"step-{step:08d}"
    error: Exception | None = None
    if group.rank() == 0:
        try:
            # Without its index it counts no longer: it is taken away before the rest.
            (path / _INDEX).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
        except OSError as failure:
            error = failure
    error = broadcast_object(error, group=group)
    if error is not None:
        msg = f"save: rank 0 could not make {path}: {error}"
        raise OSError(msg)
    if not path.is_dir():
        msg = f"save: {path} is not on a file system that rank {group.rank()} shares with rank 0"
        raise DistributedError(msg)
    return path


def _complete(folder: Path) -> dict[int, Path]:
    """Return the complete checkpoints by step."""
    found = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        named = _NAME.fullmatch(path.name)
        if named and (path / _INDEX).is_file():
            ranks = json.loads((path / _INDEX).read_text())["ranks"]
            if all((path / _FILE.format(rank)).is_file() for rank in range(ranks)):
                found[int(named[1])] = path
    return found


def _chosen(folder: Path, step: int | None) -> Path | Exception:
    """Return the checkpoint to load, or the error to raise."""
    try:
        complete = _complete(folder)
    except (OSError, ValueError, KeyError) as error:
        return ValueError(f"load: an index in {folder} is damaged: {error}")
    if step is not None and step not in complete:
        has = ", ".join(map(str, sorted(complete))) or "none"
        return FileNotFoundError(
            f"load: there is no complete checkpoint of step {step} in {folder}; complete are: {has}"
        )
    if not complete:
        torn = (
            sum(bool(_NAME.fullmatch(p.name)) for p in folder.iterdir()) if folder.is_dir() else 0
        )
        what = f"no complete checkpoint among the {torn}" if torn else "no checkpoint"
        return FileNotFoundError(f"load: there is {what} in {folder}")
    return complete[max(complete) if step is None else step]


def _remove_old(folder: Path, keep: int, newest: Path) -> None:
    """Remove complete checkpoints but the newest ones.

    The one that is being written does not count.
    """
    complete = {step: path for step, path in _complete(folder).items() if path != newest}
    # One complete checkpoint is always left, as the newest may never be complete.
    for step in sorted(complete)[: -max(keep - 1, 1)]:
        (complete[step] / _INDEX).unlink(missing_ok=True)
        shutil.rmtree(complete[step], ignore_errors=True)


# -- the state of a checkpoint --------------------------------------------------------------


def _read_index(path: Path) -> _Index:
    about = json.loads((path / _INDEX).read_text())
    if about.get("format") != _FORMAT:
        msg = f"load: {path} is of format {about.get('format')}; this release reads {_FORMAT}"
        raise ValueError(msg)
    entries = [ArrayEntry(**entry) for entry in about["arrays"]]
    return _Index(about["step"], about["ranks"], decoded(about["form"]), entries)


def _read(
    path: Path, state: dict[str, Any], own: dict[str, Any] | None, group: Group
) -> tuple[Any, Any]:
    """Return the state of a checkpoint, and this rank's part or None."""
    library()
    index = _read_index(path)
    _check_same_model(index.entries, state)
    read = ArrayReader(path)
    saved = unpack(index.form, [read(entry) for entry in index.entries])
    compute(saved)
    if own is None or index.ranks != group.size():
        return saved, None
    file = _FILE.format(group.rank())
    metadata = read.metadata(file).get("own")
    if metadata is None:
        return saved, None
    form, kinds = json.loads(metadata)
    arrays = [read(ArrayEntry(f"own.{n}", file, *kind)) for n, kind in enumerate(kinds)]
    part = unpack(decoded(form), arrays)
    compute(part)
    return saved, part


def _check_same_model(entries: list[ArrayEntry], state: dict[str, Any]) -> None:
    """Compare the arrays of the state with those of a checkpoint."""
    form, arrays = pack(capture(state), _is_saved)
    mine = dict(zip(paths_of(form, len(arrays)), map(ArrayForm.of, arrays), strict=True))
    saved = {entry.path: (entry.dtype, entry.shape) for entry in entries}
    for path, (_, dtype, shape) in mine.items():
        if path in saved and saved[path] != (dtype, shape):
            is_dtype, is_shape = saved[path]
            msg = (
                f"load: the checkpoint is of another model: {path} is {is_dtype}{is_shape} in it, "
                f"and {dtype}{shape} here"
            )
            raise ValueError(msg)
    if mine and saved and not mine.keys() & saved.keys():
        msg = (
            f"load: the checkpoint is of another model: it has {next(iter(saved))}, and not "
            f"{next(iter(mine))}"
        )
        raise ValueError(msg)


def _is_saved(array: Any) -> bool:
    return not (isinstance(array, np.ndarray) and array.dtype.kind not in "biufcV")


def _shares(arrays: list[Any], n_ranks: int) -> list[int]:
    """Return for each array the rank that writes it.

    The bytes are shared evenly, in order.
    """
    total = sum(array.nbytes for array in arrays) or 1
    ranks, before = [], 0
    for array in arrays:
        ranks.append(min(n_ranks - 1, before * n_ranks // total))
        before += array.nbytes
    return ranks
