"""send and recv: a header, then the array, between two ranks of a group.

Up to 64 KiB on their way to a rank are copied, so that ranks which both send first do not wait
for each other. MPI moves them while this rank is in some operation, or ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._header import HEADER_NBYTES

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["BUFFERED_NBYTES", "Pairs", "Wait"]

Array = NDArray[Any]
Wait = Callable[[Callable[[], object], int], None]

BUFFERED_NBYTES = 64 << 10
_HEADER_TAG, _ARRAY_TAG = 1, 2


class _Parcel(NamedTuple):
    """What was sent and has perhaps not left yet."""

    requests: list[MPI.Request]
    nbytes: int
    held: object

    def has_left(self) -> bool:
        return all(request.Test() for request in self.requests)


class Pairs:
    """The point-to-point traffic of one group; its owner lets one thread in at a time."""

    def __init__(self, mpi: Any, comm: MPI.Intracomm) -> None:
        self._mpi = mpi
        self._comm = comm
        size = comm.Get_size()
        self.sent = [0] * size  # by peer: how many messages
        self.received = [0] * size
        self._outbox: list[deque[_Parcel]] = [deque() for _ in range(size)]

    def send(self, header: bytes, x: Array, dst: int, wait: Wait, max_count: int) -> None:
        """Send; returns when ``x`` may be changed."""
        box = self._outbox[dst]
        is_small = x.nbytes <= BUFFERED_NBYTES
        if is_small:
            x = x.copy()
        announced = np.frombuffer(header, np.uint8)
        requests = [self._comm.Isend([announced, self._mpi.BYTE], dst, _HEADER_TAG)]
        requests += [
            self._comm.Isend([part, self._mpi.BYTE], dst, _ARRAY_TAG)
            for part in _parts(x, max_count)
        ]
        box.append(_Parcel(requests, x.nbytes, (announced, x)))

        def may_go() -> bool:
            while box and box[0].has_left():
                box.popleft()
            return not box or (is_small and sum(p.nbytes for p in box) <= BUFFERED_NBYTES)

        wait(may_go, x.nbytes)

    def receive_header(self, src: int, wait: Wait) -> bytes:
        """Return what the peer says it sends."""
        came = np.empty(HEADER_NBYTES, np.uint8)
        request = self._comm.Irecv([came, self._mpi.BYTE], src, _HEADER_TAG)
        try:
            wait(request.Test, 0)
        except BaseException:
            # Nothing was there to be received: this one can be taken back.
            request.Cancel()
            request.Wait()
            raise
        return came.tobytes()

    def receive(self, out: Array, src: int, wait: Wait, max_count: int) -> None:
        """Take in the array that the header has announced."""
        for part in _parts(out, max_count):
            request = self._comm.Irecv([part, self._mpi.BYTE], src, _ARRAY_TAG)
            wait(request.Test, part.nbytes)

    def is_idle(self) -> bool:
        """Whether all that was sent has left; asks MPI."""
        for box in self._outbox:
            while box and box[0].has_left():
                box.popleft()
        return not any(self._outbox)


def _parts(array: Array, max_count: int) -> list[Array]:
    data = array.view(np.uint8)
    return [data[start : start + max_count] for start in range(0, data.size, max_count)]
