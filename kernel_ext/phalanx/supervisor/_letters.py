"""One end of a line between supervisors: nothing said on it is lost or taken twice.

Pure: numbers and bytes. Connections, of which a line may have several in its life, are others'.
"""

from __future__ import annotations

from collections import deque

import msgspec

from phalanx.protocol.host_letters import FromHostLetter, ToHostLetter
from phalanx.protocol.hosts import FromHost, ToHost

__all__ = ["Letters", "Nonsense"]


class Nonsense(ValueError):
    """The other end has said what cannot be: numbers that were left out, or not given yet."""


class Letters:
    """What this end has said and the other is not known to have, and how much it has heard.

    Examples
    --------
    >>> from phalanx.protocol.hosts import Beat
    >>> root, host = Letters(), Letters()
    >>> lost = root.write(Beat(1))
    >>> [host.read(msgspec.msgpack.decode(kept, type=ToHostLetter)) for kept in root.unheard * 2]
    [True, False]
    """

    def __init__(self) -> None:
        self._n_said = 0
        self._n_heard = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        self.kept_nbytes = 0

    def write(self, message: FromHost | ToHost) -> bytes:
        """Number a message, and keep it until it is known to be heard."""
        self._n_said += 1
        body = msgspec.msgpack.encode((self._n_said, self._n_heard, message))
        self._kept.append((self._n_said, body))
        self.kept_nbytes += len(body)
        return body

    def note(self, message: FromHost | ToHost) -> bytes:
        """Write a message that is of no use later: it is not kept."""
        return msgspec.msgpack.encode((0, self._n_heard, message))

    def read(self, letter: FromHostLetter | ToHostLetter) -> bool:
        """Take note of a letter; whether it is to be taken: it is new, or has no number.

        Raises
        ------
        Nonsense
            Its numbers cannot be.
        """
        if letter.heard > self._n_said or letter.number > self._n_heard + 1:
            msg = f"a letter with the number {letter.number} cannot come now"
            raise Nonsense(msg)
        while self._kept and self._kept[0][0] <= letter.heard:
            _, body = self._kept.popleft()
            self.kept_nbytes -= len(body)
        if not letter.number:
            return True
        is_new = letter.number == self._n_heard + 1
        self._n_heard = max(self._n_heard, letter.number)
        return is_new

    @property
    def unheard(self) -> tuple[bytes, ...]:
        """What the other end is not known to have, in order: to be said again."""
        return tuple(body for _, body in self._kept)
