"""A `Rendezvous` of ranks that are threads of one process."""

from __future__ import annotations

import threading

from phalanx.distributed.connect.rendezvous import name_ranks
from phalanx.distributed.control import Deadline
from phalanx.errors import DistributedError


class _Board:
    """Rounds of a `MemoryRendezvous`; the condition's lock guards every field."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.rounds: list[dict[int, bytes]] = []
        self.given_up: str | None = None


class MemoryRendezvous:
    """Rendezvous of threads in one process; construct with `of_size`."""

    def __init__(self, board: _Board, rank: int) -> None:
        self._board = board
        self._rank = rank
        self._round = 0

    @classmethod
    def of_size(cls, size: int) -> list[MemoryRendezvous]:
        """Return connected rendezvous objects, one per rank."""
        board = _Board(size)
        return [cls(board, rank) for rank in range(size)]

    def all_gather(self, data: bytes, *, timeout: float | None) -> list[bytes]:
        """Do as `Rendezvous.all_gather`; a timeout ends it for all ranks."""
        board, number = self._board, self._round
        self._round += 1
        deadline = Deadline(timeout)
        with board.changed:
            while len(board.rounds) <= number:
                board.rounds.append({})
            parts = board.rounds[number]
            parts[self._rank] = data
            board.changed.notify_all()
            while len(parts) < board.size:
                if board.given_up is not None:
                    raise DistributedError(board.given_up)
                if not board.changed.wait(deadline.remaining()) and len(parts) < board.size:
                    missing = [rank for rank in range(board.size) if rank not in parts]
                    board.given_up = f"rank {self._rank} gave up the rendezvous"
                    board.changed.notify_all()
                    msg = f"{name_ranks(missing)} did not come to the rendezvous within {deadline}"
                    raise TimeoutError(msg)
            return [parts[rank] for rank in range(board.size)]
