"""Send words of the operating system between processes.

Arguments, paths and variables are bytes for the system. In Python they are `str` with surrogates
for bytes that are not text (PEP 383), which neither JSON nor MessagePack can hold. On the wire such
text is UTF-8 with surrogates, whatever encoding the file systems of the two processes have.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")


def os_bytes(text: str) -> bytes:
    r"""Return the bytes that the system gets for ``text``.

    Text that the locale cannot encode is encoded in UTF-8, as hostfiles are.

    Raises
    ------
    ValueError
        ``text`` holds half a character.

    Examples
    --------
    >>> os_bytes("a\udcff")
    b'a\xff'
    """
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        pass
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        msg = f"{text!r} holds half a character: {text[error.start]!r}"
        raise ValueError(msg) from None


def shown(text: str) -> str:
    r"""Replace what is no character, to send or print ``text``.

    Examples
    --------
    >>> print(shown("a\udcff"), shown("a\ud800"))
    a\xff a\ud800
    """
    try:
        return text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()


def encode_options(options: msgspec.Struct) -> bytes:
    """Return one line of JSON; each text in it arrives unchanged.

    Raises
    ------
    ValueError
        A text holds half a character.
    """
    plain = msgspec.to_builtins(options, str_keys=True)
    return (
        json.dumps(
            _mapped(plain, lambda text: os_bytes(text).decode(errors="surrogateescape"))
        ).encode()
        + b"\n"
    )


def decode_options(line: bytes, kind: type[_T]) -> _T:
    """Read a line of `encode_options`.

    Raises
    ------
    ValueError
        The line is no JSON, or is not of this kind.
    """
    texts = _mapped(
        json.loads(line), lambda text: os.fsdecode(text.encode(errors="surrogateescape"))
    )
    return msgspec.convert(texts, kind, str_keys=True)


def encode_message(message: object) -> bytes:
    """Return a message in MessagePack, with its texts as `shown`."""
    try:
        return msgspec.msgpack.encode(message)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(message, builtin_types=(bytes,))
        return msgspec.msgpack.encode(_mapped(plain, shown))


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return a structure of built-in types with all texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_mapped(key, change): _mapped(item, change) for key, item in value.items()}
    return [_mapped(item, change) for item in value] if isinstance(value, list | tuple) else value
