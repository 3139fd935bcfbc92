"""A fuzzer's bytes as choices: numbers at their edges, texts, and whole records of the protocol.

It knows msgspec's records by their annotations only. The same bytes are the same choices.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from typing import Any

import msgspec

_EDGES = (
    -1, -2, -(1 << 31), -(1 << 31) - 1, -(1 << 63), 1 << 15, (1 << 16) - 1, 1 << 16, (1 << 31) - 1,
    1 << 31, (1 << 32) - 1, 1 << 32, 1 << 48, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
)  # fmt: skip
_REALS = (0.0, -1.0, 0.5, 1e300, float("inf"), float("nan"))
_WORDS = (
    "",
    "a",
    "b",
    "any",
    "\x1b[31m",
    "\x1e0\x1e",
    "é" * 40,
    "\udc00",
    "../x",
    "\0",
    "x" * 5000,
)


class Supply:
    r"""Bytes that are used up; when they are over, every choice is the first.

    Examples
    --------
    >>> supply = Supply(b"\x02\x03abcd")
    >>> supply.below(5), supply.piece(), supply.rest()
    (2, b'abc', b'd')
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def below(self, limit: int) -> int:
        return self.byte() % limit

    def choice(self, options: typing.Sequence[Any]) -> Any:
        return options[self.below(len(options))]

    def take(self, nbytes: int) -> bytes:
        taken = self._data[self._at : self._at + nbytes]
        self._at += nbytes
        return taken

    def piece(self) -> bytes:
        return self.take(self.byte())

    def rest(self) -> bytes:
        return self.take(len(self._data))

    def edited(self, data: bytes) -> bytes:
        """The same with a few changes: a byte another, some put in, some left out."""
        changed = bytearray(data)
        for _ in range(self.below(4)):
            at = (self.byte() << 8 | self.byte()) % (len(changed) + 1)
            how = self.below(4)
            if how == 0:
                changed[at : at + 1] = self.take(1)
            elif how == 1:
                changed[at:at] = self.piece()
            elif how == 2:
                del changed[at : at + 1 + self.byte()]
            elif at < len(changed):
                changed[at] ^= 1 << self.below(8)
        return bytes(changed)

    def number(self) -> int:
        chosen = self.byte()
        return chosen if chosen < 128 else _EDGES[chosen % len(_EDGES)]

    def text(self) -> str:
        chosen = self.byte()
        if chosen < 128:
            return _WORDS[chosen % len(_WORDS)].encode(errors="replace").decode()
        return self.take(chosen & 31).decode("latin-1")

    def value(self, kind: Any) -> Any:
        """Some value of an annotated type."""
        origin, inside = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Literal:
            return self.choice(inside)
        if origin in {typing.Union, types.UnionType}:
            return self.value(self.choice(inside))
        if origin is tuple and Ellipsis not in inside:
            return tuple(self.value(its) for its in inside)
        if origin in {tuple, list}:
            n_items = self.below(5) if self.byte() < 250 else 300
            return [self.value(inside[0]) for _ in range(n_items)]
        if origin in {dict, collections.abc.Mapping}:
            return {self.value(inside[0]): self.value(inside[1]) for _ in range(self.below(4))}
        if kind is Any:
            return self.choice((None, 1, "x", [1], {"a": 1}))
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self.record(kind)
        if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
            return kind(
                **{name: self.value(its) for name, its in typing.get_type_hints(kind).items()}
            )
        made = {
            int: self.number, str: self.text, bytes: self.piece, float: lambda: self.choice(_REALS),
            bool: lambda: self.below(2) == 1, type(None): lambda: None,
        }  # fmt: skip
        return made[kind]()

    def record(self, kind: Any) -> Any:
        """Some record of a type, or of one of a union; most fields are of the right type."""
        if typing.get_args(kind):
            kind = self.choice(typing.get_args(kind))
        hints = typing.get_type_hints(kind)
        return kind(**{name: self.value(hints[name]) for name in kind.__struct_fields__})
