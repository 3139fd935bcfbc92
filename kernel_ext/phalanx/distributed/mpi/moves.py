"""Move the bytes of each collective, of send and of recv.

Each function starts one nonblocking MPI operation (or several in sequence) and waits with `wait`.
A count too large for MPI's int is split, or sent as one element of a large datatype.

Order of summation: `fold` reduces in rank order 0, 1, ..., p - 1. It reduces arrays that travel
with the headers (INLINE_NBYTES), float16 and bfloat16, integers of 8 and 16 bits, and max and min
of floats and complex numbers. In all other sums the MPI library chooses the order, by its own rules
and the placement of the ranks. All ranks get the same bits. MPI strongly recommends that a repeated
call gives the same bits, but does not require it (MPI 4.1, section 6.9.1). So sums of floats may
differ in the last bits between two libraries, and from the ring backend; integers never differ.

Up to 64 KiB in flight to a rank are copied, so that two ranks that both send first do not deadlock.
MPI moves these bytes while this rank is in any operation, or at shutdown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .wire import HEADER_NBYTES, fold, native

if TYPE_CHECKING:
    from mpi4py import MPI

Array = NDArray[Any]

# Elements per call: below the limit of an int, with room for implementations that add counts.
MAX_COUNT = 1 << 30
# Bytes of other ranks' data that a rank holds at a time while it reduces by itself.
PIECE_NBYTES = 16 << 20
_UNIT_NBYTES = 1 << 20

Wait = Callable[[Callable[[], object], int], None]
BUFFERED_NBYTES = 64 << 10


class Mover:
    """The collectives over one communicator; arrays are flat, in their storage dtype.

    ``wait`` gets a request and its bytes, and returns when the request is complete. ``keep`` gets
    an object that MPI may use until the operation is over.
    """

    def __init__(
        self,
        mpi: Any,
        comm: MPI.Intracomm,
        wait: Callable[[MPI.Request, int], None],
        keep: Callable[[object], None],
    ) -> None:
        self._mpi = mpi
        self._comm = comm
        self._rank: int = comm.Get_rank()
        self._size: int = comm.Get_size()
        self._wait = wait
        self._keep = keep

    def all_reduce(self, how: str, name: str, x: Array, out: Array) -> None:
        """Reduce; MPI requires that all ranks get the same bits.

        Source: MPI 4.1, section 6.9.6, "identical results".
        """
        own = native(self._mpi, how, name)
        if own is None:
            self._fold_all(how, name, x, out)
            return
        datatype, op = own
        source = self._mpi.IN_PLACE if _is_same(x, out) else x
        for start in range(0, x.size, MAX_COUNT):
            part = out[start : start + MAX_COUNT]
            given = source if source is not x else [x[start : start + part.size], datatype]
            self._wait(self._comm.Iallreduce(given, [part, datatype], op), part.nbytes)

    def _fold_all(self, how: str, name: str, x: Array, out: Array) -> None:
        """Reduce this rank's share with `fold` and gather the shares.

        Sends ``2 (size - 1) / size`` times the array, like MPI's best algorithms.
        """
        step = max(1, PIECE_NBYTES // x.itemsize)
        for start in range(0, x.size, step):
            piece, result = x[start : start + step], out[start : start + step]
            bounds = [piece.size * r // self._size for r in range(self._size + 1)]
            places = [x.itemsize * bound for bound in bounds[:-1]]
            counts = [x.itemsize * (b - a) for a, b in pairwise(bounds)]
            first, last = bounds[self._rank], bounds[self._rank + 1]
            rows = np.empty((self._size, last - first), x.dtype)
            self._keep(rows)
            byte = self._mpi.BYTE
            request = self._comm.Ialltoallv(
                [piece, (counts, places), byte], [rows, counts[self._rank], byte]
            )
            self._wait(request, piece.nbytes)
            result[first:last] = fold(how, name, rows)
            request = self._comm.Iallgatherv(self._mpi.IN_PLACE, [result, (counts, places), byte])
            self._wait(request, piece.nbytes)

    def sum_scatter(self, name: str, x: Array, out: Array) -> None:
        """Sum over all ranks; each rank gets its share."""
        own = native(self._mpi, "sum", name)
        if own is not None and x.size <= MAX_COUNT:
            datatype, op = own
            request = self._comm.Ireduce_scatter_block([x, datatype], [out, datatype], op)
            self._wait(request, x.nbytes)
            return
        shares = x.reshape(self._size, out.size)
        step = max(1, PIECE_NBYTES // (x.itemsize * self._size))
        for start in range(0, out.size, step):
            given = np.ascontiguousarray(shares[:, start : start + step])
            rows = np.empty_like(given)
            self._keep((given, rows))
            byte = self._mpi.BYTE
            self._wait(self._comm.Ialltoall([given, byte], [rows, byte]), given.nbytes)
            out[start : start + step] = fold("sum", name, rows)

    def all_gather(self, x: Array, out: Array) -> None:
        """Concatenate the arrays of all ranks."""
        own = out[self._rank * x.size : (self._rank + 1) * x.size]
        with self._block(x.nbytes) as (count, datatype):
            given = self._mpi.IN_PLACE if _is_same(x, own) else [x, count, datatype]
            self._wait(self._comm.Iallgather(given, [out, count, datatype]), out.nbytes)

    def all_to_all(self, x: Array, out: Array) -> None:
        """Send part i to rank i."""
        if _is_same(x, out):
            x = x.copy()
            self._keep(x)
        with self._block(x.nbytes // self._size) as (count, datatype):
            request = self._comm.Ialltoall([x, count, datatype], [out, count, datatype])
            self._wait(request, out.nbytes)

    def broadcast(self, x: Array, out: Array, root: int) -> None:
        """Copy the array of ``root`` to all ranks."""
        held = x if self._rank == root else out
        with self._block(held.nbytes) as (count, datatype):
            self._wait(self._comm.Ibcast([held, count, datatype], root), held.nbytes)
        if held is x and not _is_same(x, out):
            out[...] = x

    @contextmanager
    def _block(self, nbytes: int) -> Iterator[tuple[int, MPI.Datatype]]:
        """Express ``nbytes`` as a datatype and a count that fits an int."""
        byte: MPI.Datatype = self._mpi.BYTE
        if nbytes <= MAX_COUNT:
            yield nbytes, byte
            return
        whole, rest = divmod(nbytes, _UNIT_NBYTES)
        unit = byte.Create_contiguous(_UNIT_NBYTES)
        block = self._mpi.Datatype.Create_struct([whole, rest], [0, nbytes - rest], [unit, byte])
        unit.Free()
        block.Commit()
        try:
            yield 1, block
        finally:
            block.Free()  # MPI keeps the datatype as long as an operation uses it


def _is_same(a: Array, b: Array) -> bool:
    return a.size == b.size and a.ctypes.data == b.ctypes.data


_HEADER_TAG, _ARRAY_TAG = 1, 2


class _PendingSend(NamedTuple):
    """A message that may not have left yet."""

    requests: list[MPI.Request]
    nbytes: int
    held: object

    def has_left(self) -> bool:
        return all(request.Test() for request in self.requests)


class Pairs:
    """Point-to-point messages of one group; not thread-safe."""

    def __init__(self, mpi: Any, comm: MPI.Intracomm) -> None:
        self._mpi = mpi
        self._comm = comm
        size = comm.Get_size()
        self.sent = [0] * size  # number of messages, by peer
        self.received = [0] * size
        self._outbox: list[deque[_PendingSend]] = [deque() for _ in range(size)]

    def send(self, header: bytes, x: Array, dst: int, wait: Wait) -> None:
        """Send; return when ``x`` may be changed."""
        box = self._outbox[dst]
        is_small = x.nbytes <= BUFFERED_NBYTES
        if is_small:
            x = x.copy()
        announced = np.frombuffer(header, np.uint8)
        requests = [self._comm.Isend([announced, self._mpi.BYTE], dst, _HEADER_TAG)]
        requests += [
            self._comm.Isend([part, self._mpi.BYTE], dst, _ARRAY_TAG) for part in _parts(x)
        ]
        box.append(_PendingSend(requests, x.nbytes, (announced, x)))

        def may_go() -> bool:
            while box and box[0].has_left():
                box.popleft()
            return not box or (is_small and sum(p.nbytes for p in box) <= BUFFERED_NBYTES)

        wait(may_go, x.nbytes)

    def receive_header(self, src: int, wait: Wait) -> bytes:
        """Receive the header of the peer's next message."""
        came = np.empty(HEADER_NBYTES, np.uint8)
        request = self._comm.Irecv([came, self._mpi.BYTE], src, _HEADER_TAG)
        try:
            wait(request.Test, 0)
        except BaseException:
            # No message has arrived, so the receive can be cancelled.
            request.Cancel()
            request.Wait()
            raise
        return came.tobytes()

    def receive(self, out: Array, src: int, wait: Wait) -> None:
        """Receive the array that the header announced."""
        for part in _parts(out):
            request = self._comm.Irecv([part, self._mpi.BYTE], src, _ARRAY_TAG)
            wait(request.Test, part.nbytes)

    def is_idle(self) -> bool:
        """Whether all messages have left; polls MPI."""
        for box in self._outbox:
            while box and box[0].has_left():
                box.popleft()
        return not any(self._outbox)


def _parts(array: Array) -> list[Array]:
    data = array.view(np.uint8)
    return [data[start : start + MAX_COUNT] for start in range(0, data.size, MAX_COUNT)]
