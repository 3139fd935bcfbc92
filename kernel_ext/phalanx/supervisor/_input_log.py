"""One log of input that every rank reads at its own pace.

Pure: bytes and places; it knows no pipe and no rank's process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

__all__ = ["MAX_BEHIND", "InputLog"]

# What may lie in memory for a rank that does not read while another does (all share one copy).
MAX_BEHIND = 64 << 20


class InputLog:
    """Input for all ranks, kept until the slowest that still reads has taken it.

    The fastest reader says how much is wanted: no rank is held up by one that does not read. A
    rank more than ``max_behind`` bytes behind the fastest is given up (`laggards`).

    Examples
    --------
    >>> log = InputLog([0, 1])
    >>> log.append(b"yes")
    >>> bytes(log.next(0)), log.n_taken
    (b'yes', 0)
    >>> log.advance(0, 3)
    >>> log.next(0), bytes(log.next(1)), log.n_taken
    (None, b'yes', 3)
    """

    def __init__(self, ranks: Iterable[int], max_behind: int = MAX_BEHIND) -> None:
        self._places = dict.fromkeys(ranks, 0)
        self._pieces: deque[tuple[int, bytes]] = deque()  # (place of its first byte, bytes)
        self._n_bytes = 0
        self.is_ended = False
        self._max_behind = max_behind
        self.n_taken = 0  # by the fastest

    def append(self, data: bytes) -> None:
        """Add input; no bytes are its end, after which nothing is added."""
        if not data:
            self.is_ended = True
        elif not self.is_ended:
            if self._places:
                self._pieces.append((self._n_bytes, data))
            self._n_bytes += len(data)

    def next(self, rank: int) -> memoryview | None:
        """Return some of what a rank has not got yet, None if it has everything so far."""
        return self.after(self._places.get(rank, self._n_bytes))

    def after(self, place: int) -> memoryview | None:
        """Return some of what is kept after a place, None if that is all so far."""
        for start, data in self._pieces:
            if place < start + len(data):
                return memoryview(data)[max(0, place - start) :]
        return None

    def place(self, rank: int) -> int | None:
        """Return how much a rank has been given; None if it takes no more."""
        return self._places.get(rank)

    def advance(self, rank: int, nbytes: int) -> None:
        """Note that a rank has been given ``nbytes`` more."""
        if rank not in self._places:
            return
        self._places[rank] = min(self._places[rank] + nbytes, self._n_bytes)
        self.n_taken = max(self.n_taken, self._places[rank])
        self._trim()

    def is_at_end(self, rank: int) -> bool:
        """Whether a rank has been given all there will ever be."""
        return self.is_ended and self._places.get(rank, self._n_bytes) == self._n_bytes

    def drop(self, rank: int) -> None:
        """Forget a rank that takes no more."""
        if self._places.pop(rank, None) is not None:
            self._trim()

    def laggards(self) -> list[tuple[int, int]]:
        """Ranks that are too far behind the fastest, and by how many bytes."""
        return [
            (rank, self.n_taken - place)
            for rank, place in self._places.items()
            if self.n_taken - place > self._max_behind
        ]

    def _trim(self) -> None:
        slowest = min(self._places.values(), default=self._n_bytes)
        while self._pieces and self._pieces[0][0] + len(self._pieces[0][1]) <= slowest:
            self._pieces.popleft()
