"""Take nested containers of arrays apart, and put them together again.

A tree is a dict, list, tuple or dataclass of trees, or a leaf: an array of numpy, torch or MLX, or
None (a parameter without a gradient). A leaf's path is its keys, joined by dots:
``layers.0.weight``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

from phalanx.errors import NotSupported

from .arrays import ArrayKind, kind_of


class Leaf(NamedTuple):
    """A leaf with its path; without an array ``kind`` is None."""

    path: str
    array: Any
    kind: ArrayKind | None

    @property
    def text(self) -> str:
        """Describe the leaf: what all ranks must agree on."""
        if self.kind is None:
            return f"{self.path or 'the tree'}: None"
        dtype, shape = self.kind.dtype_name(self.array), tuple(self.array.shape)
        where = f" on {self.device}" if self.device else ""
        return f"{self.path or 'the array'}: {self.kind.name} {dtype}{list(shape)}{where}"

    @property
    def device(self) -> str:
        """Return torch's name of another device than the CPU, or ""."""
        is_elsewhere = self.kind is not None and not getattr(self.array, "is_cpu", True)
        return str(self.array.device) if is_elsewhere else ""


def flatten(caller: str, tree: Any) -> list[Leaf]:
    """Return the leaves of a tree, in its order.

    Raises
    ------
    TypeError
        A leaf is no array; the message begins with ``caller`` and names the path.
    """
    return list(_leaves(caller, tree, ""))


def check_devices(caller: str, leaves: Iterable[Leaf]) -> None:
    """Raise an error for a leaf on another device.

    Raises
    ------
    NotSupported
        Names the leaf and its device.
    """
    for leaf in leaves:
        if leaf.device:
            msg = (
                f"{caller}: {leaf.path or 'the array'} is on {leaf.device}, not in memory of the "
                "CPU; pass its .cpu()"
            )
            raise NotSupported(msg)


def _leaves(caller: str, tree: Any, path: str) -> Iterator[Leaf]:
    if tree is None:
        yield Leaf(path, None, None)
        return
    children = _children(tree)
    if children is not None:
        for key, child in children:
            yield from _leaves(caller, child, f"{path}.{key}" if path else str(key))
        return
    kind = kind_of(tree)
    if kind is None:
        hint = "; pass its parameters" if hasattr(tree, "parameters") else ""
        msg = (
            f"{caller}: {path or 'the tree'} is of type {type(tree).__name__}, not an array of "
            f"numpy, torch or MLX{hint}"
        )
        raise TypeError(msg)
    yield Leaf(path, tree, kind)


def _children(tree: Any) -> Iterator[tuple[Any, Any]] | None:
    # A module of MLX is a dict with methods: taking its items would hide a mistake.
    if isinstance(tree, dict) and not hasattr(tree, "parameters"):
        return iter(tree.items())
    if isinstance(tree, list | tuple):
        return iter(enumerate(tree))
    if _is_dataclass(tree):
        return ((field.name, getattr(tree, field.name)) for field in fields(tree) if field.init)
    return None


def _is_dataclass(tree: Any) -> bool:
    return is_dataclass(tree) and not isinstance(tree, type) and not hasattr(tree, "parameters")


def rebuild(tree: Any, arrays: Iterator[Any]) -> Any:
    """Return a tree of the same form with new leaves.

    The leaves come in the order of `flatten`.

    Examples
    --------
    >>> rebuild({"a": [None, ()], "b": None}, iter([1, 2]))
    {'a': [1, ()], 'b': 2}
    """
    if isinstance(tree, dict):
        values = [(key, rebuild(child, arrays)) for key, child in tree.items()]
        return dict(values) if type(tree) is dict else type(tree)(values)
    if isinstance(tree, list | tuple):
        children = [rebuild(child, arrays) for child in tree]
        # A namedtuple takes its fields one by one.
        make: Callable[..., Any] = type(tree)
        return make(*children) if hasattr(tree, "_fields") else make(children)
    if _is_dataclass(tree):
        made: Any = tree
        new = {f.name: rebuild(getattr(tree, f.name), arrays) for f in fields(made) if f.init}
        return replace(made, **new)
    return next(arrays)
