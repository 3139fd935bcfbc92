"""The process group of the backend ``"phalanx"``: torch's collectives on a `Group`.

Tensors are read and written where they are, if they are contiguous. Operations with ``async_op``
run on the group's own thread. Lists of tensors go through one buffer, unless the tensors lie one
after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from phalanx.distributed.control import AbortKind
from phalanx.distributed.group.epoch import group_of_one
from phalanx.distributed.group.group import Group
from phalanx.distributed.group.registry import Membership
from phalanx.errors import DistributedError, NotSupported

from .entry import BACKEND
from .init_process_group import join
from .messages import Messages
from .tensors import (
    as_row,
    average,
    check,
    check_sizes,
    concatenated,
    copy_reduced,
    counts_of,
    is_row,
    joined,
    overlap,
    reduce_rows,
    reduction,
    row_for,
    take_extreme,
)
from .torch_call import TorchCall
from .work import TorchWork

_ANEW = (
    "the process group belongs to an earlier epoch: on every rank call "
    "torch.distributed.destroy_process_group(), then init_process_group(), and make DDP and FSDP "
    "modules anew"
)


def create(options: Any) -> ProcessGroup:
    """Make the default process group; every rank of the world calls this.

    Raises `NotSupported`: it is a group of some ranks under a default group of another backend.
    Raises `ValueError`: rank or size are not those of the world.
    """
    world = join()
    ranks = options.global_ranks_in_group
    if ranks and len(ranks) != world.size():
        msg = (
            "new_group(backend='phalanx') of some ranks needs a default process group of this "
            "backend: init_process_group('phalanx')"
        )
        raise NotSupported(msg)
    if (options.group_rank, options.group_size) != (world.rank(), world.size()):
        msg = (
            f"this process has rank {world.rank()} of {world.size()} in its world of Phalanx, not "
            f"rank {options.group_rank} of {options.group_size}; leave rank and world_size out"
        )
        raise ValueError(msg)
    return ProcessGroup(own_group(world), options.store, options.timeout)


def own_group(parent: Group) -> Group:
    """Return a new group of the ranks of ``parent``."""
    if parent.size() == 1:
        return group_of_one()
    group = parent.split(0)
    assert group is not None
    return group


class ProcessGroup(dist.ProcessGroup):  # type: ignore[misc]  # torch.distributed is not typed here
    """torch's process group with the ranks of a `Group`."""

    supports_splitting = True
    supports_coalescing = False  # a batch of messages is not one operation
    supports_time_estimate = False

    def __init__(self, group: Group, store: Any, timeout: timedelta) -> None:
        super().__init__(group.rank(), group.size())
        self.group = group
        self._store = store
        self._name = ""
        self._description = ""
        self._n = group.size()
        self.limit = timeout.total_seconds()
        self._messages = Messages(group, lambda: self.limit, self.report)
        self._coalesced: list[TorchWork] | None = None
        group._listen(lambda _engine: self._messages.renew())

    # torch has two names for many of these methods, and calls both.

    def name(self) -> str:
        """Return the name of the backend."""
        return BACKEND

    getBackendName = name

    def getGroupName(self) -> str:
        """Return the name that torch gave the group."""
        return self._name

    group_name = property(getGroupName)

    def _set_group_name(self, name: str) -> None:
        self._name = name

    setGroupName = _set_group_name

    def getGroupDesc(self) -> str:
        """Return the description that torch gave the group."""
        return self._description

    group_desc = property(getGroupDesc)

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    setGroupDesc = _set_group_desc

    @property
    def _device_types(self) -> list[Any]:
        return [torch.device("cpu")]

    def _get_backend(self, device: Any) -> ProcessGroup:
        if torch.device(device).type != "cpu":
            msg = f"No backend type associated with device type {torch.device(device).type}"
            raise RuntimeError(msg)
        return self

    def _has_hooks(self) -> bool:
        return False

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: the engine counts operations itself."""

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long an operation may take."""
        self.limit = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Leave the group, and free its memory and sockets.

        Operations that still run raise on every rank.
        """
        self.group.close()

    abort = shutdown

    def new_group(
        self,
        ranks: Sequence[int],
        *,
        timeout: timedelta | None = None,
        group_name: str = "",
        group_desc: str | None = None,
        **_options: object,
    ) -> ProcessGroup | None:
        """Make a group of some ranks; every rank calls this.

        Raises `NotSupported`: only its members call this (torch's ``use_local_synchronization``).
        """
        if not group_name.isdecimal() and len(ranks) != self._n:
            msg = (
                "new_group(use_local_synchronization=True) is not supported: call new_group on "
                "every rank, without it"
            )
            raise NotSupported(msg)
        return self._divide(ranks, timeout, group_name, group_desc)

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: object = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: object = None,
    ) -> ProcessGroup | None:
        """Split this group; every rank gives the ranks of its part."""
        name = group_name or f"{self.group_name}:split:{min(new_ranks)}"
        return self._divide(new_ranks, timeout, name, group_desc)

    def _divide(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None,
        name: str,
        description: str | None,
    ) -> ProcessGroup | None:
        """Make the group of these ranks; return None on other ranks."""
        me = self.group.rank()
        place = list(ranks).index(me) if me in ranks else None
        if self._n == 1:
            part: Group | None = own_group(self.group)
        elif place is None:
            part = self._call(lambda: self.group.split(None))
        else:
            part = self._call(lambda: self.group.split(min(ranks), place))
        if part is None:
            return None
        made = ProcessGroup(part, self._store, timeout or timedelta(seconds=self.limit))
        made._set_group_name(name)
        made._set_group_desc(description or "undefined")
        return made

    def allreduce(self, tensors: list[Tensor], opts: Any = None, *_more: Any) -> TorchWork:
        """Reduce tensors over all ranks, in place."""
        opts = dist.AllreduceOptions() if opts is None else opts
        call = TorchCall(self, opts)
        for tensor in tensors:
            if tensor.is_cpu and tensor.layout is not torch.strided:
                call.sum_sparse(tensor, opts.reduceOp)
            else:
                self._reduce_one(call, "all_reduce", tensor, opts.reduceOp, is_result=True)
        return call.work(tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[Tensor], opts: Any) -> TorchWork:
        """Reduce a tensor over all ranks, on the root only."""
        call = TorchCall(self, opts)
        is_root = opts.rootRank == self.group.rank()
        for tensor in tensors:
            self._reduce_one(call, "reduce", tensor, opts.reduceOp, is_result=is_root)
        return call.work(tensors)

    def _reduce_one(
        self, call: TorchCall, op: str, tensor: Tensor, reduce_op: Any, *, is_result: bool
    ) -> None:
        tensor = check(op, tensor)
        name = reduction(op, reduce_op)
        row = as_row(tensor)
        if name is None:
            rows = torch.empty((self._n, row.numel()), dtype=row.dtype)
            call.run("all_gather", row, rows.view(-1), is_sum=True)
            if is_result:
                call.later(lambda: copy_reduced(rows, tensor, reduce_op))
            return
        out = row if is_result else torch.empty_like(row)
        call.run(name, row, out, is_sum=True)
        if not is_result:
            return
        if reduce_op == dist.ReduceOp.AVG:
            call.later(lambda: average(out, self._n))
        if not is_row(tensor):
            call.later(lambda: tensor.copy_(out.view(tensor.shape)))

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> TorchWork:
        """Reduce a tensor over all ranks; each rank gets its part."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> TorchWork:
        """Reduce several tensors; each rank gets its parts."""
        opts = dist.ReduceScatterOptions() if opts is None else opts
        call = TorchCall(self, opts)
        for output, tensor in zip(outputs, inputs, strict=True):
            self._scatter_sum(call, output, tensor, opts.reduceOp)
        return call.work(outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> TorchWork:
        """Reduce a tensor for each rank; each rank gets its own."""
        opts = dist.ReduceScatterOptions() if opts is None else opts
        call = TorchCall(self, opts)
        for output, tensors in zip(outputs, inputs, strict=True):
            parts = [check("reduce_scatter", tensor) for tensor in tensors]
            if len({part.numel() for part in parts}) > 1:
                self._scatter_uneven(call, output, parts, opts.reduceOp)
                continue
            self._scatter_sum(call, output, concatenated(parts), opts.reduceOp)
        return call.work(outputs)

    def _scatter_sum(self, call: TorchCall, output: Tensor, tensor: Tensor, reduce_op: Any) -> None:
        op = "reduce_scatter"
        output, tensor = check(op, output), check(op, tensor)
        check_sizes(op, tensor.numel() == output.numel() * self._n, output, tensor, self._n)
        row = as_row(tensor)
        out = call.target(output, apart_from=row)
        name = reduction(op, reduce_op)
        if name == "all_sum":
            call.run("sum_scatter", row, out, is_sum=True)
        else:
            rows = torch.empty_like(row)
            call.run("all_to_all", row, rows, is_sum=True)
            by_rank = rows.view(self._n, -1)
            if name is None:
                call.later(lambda: reduce_rows(by_rank, out, reduce_op))
            else:
                call.later(lambda: take_extreme(by_rank, out, name))
        if reduce_op == dist.ReduceOp.AVG:
            call.later(lambda: average(out, self._n))
        call.give(out, output)

    def _scatter_uneven(
        self, call: TorchCall, output: Tensor, parts: list[Tensor], reduce_op: Any
    ) -> None:
        """Reduce parts of different sizes, one after the other."""
        for rank, part in enumerate(parts):
            total = as_row(part).clone()
            self._reduce_one(call, "reduce_scatter", total, reduce_op, is_result=True)
            if rank == self.group.rank():
                call.give(total, check("reduce_scatter", output))

    def broadcast(self, tensors: list[Tensor], opts: Any) -> TorchWork:
        """Copy the root's tensor to all ranks."""
        call = TorchCall(self, opts)
        for given in tensors:
            tensor = check("broadcast", given)
            row = as_row(tensor)
            call.run("broadcast", row, row, root=opts.rootRank)
            call.give(row, tensor)
        return call.work(tensors)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> TorchWork:
        """Concatenate the tensors of all ranks."""
        return self.all_gather_single_coalesced([output], [input], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> TorchWork:
        """Concatenate several tensors of all ranks."""
        call = TorchCall(self, opts)
        for output, tensor in zip(outputs, inputs, strict=True):
            self._gather(call, output, tensor)
        return call.work(outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> TorchWork:
        """Collect the tensors of all ranks in a list."""
        call = TorchCall(self, opts)
        for tensors, tensor in zip(outputs, inputs, strict=True):
            self._gather_list(call, "all_gather", tensors, tensor)
        return call.work([tensor for tensors in outputs for tensor in tensors])

    def allgather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> TorchWork:
        """Collect several tensors of all ranks in lists."""
        call = TorchCall(self, opts)
        for place, tensor in enumerate(inputs):
            tensors = [of_rank[place] for of_rank in outputs]
            self._gather_list(call, "all_gather", tensors, tensor)
        return call.work([tensor for tensors in outputs for tensor in tensors])

    def _gather(self, call: TorchCall, output: Tensor, tensor: Tensor) -> None:
        op = "all_gather"
        output, tensor = check(op, output), check(op, tensor)
        check_sizes(op, output.numel() == tensor.numel() * self._n, output, tensor, self._n)
        row = as_row(tensor)
        out = row_for(output)
        own = out[self.group.rank() * row.numel() :][: row.numel()]
        if overlap(row, out) and row.data_ptr() != own.data_ptr():
            row = row.clone()
        call.run("all_gather", row, out)
        call.give(out, output)

    def _gather_list(
        self, call: TorchCall, op: str, outputs: Sequence[Tensor], tensor: Tensor
    ) -> None:
        tensor = check(op, tensor)
        parts = [check(op, output) for output in outputs]
        if len(parts) != self._n:
            msg = f"{op}: a list of {self._n} tensors is needed, one for each rank"
            raise ValueError(msg)
        if len({part.numel() for part in parts}) > 1:
            for rank, part in enumerate(parts):  # each rank's tensor has its own size
                mine = as_row(tensor) if rank == self.group.rank() else None
                out = row_for(part)
                call.run("broadcast", out if mine is None else mine, out, root=rank)
                call.give(out, part)
            return
        whole = joined(parts)
        if whole is not None:
            self._gather(call, whole, tensor)
            return
        rows = torch.empty(self._n * tensor.numel(), dtype=tensor.dtype)
        self._gather(call, rows, tensor)
        for row, part in zip(rows.chunk(self._n), parts, strict=True):
            call.give(row, part)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> TorchWork:
        """Collect the tensors of all ranks in a list on the root."""
        call = TorchCall(self, opts)
        is_root = opts.rootRank == self.group.rank()
        for place, given in enumerate(inputs):
            tensor = check("gather", given)
            if is_root:
                self._gather_list(call, "gather", outputs[place], tensor)
            else:
                rows = torch.empty(self._n * tensor.numel(), dtype=tensor.dtype)
                self._gather(call, rows, tensor)
        return call.work([tensor for tensors in outputs for tensor in tensors])

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> TorchWork:
        """Give each rank its tensor of the root's list."""
        call = TorchCall(self, opts)
        is_root = opts.rootRank == self.group.rank()
        for place, given in enumerate(outputs):
            output = check("scatter", given)
            count = output.numel()
            if is_root:
                whole = concatenated([check("scatter", tensor) for tensor in inputs[place]])
            else:
                whole = torch.empty(self._n * count, dtype=output.dtype)
            call.run("broadcast", whole, whole, root=opts.rootRank)
            mine = whole[self.group.rank() * count :][:count]
            call.give(mine, output, is_copy=True)
        return call.work(outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> TorchWork:
        """Send each rank its part of a tensor."""
        call = TorchCall(self, opts)
        op = "all_to_all"
        output, tensor = check(op, output), check(op, input)
        out = row_for(output)
        row = as_row(tensor)
        if not output_splits and not input_splits:
            check_sizes(op, output.numel() == tensor.numel(), output, tensor, 1)
            if overlap(row, out):
                row = row.clone()
            call.run("all_to_all", row, out)
        else:
            sizes = counts_of(op, tensor, input_splits, self._n)
            self._exchange(
                call,
                list(torch.split(row, sizes)),
                list(torch.split(out, counts_of(op, output, output_splits, self._n))),
            )
        call.give(out, output)
        return call.work([output])

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> TorchWork:
        """Send each rank its tensor of a list."""
        call = TorchCall(self, opts)
        self._exchange(
            call,
            [check("all_to_all", tensor) for tensor in inputs],
            [check("all_to_all", tensor) for tensor in outputs],
        )
        return call.work(outputs)

    def _exchange(self, call: TorchCall, sent: list[Tensor], received: list[Tensor]) -> None:
        """Exchange parts of any sizes, in blocks of the largest size.

        First the ranks exchange the sizes, so all of them see sizes that do not fit.
        """
        counts = torch.tensor([[part.numel() for part in parts] for parts in (sent, received)])
        table = torch.empty((self._n, 2, self._n), dtype=counts.dtype)
        TorchCall(self, None, is_async=False).run("all_gather", counts.view(-1), table.view(-1))
        gives, takes = table[:, 0], table[:, 1].T
        if not torch.equal(gives, takes):
            giver, taker = torch.nonzero(gives != takes)[0].tolist()
            msg = (
                f"all_to_all: rank {giver} sends {int(gives[giver, taker])} elements to rank "
                f"{taker}, which expects {int(takes[giver, taker])}"
            )
            raise ValueError(msg)
        block = int(table.max())
        blocks = sent[0].new_empty((self._n, block))
        for place, part in zip(blocks, sent, strict=True):
            place[: part.numel()].copy_(as_row(part))
        came = torch.empty_like(blocks)
        call.run("all_to_all", blocks.view(-1), came.view(-1))
        for row, part in zip(came, received, strict=True):
            call.give(row[: part.numel()], part, is_copy=True)

    def barrier(self, opts: Any = None, **_more: Any) -> TorchWork:
        """Wait for all ranks."""
        call = TorchCall(self, opts)
        call.run("barrier", None, None)
        return call.work([])

    def send(self, tensors: list[Tensor], dst: int, tag: int = 0) -> TorchWork:
        """Send a tensor to one rank."""
        return self._messages.send(tensors[0], dst, tag)

    def recv(self, tensors: list[Tensor], src: int, tag: int = 0) -> TorchWork:
        """Receive a tensor from one rank."""
        return self._messages.recv(tensors[0], src, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> TorchWork:
        """Refuse to receive from any rank.

        Raises `NotSupported` always.
        """
        msg = "recv: the backend 'phalanx' needs src, the rank that sends"
        raise NotSupported(msg)

    def note(self, work: TorchWork) -> None:
        """Add a work that runs to the batch, if there is one."""
        if self._coalesced is not None:
            self._coalesced.append(work)

    def _start_coalescing(self, device: object) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: object) -> TorchWork:
        works, self._coalesced = self._coalesced or [], None
        return TorchWork([], works)

    def _call(self, function: Callable[[], Any]) -> Any:
        current = self.group._current
        try:
            return function()
        except DistributedError as error:
            raise self.report(current, error) from None
        except BaseException:
            current.tell_failure()
            raise

    def report(self, current: Membership, error: BaseException) -> BaseException:
        """Tell the other ranks of a failure; return the error to raise."""
        if not isinstance(error, Exception):  # nobody waits any more for what still runs
            me = current.spec.me
            text = f"rank {me} was interrupted in an operation of torch.distributed"
            current.engine.abort(AbortKind.INTERRUPTED, me, text)
        current.tell_failure()
        if type(error) is DistributedError and self.group._current.engine.is_closed:
            return DistributedError(f"{_ANEW} ({error})")
        return error
