"""The bytes of each collective, once all ranks are known to be in it.

Each function starts MPI's nonblocking operation (or several, one after the other) and waits with
`wait`. Counts that MPI's int cannot hold are cut up, or made one element of a large datatype.

The order of summation: ranks 0, 1, ..., p - 1, one after the other, for arrays that travel with
the headers (INLINE_NBYTES), halves, integers of 8 and 16 bits, and max and min of floats and
complex numbers, which `fold` reduces. All other sums are added in the order that the library
chooses, by its own rules and the places of the ranks. All ranks get the same bits; that the same
call gives them again, MPI recommends strongly to its libraries, and does not demand (MPI 4.1,
section 6.9.1). So sums of floats may differ in the last bits between two libraries, and from those
of the ring backend; integers never do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ._elements import fold, native

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Mover"]

Array = NDArray[Any]

# Of one call: below the limit of an int, with room for implementations that add counts up.
MAX_COUNT = 1 << 30
# What a rank holds of the others at a time while it reduces by itself.
PIECE_NBYTES = 16 << 20
_UNIT_NBYTES = 1 << 20


class Mover:
    """The collectives over one communicator; arrays are flat, of the dtype they are stored in.

    Parameters
    ----------
    wait : callable
        Gets a request and the bytes that it moves; returns when it is complete.
    keep : callable
        Gets what MPI may use until the operation is over.
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
        """Reduce; all ranks get the same bits, as MPI demands of every implementation.

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
        """Each rank reduces its share of all and hands it to all.

        Sends ``2 (size - 1) / size`` times the array, as the best of MPI's own do.
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
        """Add up; each rank gets its share."""
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
        """Put the arrays of all one after the other."""
        own = out[self._rank * x.size : (self._rank + 1) * x.size]
        with self._block(x.nbytes) as (count, datatype):
            given = self._mpi.IN_PLACE if _is_same(x, own) else [x, count, datatype]
            self._wait(self._comm.Iallgather(given, [out, count, datatype]), out.nbytes)

    def all_to_all(self, x: Array, out: Array) -> None:
        """Give part i to rank i."""
        if _is_same(x, out):
            x = x.copy()
            self._keep(x)
        with self._block(x.nbytes // self._size) as (count, datatype):
            request = self._comm.Ialltoall([x, count, datatype], [out, count, datatype])
            self._wait(request, out.nbytes)

    def broadcast(self, x: Array, out: Array, root: int) -> None:
        """Give all what ``root`` has."""
        held = x if self._rank == root else out
        with self._block(held.nbytes) as (count, datatype):
            self._wait(self._comm.Ibcast([held, count, datatype], root), held.nbytes)
        if held is x and not _is_same(x, out):
            out[...] = x

    @contextmanager
    def _block(self, nbytes: int) -> Iterator[tuple[int, MPI.Datatype]]:
        """Say ``nbytes`` as a count and a datatype that an int can hold."""
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
            block.Free()  # MPI keeps it as long as an operation uses it


def _is_same(a: Array, b: Array) -> bool:
    return a.size == b.size and a.ctypes.data == b.ctypes.data
