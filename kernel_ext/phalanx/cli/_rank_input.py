"""Input for many ranks: each gets all of it, at its own speed.

The mpiruns forward input to one rank only, and lose or choke on more than a pipe holds (tried:
Open MPI 5.0, MPICH 5.0).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence

__all__ = ["RankInput"]

_AHEAD_NBYTES = 1 << 20  # that even the fastest rank has not taken: read no more
_BEHIND_NBYTES = 64 << 20  # that a rank has not taken while others have: its input ends


class RankInput:
    """Writes what it is given to the pipes of all ranks, and closes them at the end.

    Parameters
    ----------
    pipes : sequence of int
        By rank; theirs from here on.
    on_cut : callable
        Gets a rank that has left too much unread, and how much that was.
    """

    def __init__(self, pipes: Sequence[int], on_cut: Callable[[int, int], None]) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[int, deque[bytes]] = {rank: deque() for rank in range(len(pipes))}
        self._nbytes = dict.fromkeys(self._waiting, 0)
        self._on_cut = on_cut
        for rank, fd in enumerate(pipes):
            # Daemons: a rank may never read what it was given.
            threading.Thread(target=self._feed, args=(rank, fd), daemon=True).start()

    def give(self, data: bytes) -> None:
        """Take input; the end as no bytes. Waits while no rank reads."""
        with self._changed:
            while self._waiting and min(self._nbytes.values()) > _AHEAD_NBYTES:
                self._changed.wait()
            for rank, waiting in list(self._waiting.items()):
                waiting.append(data)
                self._nbytes[rank] += len(data)
                if self._nbytes[rank] > _BEHIND_NBYTES:
                    self._on_cut(rank, self._nbytes[rank])
                    self._forget(rank)
            self._changed.notify_all()

    def _forget(self, rank: int) -> None:
        waiting = self._waiting.pop(rank, None)
        self._nbytes.pop(rank, None)
        if waiting is not None:
            waiting.clear()
            waiting.append(b"")

    def _feed(self, rank: int, fd: int) -> None:
        waiting = self._waiting[rank]
        try:
            while data := self._next(waiting):
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                with self._changed:
                    if rank in self._nbytes:
                        self._nbytes[rank] -= len(data)
                    self._changed.notify_all()
        except BrokenPipeError:  # all is over
            pass
        finally:
            os.close(fd)
            with self._changed:
                self._forget(rank)
                self._changed.notify_all()

    def _next(self, waiting: deque[bytes]) -> bytes:
        with self._changed:
            while not waiting:
                self._changed.wait()
            return waiting.popleft()
