"""An MPI group with the methods of the native one, and the way of a collective through it.

Headers are exchanged first (small arrays travel with them) and compared; then the bytes move.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from phalanx import _native
from phalanx.errors import NotSupported

from .._deadline import Deadline
from . import _moves
from ._elements import flat, fold, name_of, reduction
from ._header import HEADER_NBYTES, Header, describe_mismatch
from ._moves import Mover
from ._operation import EPOCH, INLINE_NBYTES, Operations
from ._pairs import Wait
from ._usage import check_arrays, check_peer, check_root
from ._work import MpiWork, Worker
from ._world import AbortedError, Reason

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["MpiEngine"]

Array = NDArray[Any]


class MpiEngine(Operations):
    """The operations of one MPI group; see `phalanx.distributed._engine.Engine`."""

    # -- the operations -----------------------------------------------------------------------

    def all_sum(self, x: Array, out: Array, timeout: float | None = None, dtype: str = "") -> None:
        """Sum over all ranks."""
        self._collective("all_sum", x, out, 0, timeout, dtype)

    def all_max(self, x: Array, out: Array, timeout: float | None = None, dtype: str = "") -> None:
        """Greatest over all ranks; NaN wins."""
        self._collective("all_max", x, out, 0, timeout, dtype)

    def all_min(self, x: Array, out: Array, timeout: float | None = None, dtype: str = "") -> None:
        """Least over all ranks; NaN wins."""
        self._collective("all_min", x, out, 0, timeout, dtype)

    def all_gather(
        self, x: Array, out: Array, timeout: float | None = None, dtype: str = ""
    ) -> None:
        """Arrays of all ranks one after the other."""
        self._collective("all_gather", x, out, 0, timeout, dtype)

    def sum_scatter(
        self, x: Array, out: Array, timeout: float | None = None, dtype: str = ""
    ) -> None:
        """This rank's share of the sum."""
        self._collective("sum_scatter", x, out, 0, timeout, dtype)

    def all_to_all(
        self, x: Array, out: Array, timeout: float | None = None, dtype: str = ""
    ) -> None:
        """Part i to rank i."""
        self._collective("all_to_all", x, out, 0, timeout, dtype)

    def broadcast(
        self, x: Array, out: Array, root: int, timeout: float | None = None, dtype: str = ""
    ) -> None:
        """What ``root`` has."""
        check_root(root, self.size)
        self._collective("broadcast", x, out, root, timeout, dtype)

    def barrier(self, timeout: float | None = None) -> None:
        """Wait for all ranks."""
        with self._operation("barrier", timeout) as deadline:
            self._seq += 1
            header = Header("barrier", self._seq, self._channel)
            with self._guard(header):
                self._meet(header, deadline)

    def send(self, x: Array, dst: int, timeout: float | None = None, dtype: str = "") -> None:
        """Send to one rank."""
        name = name_of(x, dtype)
        check_peer("send", dst, self.rank, self.size)
        with self._operation("send", timeout) as deadline:
            self._pairs.sent[dst] += 1
            header = self._header("send", self._pairs.sent[dst], x.shape, name)
            with self._guard(header, x):
                wait = self._pair_wait(header, dst, deadline)
                self._pairs.send(header.pack(), flat(x, name), dst, wait, _moves.MAX_COUNT)

    def recv(self, out: Array, src: int, timeout: float | None = None, dtype: str = "") -> None:
        """Receive from one rank."""
        name = name_of(out, dtype)
        check_peer("recv", src, self.rank, self.size)
        with self._operation("recv", timeout) as deadline:
            self._pairs.received[src] += 1
            header = self._header("recv", self._pairs.received[src], out.shape, name)
            with self._guard(header, out) as begun:
                wait = self._pair_wait(header, src, deadline)
                came = self._pairs.receive_header(src, wait)
                self._compare_pair(header, came, src)
                begun.append((out, name))
                self._pairs.receive(flat(out, name), src, wait, _moves.MAX_COUNT)

    def submit(
        self,
        op: str,
        x: Array,
        out: Array,
        root: int = 0,
        timeout: float | None = None,
        dtype: str = "",
    ) -> MpiWork:
        """Do a collective on this group's own thread, after all that were submitted before.

        Raises
        ------
        NotSupported
            This MPI lets only one thread in.
        """
        if not self._world.has_threads:
            msg = f"{op}: async_op needs MPI_THREAD_MULTIPLE, which this MPI does not give"
            raise NotSupported(msg)
        self._check_usable()
        check_root(root, self.size)
        name = name_of(x, dtype)
        check_arrays(op, x, out, name, name_of(out, dtype), self.rank, self.size)
        deadline = self._deadline(timeout)
        with self._worker_lock:
            self._check_open()  # again: `close` ends the thread with this lock
            if self._worker is None:
                self._worker = Worker("phalanx-mpi")
            run = partial(self._collective, op, x, out, root, deadline, dtype)
            work = MpiWork(op, run, deadline, self, self._me)
            self._worker.submit(work)
        return work

    def part(self, color: int, key: int = -1, timeout: float | None = None) -> MpiEngine | None:
        """Make groups of the ranks with the same color; None where it is negative."""
        asked = np.asarray([color, key], np.int64)
        with self._operation("split", timeout) as deadline:
            self._seq += 1
            header = Header("split", self._seq, self._channel)
            with self._guard(header):
                records = self._meet(header, deadline, asked)
                rows = records[:, HEADER_NBYTES : HEADER_NBYTES + asked.nbytes].copy()
                wishes = rows.view(np.int64).tolist()
                order = sorted(
                    (other_key if other_key >= 0 else rank, rank)
                    for rank, (other_color, other_key) in enumerate(wishes)
                    if other_color == color
                )
                ranks = [rank for _, rank in order]
                channel = self._channel_of(header, color)
                if color >= 0:
                    self._world.hear_of(channel)
                # MPI's int has no room for every color: the lowest rank of each part stands for it.
                undefined: int = self._world.mpi.UNDEFINED
                # Blocks, but only until the others, which are all here, have come as far.
                comm = self._comm.Split(
                    undefined if color < 0 else min(ranks), ranks.index(self.rank)
                )
        if color < 0:
            return None
        members = [self.members[rank] for rank in ranks]
        part = cast("MPI.Intracomm", comm)
        return MpiEngine(self._world, part, members, channel, self.host_names)

    def _channel_of(self, header: Header, color: int) -> int:
        """Number the part that a split makes of the ranks with this color, alike on all."""
        made = hashlib.blake2b(f"{self._channel}/{header.seq}/{color}".encode(), digest_size=8)
        return int.from_bytes(made.digest(), "little")

    # -- one collective -----------------------------------------------------------------------

    def _header(self, kind: str, seq: int, shape: tuple[int, ...], name: str) -> Header:
        count = int(np.prod(shape, dtype=np.int64))
        return Header(kind, seq, self._channel, EPOCH, name, shape, count)

    def _collective(
        self,
        op: str,
        x: Array,
        out: Array,
        root: int,
        timeout: float | Deadline | None,
        dtype: str,
    ) -> None:
        name = name_of(x, dtype)
        check_arrays(op, x, out, name, name_of(out, dtype), self.rank, self.size)
        with self._operation(op, timeout) as deadline:
            self._seq += 1
            header = Header(op, self._seq, self._channel, EPOCH, name, x.shape, x.size, root)
            with self._guard(header, x, out) as begun:
                # All judge by the same header, so all choose the same way.
                is_inline = x.nbytes <= INLINE_NBYTES
                source, result = flat(x, name), flat(out, name)
                records = self._meet(header, deadline, source if is_inline else None)
                begun.append((out, name))
                if is_inline:
                    rows = records[:, HEADER_NBYTES : HEADER_NBYTES + x.nbytes]
                    values = np.ascontiguousarray(rows).view(source.dtype)
                    self._finish_inline(op, name, values, result, root)
                else:
                    self._move(header, source, result, deadline)
        self._counts[0] += 1
        self._counts[1] += x.nbytes

    def _finish_inline(self, op: str, name: str, values: Array, result: Array, root: int) -> None:
        """All arrays have come with the headers: do the rest here, in the order of ranks."""
        share = slice(self.rank * result.size, (self.rank + 1) * result.size)
        if op == "broadcast":
            result[...] = values[root]
        elif op == "all_gather":
            result[...] = values.reshape(-1)
        elif op == "all_to_all":
            parts = values.reshape(self.size, self.size, -1)
            result[...] = parts[:, self.rank].reshape(-1)
        elif op == "sum_scatter":
            result[...] = fold("sum", name, values[:, share])
        else:
            result[...] = fold(reduction(op), name, values)

    def _move(self, header: Header, x: Array, out: Array, deadline: Deadline) -> None:
        def wait(request: MPI.Request, nbytes: int) -> None:
            self._held.append(request)
            self._wait(request.Test, header, deadline, nbytes=nbytes, has_met=True)

        mover = Mover(self._world.mpi, self._comm, wait, self._held.append)
        if header.kind == "broadcast":
            mover.broadcast(x, out, header.root)
        elif header.kind == "all_gather":
            mover.all_gather(x, out)
        elif header.kind == "all_to_all":
            mover.all_to_all(x, out)
        elif header.kind == "sum_scatter":
            mover.sum_scatter(header.dtype, x, out)
        else:
            mover.all_reduce(reduction(header.kind), header.dtype, x, out)

    def _meet(self, header: Header, deadline: Deadline, x: Array | None = None) -> Array:
        """Exchange headers, and the array that fits beside them; all of one group agree then."""
        record, records = self._record, self._records
        record[:HEADER_NBYTES] = np.frombuffer(header.pack(), np.uint8)
        if x is not None and x.size:
            record[HEADER_NBYTES : HEADER_NBYTES + x.nbytes] = x.view(np.uint8)
        byte = self._world.mpi.BYTE
        if self.size == 1:
            records[0] = record
            return records
        request = self._comm.Iallgather([record, byte], [records, byte])
        self._held.append(request)
        self._wait(request.Test, header, deadline)
        heads = records[:, :HEADER_NBYTES]
        if (heads != heads[0]).any():
            text = describe_mismatch(self.members, [row.tobytes() for row in heads])
            reason = Reason(_native.ABORT_MISMATCH, -1, text)
            raise AbortedError(reason)
        return records

    # -- one pair -----------------------------------------------------------------------------

    def _pair_wait(self, header: Header, peer: int, deadline: Deadline) -> Wait:
        def wait(is_done: Callable[[], object], nbytes: int) -> None:
            self._wait(is_done, header, deadline, nbytes=nbytes, peer=peer)

        return wait

    def _compare_pair(self, header: Header, came: bytes, src: int) -> None:
        """Compare what is to be received with what was sent."""
        # As bytes: of a header with more dimensions than it shows only those can be compared.
        if came != replace(header, kind="send").pack():
            theirs = Header.unpack(came)
            text = f"rank {self._me}: {header} met rank {self.members[src]}: {theirs}"
            raise AbortedError(Reason(_native.ABORT_MISMATCH, -1, text))
