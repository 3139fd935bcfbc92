"""Text on its way out of a rank: bytes and lone surrogates, which no message can carry.

It knows strings and a stream to write to; nothing of messages or kernels.
"""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Callable
from typing import Any, TextIO

__all__ = ["BytesToText", "cut", "escape_surrogates", "packs_anything"]

CUT = 100_000  # characters of an error's text that anybody is shown

_AS_JSON = "phalanx.surrogates_in_json"


def escape_surrogates(text: str) -> str:
    r"""Write surrogates (half characters, as in odd file names) as Python's source does.

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
    """Shorten the text of an error (somebody's array of a million numbers) and say so."""
    return text if len(text) <= CUT else f"{text[:CUT]} … and {len(text) - CUT:,} more characters"


def packs_anything(pack: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Wrap a Jupyter session's packer: what holds surrogates is sent with them escaped.

    Otherwise the message is lost, and where it is a reply its cell never ends.
    """

    def pack_anything(content: Any) -> bytes:
        try:
            return pack(content)
        except UnicodeEncodeError:
            text = json.dumps(content, default=str, ensure_ascii=False)
            return text.encode(errors=_AS_JSON)

    return pack_anything


def _escape_in_json(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    half = error.object[error.start : error.end]
    return "".join(f"\\\\u{ord(character):04x}" for character in half), error.end


codecs.register_error(_AS_JSON, _escape_in_json)


class BytesToText(io.BufferedIOBase):
    """The ``buffer`` of a text stream that has no bytes below: it decodes what is written.

    So bytes and text stand in the order they were written; what is no UTF-8 becomes ``U+FFFD``.
    """

    def __init__(self, text: TextIO) -> None:
        self._text = text
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def writable(self) -> bool:
        """Tell that one can write."""
        return True

    def fileno(self) -> int:
        """Return the stream's descriptor."""
        return self._text.fileno()

    def write(self, data: Any) -> int:
        """Decode bytes (anything with a buffer) and write the text."""
        view = memoryview(data)
        self._text.write(self._decoder.decode(view.tobytes()))
        return view.nbytes

    def flush(self) -> None:
        """Flush the stream."""
        self._text.flush()
