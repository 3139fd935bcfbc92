"""JSON whose values know their line, so that a mistake in a hostfile can be shown where it is.

The parser is Python's own, in the form it has where its C form is missing; nothing of hosts is here.
"""

from __future__ import annotations

import bisect
import json
import json.decoder
import json.scanner
from dataclasses import dataclass
from typing import Any

__all__ = ["Node", "TwiceError", "parse_json"]


@dataclass(frozen=True)
class Node:
    """A value and its line: a dict of nodes, a list of nodes, or a plain value."""

    value: Any
    line: int

    def shown(self) -> str:
        """The value as it is told of in an error: short."""
        if isinstance(self.value, dict):
            return "an object" if self.value else "{}"
        if isinstance(self.value, list):
            return "a list" if self.value else "[]"
        text = json.dumps(self.value)
        return text if len(text) <= 60 else f"{text[:57]}..."


class TwiceError(ValueError):
    """An object has a key twice; `line` is the second one's."""

    def __init__(self, key: str, line: int) -> None:
        super().__init__(key, line)
        self.key = key
        self.line = line


class _Decoder(json.JSONDecoder):
    """A decoder that wraps each value of an object or list into a `Node`."""

    def __init__(self, text: str) -> None:
        super().__init__(object_pairs_hook=_members)
        self._breaks = [place for place, letter in enumerate(text) if letter == "\n"]
        self.parse_object = self._object
        self.parse_array = self._array
        # Only the form in Python calls the two above.
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]

    def line(self, place: int) -> int:
        return bisect.bisect_left(self._breaks, place) + 1

    def _placed(self, scan_once: Any) -> Any:
        def scan(text: str, place: int) -> tuple[Node, int]:
            value, end = scan_once(text, place)
            return Node(value, self.line(place)), end

        return scan

    def _object(self, start: Any, strict: bool, scan_once: Any, *rest: Any) -> Any:
        parse = json.decoder.JSONObject  # type: ignore[attr-defined]
        return parse(start, strict, self._placed(scan_once), *rest)

    def _array(self, start: Any, scan_once: Any, *rest: Any) -> Any:
        parse = json.decoder.JSONArray  # type: ignore[attr-defined]
        return parse(start, self._placed(scan_once), *rest)


def _members(pairs: list[tuple[str, Node]]) -> dict[str, Node]:
    members: dict[str, Node] = {}
    for key, node in pairs:
        if key in members:
            raise TwiceError(key, node.line)
        members[key] = node
    return members


def parse_json(text: str) -> Node:
    r"""Parse a text of JSON.

    Raises
    ------
    json.JSONDecodeError
        It is none.
    TwiceError
        An object has a key twice.
    ValueError, RecursionError
        A number is too long, or it is nested too deeply.

    Examples
    --------
    >>> node = parse_json('{\n"a": 1}')
    >>> node.value["a"]
    Node(value=1, line=2)
    """
    decoder = _Decoder(text)
    value = decoder.decode(text)
    return Node(value, decoder.line(len(text) - len(text.lstrip())))
