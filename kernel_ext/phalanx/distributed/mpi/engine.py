"""An MPI group with the methods of the native one.

Headers are exchanged first (small arrays travel with them) and compared; then the bytes move.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from phalanx import _native
from phalanx.errors import CollectiveTimeout, DistributedError, NotSupported

from ..arrays.arguments import invalidate_output
from ..control import Deadline
from ..world_spec import WorldSpec, check_color
from .moves import Mover, Pairs, Wait
from .waiting import MpiWork, PeerWatch, Worker, interrupted, late_behind
from .wire import (
    COLLECTIVES,
    HEADER_NBYTES,
    Header,
    describe_mismatch,
    flat,
    fold,
    reduction,
)
from .world import AbortedError, MpiWorld, Reason

if TYPE_CHECKING:
    from mpi4py import MPI

Array = NDArray[Any]
EPOCH = 1  # an MPI world has a single epoch
RECORD_NBYTES = 512  # per rank, in the exchange at the start of every collective
INLINE_NBYTES = RECORD_NBYTES - HEADER_NBYTES  # array bytes that fit beside the header
_DESCRIBED_NBYTES = (8, 1 << 10, 1 << 14, 1 << 20, 1 << 26)  # the same sizes as the native engine
_TURN_BITE_S = 0.05
_CLOSE_S = 5.0


class MpiEngine:
    """One MPI group, with the methods of `_native.Group`.

    Module `operations` has checked the arguments. ``members`` are world ranks, by rank of this
    group; ``host_names`` are by world rank. ``channel`` identifies the group, the same on all
    members; 0 is the world's group.

    Any error in an operation becomes the failure reason of the whole world and is sent to all
    ranks. MPI cannot cancel a started operation: the arrays passed to MPI are kept alive
    (`MpiWorld.quarantine`).
    """

    def __init__(
        self,
        world: MpiWorld,
        comm: MPI.Intracomm,
        members: Sequence[int],
        channel: int = 0,
        host_names: Sequence[str] = (),
    ) -> None:
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.members = tuple(members)
        self._world = world
        self._channel = channel
        self._me = self.members[self.rank]  # error texts name world ranks
        self.epoch = EPOCH
        self.host_names = tuple(host_names)
        self.is_closed = False
        self.timeout: float | None = None
        self._comm = comm
        self._turn = threading.Lock()
        self._worker: Worker | None = None
        self._worker_lock = threading.Lock()
        self._seq = 0
        self._counts = [0, 0]  # operations, bytes
        self._record = np.zeros(RECORD_NBYTES, np.uint8)
        self._records = np.empty((self.size, RECORD_NBYTES), np.uint8)
        self._pairs = Pairs(world.mpi, comm)
        self._held: list[object] = []
        self._watch = PeerWatch(world, self.members, self.rank, channel)
        world.engines.add(self)

    def run(
        self,
        op: str,
        x: Any = None,
        out: Any = None,
        root: int = 0,
        timeout: float | Deadline | None = None,
        dtype: str = "",
    ) -> None:
        """Run an operation.

        ``root`` is the root of a broadcast, or the other rank of a message.
        """
        if op == "barrier":
            self._barrier(timeout)
        elif op == "send":
            self._send(x, root, timeout, dtype)
        elif op == "recv":
            self._recv(out, root, timeout, dtype)
        else:
            self._collective(op, x, out, root, timeout, dtype)

    def _barrier(self, timeout: float | Deadline | None) -> None:
        with self._operation("barrier", timeout) as deadline:
            self._seq += 1
            header = Header("barrier", self._seq, self._channel)
            with self._guard(header):
                self._meet(header, deadline)

    def _send(self, x: Array, dst: int, timeout: float | Deadline | None, dtype: str) -> None:
        name = dtype or x.dtype.name
        with self._operation("send", timeout) as deadline:
            self._pairs.sent[dst] += 1
            header = self._header("send", self._pairs.sent[dst], x.shape, name)
            with self._guard(header, x):
                wait = self._pair_wait(header, dst, deadline)
                self._pairs.send(header.pack(), flat(x, name), dst, wait)

    def _recv(self, out: Array, src: int, timeout: float | Deadline | None, dtype: str) -> None:
        name = dtype or out.dtype.name
        with self._operation("recv", timeout) as deadline:
            self._pairs.received[src] += 1
            header = self._header("recv", self._pairs.received[src], out.shape, name)
            with self._guard(header, out) as begun:
                wait = self._pair_wait(header, src, deadline)
                received = self._pairs.receive_header(src, wait)
                self._compare_pair(header, received, src)
                begun.append((out, name))
                self._pairs.receive(flat(out, name), src, wait)

    def submit(
        self,
        op: str,
        x: Any,
        out: Any,
        root: int = 0,
        timeout: float | None = None,
        dtype: str = "",
    ) -> MpiWork:
        """Queue a collective on this group's worker thread.

        Raises `NotSupported` if this MPI allows calls from one thread only.
        """
        if not self._world.has_threads:
            msg = f"{op}: async_op needs MPI_THREAD_MULTIPLE, which this MPI does not give"
            raise NotSupported(msg)
        self._check_usable()
        deadline = self._deadline(timeout)
        run = partial(self.run, op, x, out, root, deadline, dtype)
        with self._worker_lock:
            self._check_open()  # again: `close` ends the worker thread under this lock
            if self._worker is None:
                self._worker = Worker("phalanx-mpi")
            work = MpiWork(op, run, deadline, self, self._me)
            self._worker.submit(work)
        return work

    def part(self, color: int, key: int = -1, timeout: float | None = None) -> MpiEngine | None:
        """Make one group per color; return None if ``color`` is negative."""
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
                    self._world.received_on(channel)
                # Not every color fits MPI's int: the lowest rank of each part is passed instead.
                undefined: int = self._world.mpi.UNDEFINED
                # Blocks, but only until all ranks reach this line; all are in this operation.
                comm = self._comm.Split(
                    undefined if color < 0 else min(ranks), ranks.index(self.rank)
                )
        if color < 0:
            return None
        members = [self.members[rank] for rank in ranks]
        part = cast("MPI.Intracomm", comm)
        return MpiEngine(self._world, part, members, channel, self.host_names)

    def _channel_of(self, header: Header, color: int) -> int:
        """Compute the channel of a split's part, the same on all ranks."""
        made = hashlib.blake2b(f"{self._channel}/{header.seq}/{color}".encode(), digest_size=8)
        return int.from_bytes(made.digest(), "little")

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
        name = dtype or x.dtype.name
        with self._operation(op, timeout) as deadline:
            self._seq += 1
            header = Header(op, self._seq, self._channel, EPOCH, name, x.shape, x.size, root)
            with self._guard(header, x, out) as begun:
                # All ranks have the same header, so all choose the same path.
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
        """Compute the result from the arrays that came with the headers."""
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
            self._watch.wait(request.Test, header, deadline, nbytes=nbytes, has_met=True)

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
        """Exchange headers and small arrays; fail if the headers differ."""
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
        self._watch.wait(request.Test, header, deadline)
        heads = records[:, :HEADER_NBYTES]
        if (heads != heads[0]).any():
            text = describe_mismatch(self.members, [row.tobytes() for row in heads])
            reason = Reason(_native.ABORT_MISMATCH, -1, text)
            raise AbortedError(reason)
        return records

    def _pair_wait(self, header: Header, peer: int, deadline: Deadline) -> Wait:
        def wait(is_done: Callable[[], object], nbytes: int) -> None:
            self._watch.wait(is_done, header, deadline, nbytes=nbytes, peer=peer)

        return wait

    def _compare_pair(self, header: Header, received: bytes, src: int) -> None:
        """Compare the call of this rank with the header of the sender."""
        # Compare bytes: the dimensions beyond the 8th are only in the checksum of the header.
        if received != replace(header, kind="send").pack():
            theirs = Header.unpack(received)
            text = f"rank {self._me}: {header} met rank {self.members[src]}: {theirs}"
            raise AbortedError(Reason(_native.ABORT_MISMATCH, -1, text))

    @property
    def channel(self) -> int:
        """Identifier of this group, equal on all members; 0: the world."""
        return self._channel

    @property
    def key(self) -> bytes:
        """Key that authenticates pickles; empty if not all ranks have it."""
        return self._world.key

    @property
    def failure(self) -> tuple[int, int, str] | None:
        """``(kind, culprit, message)`` once the world has failed."""
        reason = self._world.reason
        return None if reason is None else (reason.kind, reason.culprit, reason.message)

    def _check_open(self) -> None:
        if self.is_closed:
            msg = (
                f"rank {self._me}: the group is closed and cannot be used any more; "
                "of a part of the ranks make a new one with split"
            )
            raise DistributedError(msg)

    def check_process(self) -> None:
        """Raise in a fork of the rank."""
        if self._world.is_forked:
            msg = "this process is a fork of the rank, which MPI belongs to; call collectives there"
            raise DistributedError(msg)

    def _check_usable(self) -> None:
        self._check_open()
        self.check_process()
        world = self._world
        world.reap()
        if not world.has_threads and threading.get_ident() != world.thread:
            msg = "this MPI lets only the thread in that called init (no MPI_THREAD_MULTIPLE)"
            raise NotSupported(msg)
        world.listen()
        if world.reason is not None:
            raise world.reason.error()

    def _deadline(self, timeout: float | Deadline | None) -> Deadline:
        """Start a deadline, unless ``timeout`` is a running one."""
        if isinstance(timeout, Deadline):
            return timeout
        return Deadline(self.timeout if timeout is None else timeout)

    @contextmanager
    def _operation(self, op: str, timeout: float | Deadline | None) -> Iterator[Deadline]:
        """Run one operation at a time, after all submitted operations."""
        self._check_usable()
        deadline = self._deadline(timeout)
        if self._worker is not None and not self._worker.is_current():
            self._wait_behind(self._worker, op, deadline)
        # Waits for another thread. Nothing has begun, so a timeout does not harm the group.
        while not self._turn.acquire(timeout=_TURN_BITE_S):
            self._check_usable()
            if deadline.is_over():
                msg = (
                    f"rank {self._me}: {op} timed out waiting for another operation of this rank's"
                )
                raise CollectiveTimeout(msg)
        try:
            self._check_usable()
            yield deadline
        finally:
            self._turn.release()

    def _wait_behind(self, worker: Worker, op: str, deadline: Deadline) -> None:
        """Wait for the operations submitted before; a timeout here ends the epoch.

        The other ranks run all operations in order. If this rank skipped one, they would match
        its next operation with the skipped one.
        """
        try:
            while not worker.wait_idle(_TURN_BITE_S):
                self._check_usable()
                if deadline.is_over():
                    self.abort(_native.ABORT_TIMEOUT, -1, late_behind(self._me, op, deadline))
        except DistributedError:
            raise
        except self._world.mpi.Exception as error:
            text = f"rank {self._me}: {op} failed: {error}"
            reason = self._world.fail(Reason(_native.ABORT_ERROR, self._me, text))
            self._world.flush()
            raise reason.error() from error
        except BaseException:
            self.abort(_native.ABORT_INTERRUPTED, self._me, interrupted(self._me, op))
            raise

    @contextmanager
    def _guard(self, header: Header, *held: object) -> Iterator[list[tuple[Array, str]]]:
        """Turn exceptions into the world's failure; yield a list for started outputs."""
        begun: list[tuple[Array, str]] = []
        self._held = list(held)
        try:
            yield begun
        except AbortedError as error:
            raise self._give_up(error.reason, header, begun) from None
        except self._world.mpi.Exception as error:
            text = f"rank {self._me}: {header} failed: {error}"
            reason = Reason(_native.ABORT_ERROR, self._me, text)
            raise self._give_up(reason, header, begun) from error
        except BaseException:
            # A signal handler raised during the wait, as Ctrl-C does.
            text = interrupted(self._me, header)
            self._give_up(Reason(_native.ABORT_INTERRUPTED, self._me, text), header, begun)
            raise
        self._held = []

    def _give_up(
        self, reason: Reason, header: Header, begun: Sequence[tuple[Array, str]]
    ) -> DistributedError:
        world = self._world
        world.quarantine.append((self._held, self._record, self._records, self._pairs))
        reason = world.fail(reason)
        world.flush()
        for out, name in begun:
            invalidate_output(flat(out, name), name if name == "bfloat16" else "")
        if begun:
            reason = reason._replace(message=f"{reason.message}; its output was invalidated")
        return reason.error()

    def abort(self, kind: int, culprit: int, message: str) -> bool:
        """Fail the world; return whether this was the first reason."""
        reason = Reason(kind, culprit, message)
        is_first = self._world.reason is None
        is_first = self._world.fail(reason) is reason and is_first
        self._world.flush()
        return is_first

    def wait_until_idle(self, timeout: float) -> bool:
        """Wait until no thread is inside a failed group; False on timeout."""
        has_left = self._turn.acquire(timeout=timeout)
        if has_left:
            self._turn.release()
        return has_left

    def close(self) -> None:
        """Leave the group; notify ranks that still wait for this rank."""
        if self.is_closed or self._world.is_forked:
            return
        self.is_closed = True
        if not self._turn.acquire(blocking=False):
            text = f"rank {self._me} closed the group"
            self._world.fail(Reason(_native.ABORT_CLOSED, self._me, text))
            if not self._turn.acquire(timeout=_CLOSE_S):
                return
        with self._worker_lock:  # no thread may submit after the end
            if self._worker is not None:
                self._worker.close()
        world = self._world
        world.forget(self._channel)
        if world.is_ended:
            return
        if world.reason is None:
            world.tell_closed(self.members, self._channel, self._seq)
            if self._channel and self._pairs.is_idle():
                # MPI might wait for the others here, but neither Open MPI nor MPICH does.
                self._comm.Free()
                return
        world.quarantine.append(self._pairs)

    def __del__(self) -> None:
        """Add a group without references to the list that `MpiWorld.reap` closes."""
        if hasattr(self, "_held") and not self.is_closed:  # fully constructed
            self._world.left.append(self)

    def describe(self, sizes: Sequence[int] = ()) -> dict[str, Any]:
        """Describe the MPI library, the operation counts and the algorithms.

        Arrays beyond the inline size use the algorithm "mpi": the library chooses how.
        """
        described = (*_DESCRIBED_NBYTES, *sizes)
        algorithms = {n: "inline" if n <= INLINE_NBYTES else "mpi" for n in described}
        library = self._world.mpi.Get_library_version().split("\n")[0].rstrip("\0")
        return {
            "rank": self.rank,
            "size": self.size,
            "epoch": self.epoch,
            "library": library,
            "has_threads": self._world.has_threads,
            "algorithms": {
                **{op: dict(algorithms) for op in COLLECTIVES},
                "barrier": dict.fromkeys(described, "inline"),
            },
            "stripes": {},
            "operations": self._counts[0],
            "bytes": self._counts[1],
        }


def spec_of(engine: MpiEngine) -> WorldSpec:
    """Describe the group of an engine."""
    hosts = [engine.host_names[member] for member in engine.members]
    return WorldSpec(
        rank=engine.rank,
        members=engine.members,
        epoch=engine.epoch,
        workspace="mpi",
        key=engine.key,
        hosts=tuple(map(hosts.index, hosts)),
        slots=tuple(range(engine.size)),
        host_names=engine.host_names,
        transport="mpi",
        number=engine.channel,
    )


def split_mpi(engine: MpiEngine, color: int | None, key: int) -> tuple[MpiEngine, WorldSpec] | None:
    """Split as `Group.split` does; return None for a rank without a color."""
    part = engine.part(*check_color(color, key))
    return None if part is None else (part, spec_of(part))
