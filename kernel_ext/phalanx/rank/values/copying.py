"""Copy variables from a living rank to a replaced one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import msgspec

from phalanx.distributed.operations.sealed import SealedPair

from ..output.error_text import name_of, text_of
from .pickling import ValuePickler, load_each, pack_values

Namespace = dict[str, Any]
# Names that phalanx and IPython have bound on each rank.
_OWN = {"rank", "size", "world", "px", "np", "In", "Out", "exit", "quit", "get_ipython", "open"}

_WHY_CHARACTERS = 160
_OP = "restart --from"


class CopyReport(NamedTuple):
    """Number of copied names, and the reason for each other name."""

    copied: int
    problems: dict[str, str]


class _ParcelHeader(msgspec.Struct, frozen=True, tag=True):
    """Header of ``n_buffers`` buffers with names and their values.

    ``is_whole``: this parcel replaces all parcels before.
    """

    is_whole: bool
    n_buffers: int


class _End(msgspec.Struct, frozen=True, tag=True):
    """End of a copy: ``is_kept`` says whether the last parcel is kept.

    ``problems`` has the reason for each name that was not copied.
    """

    is_kept: bool
    problems: dict[str, str]


def copy_names(
    namespace: Namespace,
    hidden: Mapping[str, object],
    source: int,
    ranks: Collection[int],
    rank: int,
) -> CopyReport:
    """Copy the user's names of ``source`` to ``ranks``.

    ``source`` and all ``ranks`` call this function. The names travel in one pickle, so that objects
    shared by two names are shared on the other side too: an optimizer has the parameters of the
    model that came with it. Names that cannot be pickled, or cannot be loaded on one of ``ranks``,
    are left out, with the reason; so are the names that IPython had put there (``hidden``).
    """
    if rank == source:
        return _give(namespace, hidden, [SealedPair(peer, _OP) for peer in sorted(ranks)])
    return _take(namespace, SealedPair(source, _OP))


def _user_names(namespace: Namespace, hidden: Mapping[str, object]) -> Namespace:
    """Return the user's names: modules, then classes, functions, and the rest.

    Values are loaded in this order, because code that loading runs may need the names before.
    """
    names = {
        name: value
        for name, value in namespace.items()
        if not name.startswith("_")
        and name not in _OWN
        and (name not in hidden or hidden[name] is not value)
    }

    def order(name: str) -> int:
        kinds = (ModuleType, type, FunctionType)
        return next((at for at, kind in enumerate(kinds) if isinstance(names[name], kind)), 3)

    return {name: names[name] for name in sorted(names, key=order)}


def _give(
    namespace: Namespace, hidden: Mapping[str, object], takers: Sequence[SealedPair]
) -> CopyReport:
    names, problems = _user_names(namespace, hidden), dict[str, str]()

    def leave_out(why_not: Callable[[str], str]) -> None:
        for name in list(names):
            if why := why_not(name):
                problems[name] = why
                del names[name]

    leave_out(lambda name: why_unpicklable(names[name]))
    why = _offer(names, takers, is_whole=True)
    if why:
        # A pickle that fails half-way leaves objects half-made, also for the names after it. So try
        # each name alone, and then send the names that can be loaded together again.
        leave_out(lambda name: _offer({name: names[name]}, takers, is_whole=False))
        why = _offer(names, takers, is_whole=True)
    if why:
        problems.update(dict.fromkeys(names, why))
    for taker in takers:
        taker.send(msgspec.msgpack.encode(_End(not why, problems)))
    return CopyReport(0 if why else len(names), problems)


def why_unpicklable(value: object) -> str:
    """Pack a value into nothing; return the error or ""."""
    try:
        ValuePickler(SimpleNamespace(write=len), lambda memory: None).dump(value)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any object may refuse in its own way
        return _why(error)
    return ""


def _offer(names: Namespace, takers: Sequence[SealedPair], *, is_whole: bool) -> str:
    """Send names to ranks; return the first error or ""."""
    try:
        buffers = pack_values(names)
    except Exception as error:  # noqa: BLE001 - as above
        return _why(error.__cause__ or error)
    parcel = msgspec.msgpack.encode(_ParcelHeader(is_whole, len(buffers)))
    for taker in takers:
        for memory in (parcel, *buffers):
            taker.send(memory)
    answers = [taker.recv().tobytes().decode() for taker in takers]
    return next(filter(None, answers), "")


def _take(namespace: Namespace, giver: SealedPair) -> CopyReport:
    bound: set[str] = set()

    def unbind() -> None:
        for name in bound:
            namespace.pop(name, None)
        bound.clear()

    while isinstance(
        message := msgspec.msgpack.decode(giver.recv(), type=_ParcelHeader | _End), _ParcelHeader
    ):
        if message.is_whole:
            unbind()
        why = _load(namespace, bound, message, giver)
        giver.send(why.encode())
    if not message.is_kept:
        unbind()
    return CopyReport(len(bound), message.problems)


def _load(namespace: Namespace, bound: set[str], parcel: _ParcelHeader, giver: SealedPair) -> str:
    """Receive a parcel and bind its names; return the error or ""."""
    buffers = [giver.recv() for _ in range(parcel.n_buffers)]
    try:
        for name, value in load_each(buffers, "on the rank"):
            namespace[name] = value
            bound.add(name)
    except Exception as error:  # noqa: BLE001 - as above
        return _why(error.__cause__ or error)
    return ""


def _why(error: BaseException) -> str:
    text = text_of(error).strip().partition("\n")[0][:_WHY_CHARACTERS]
    text = text.encode(errors="backslashreplace").decode()  # surrogates cannot be sent as text
    return text or name_of(type(error))
