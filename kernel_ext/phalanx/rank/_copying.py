"""One rank's names for others: what a replaced rank takes over from one that lives.

It knows the user's namespace and the engine's messages from rank to rank.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import msgspec
import numpy as np

from phalanx.distributed import recv, send

from ._pickling import pack, unpack

__all__ = ["CopyReport", "copy_names", "copy_report"]

Namespace = dict[str, Any]
# What a rank has of its own, and what IPython has put there.
_OWN = {"rank", "size", "world", "px", "np", "In", "Out", "exit", "quit", "get_ipython", "open"}
_WHY_CHARACTERS = 160


class CopyReport(NamedTuple):
    """How many names came, and why each other one did not."""

    copied: int
    problems: dict[str, str]


class _Piece(msgspec.Struct, frozen=True):
    """What comes next: a name with its pickle and its arrays' memory, by sizes; or why it does not."""

    name: str
    nbytes: int = 0
    buffers: tuple[int, ...] = ()
    problem: str = ""


def copy_names(
    namespace: Namespace,
    hidden: Mapping[str, object],
    source: int,
    ranks: Collection[int],
    rank: int,
) -> CopyReport:
    """Copy the user's names of ``source`` to ``ranks``; all of these call it.

    Parameters
    ----------
    namespace : dict
        The user's names on this rank.
    hidden : mapping of str to object
        What IPython had put in it.
    source, ranks, rank
        Who has the names, who gets them, and who this is.
    """
    if rank == source:
        return _give(namespace, hidden, sorted(ranks))
    return _take(namespace, source)


def _names(namespace: Namespace, hidden: Mapping[str, object]) -> list[str]:
    """The user's names: modules first, then what others are made of, and the rest after these."""
    names = [
        name
        for name, value in namespace.items()
        if not name.startswith("_")
        and name not in _OWN
        and (name not in hidden or hidden[name] is not value)
    ]

    def order(name: str) -> int:
        value = namespace[name]
        kinds = (ModuleType, type, FunctionType)
        return next((at for at, kind in enumerate(kinds) if isinstance(value, kind)), len(kinds))

    return sorted(names, key=order)


def _give(namespace: Namespace, hidden: Mapping[str, object], ranks: list[int]) -> CopyReport:
    problems: dict[str, str] = {}
    names = _names(namespace, hidden)
    for name in names:
        data, buffers = b"", list[memoryview]()
        try:
            data, buffers = pack(namespace[name], namespace)
            piece = _Piece(name, len(data), tuple(buffer.nbytes for buffer in buffers))
        except Exception as error:  # noqa: BLE001 - any object may refuse in its own way
            piece = _Piece(name, problem=_why(error))
            data, buffers = b"", []
            problems[name] = piece.problem
        for rank in ranks:
            _send(msgspec.msgpack.encode(piece), rank)
            for memory in (memoryview(data), *buffers):
                if memory.nbytes:
                    send(np.frombuffer(memory, np.uint8), rank)
    for rank in ranks:
        _send(b"", rank)
    return CopyReport(len(names) - len(problems), problems)


def _take(namespace: Namespace, source: int) -> CopyReport:
    copied, problems = 0, dict[str, str]()
    while header := _recv(source):
        piece = msgspec.msgpack.decode(header, type=_Piece)
        parts = [
            recv((nbytes,), np.uint8, source) if nbytes else np.empty(0, np.uint8)
            for nbytes in (piece.nbytes, *piece.buffers)
        ]
        if piece.problem:
            problems[piece.name] = piece.problem
            continue
        if not piece.nbytes:
            continue
        try:
            namespace[piece.name] = unpack(parts[0].data, parts[1:])
            copied += 1
        except Exception as error:  # noqa: BLE001 - as above
            problems[piece.name] = _why(error)
    return CopyReport(copied, problems)


def _send(data: bytes, rank: int) -> None:
    send(np.array([len(data)], np.int64), rank)
    if data:
        send(np.frombuffer(data, np.uint8), rank)


def _recv(source: int) -> bytes:
    nbytes = int(recv((1,), np.int64, source)[0])
    return bytes(recv((nbytes,), np.uint8, source)) if nbytes else b""


def _why(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0][:_WHY_CHARACTERS]
    return text or type(error).__name__


def copy_report() -> tuple[int, dict[str, str]]:
    """Return what this rank's last copy came to; called by the workspace."""
    from IPython import get_ipython

    report: CopyReport = get_ipython().kernel.copied
    return tuple(report)  # type: ignore[return-value]
