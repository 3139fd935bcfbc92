"""Make texts of errors, and text that can be sent."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable
from typing import Any

from ..cell import from_cell

CUT = 100_000  # longest error text that is shown, in characters


def escape_surrogates(text: str) -> str:
    r"""Escape surrogates as Python's source does.

    Surrogates are half characters, as in odd file names.

    Examples
    --------
    >>> escape_surrogates("caf\udce9")
    'caf\\udce9'
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def cut(text: str) -> str:
    """Shorten a long error text, as of a huge array, visibly."""
    return text if len(text) <= CUT else f"{text[:CUT]} … and {len(text) - CUT:,} more characters"


def text_of(error: BaseException) -> str:
    """Return the text of a user's error, or why there is none.

    Examples
    --------
    >>> text_of(ValueError("no"))
    'no'
    """
    try:
        return str.__str__(str(error))  # a user's subclass of str has methods of its own
    except BaseException as refused:  # noqa: BLE001 - __str__ of a user's error may raise anything
        return f"its text cannot be had: {name_of(type(refused))}"


def name_of(kind: type) -> str:
    """Return a class's name, whatever its metaclass does.

    Examples
    --------
    >>> name_of(ValueError)
    'ValueError'
    """
    name: str = type.__dict__["__name__"].__get__(kind)
    return name


def describe_error(error: BaseException) -> str:
    """Return an error as text, from the first cell frame on."""
    frames = from_cell(error.__traceback__) or error.__traceback__
    return "".join(traceback.format_exception(type(error), error, frames)).rstrip("\n")


def packs_anything(pack: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Wrap a Jupyter session's packer so that it escapes surrogates.

    Otherwise the message would be lost, and if it is a reply its cell would never end.
    """

    def pack_anything(content: Any) -> bytes:
        try:
            return pack(content)
        except UnicodeEncodeError:
            text = json.dumps(content, default=str, ensure_ascii=False)
            return re.sub("[\ud800-\udfff]", lambda half: f"\\\\u{ord(half[0]):04x}", text).encode()

    return pack_anything
