"""How much a host may say of what its ranks print before the root has asked for more.

Pure: costs, by rank and stream. A host of ours keeps to it; one that is broken must not fill the
root's memory.
"""

from __future__ import annotations

from phalanx.protocol.host_commands import CommandOutput, OutputDone
from phalanx.protocol.scripts import WINDOW_COST, cost

from ._streams import READ_NBYTES

__all__ = ["OutputWindow"]

# What a pipe may still hold when its writer has ended, which is said whatever the window says: it
# may be the user's who has enlarged it, beyond /proc/sys/fs/pipe-max-size where he is root.
_LAST_NBYTES = 64 << 20
_MOST_COST = WINDOW_COST + (1 + _LAST_NBYTES // READ_NBYTES) * cost(bytes(READ_NBYTES))


class OutputWindow:
    """What of a host's ranks' output is on its way through the root.

    Examples
    --------
    >>> window = OutputWindow()
    >>> piece = CommandOutput(3, "stdout", bytes(1 << 16))
    >>> said = [window.take(piece) for _ in range(1100)]
    >>> said.index(False) * cost(piece.data) > WINDOW_COST
    True
    >>> window.done(OutputDone(3, "stdout", 100 << 16)); window.take(piece)
    True
    """

    def __init__(self) -> None:
        self._in_hand: dict[tuple[int, str], int] = {}

    def take(self, message: CommandOutput) -> bool:
        """Count a piece; False if there are more than there may be."""
        key = message.rank, message.stream
        self._in_hand[key] = self._in_hand.get(key, 0) + cost(message.data)
        return self._in_hand[key] <= _MOST_COST

    def done(self, message: OutputDone) -> None:
        """Learn that some of it has been written out."""
        key = message.rank, message.stream
        self._in_hand[key] = max(0, self._in_hand.get(key, 0) - message.cost)
