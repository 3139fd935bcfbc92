"""Waiting for the other members of a group: what is seen of them meanwhile, and what it means.

It knows the group's place in the world and the news; what is waited for is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from phalanx import _native

from .._deadline import Deadline
from ._header import Header, describe_mismatch
from ._waiting import wait_until
from ._world import AbortedError, MpiWorld, Reason

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Waits"]

_TELL_AFTER_S = 0.05  # in an operation: the others learn where we wait
_ANSWER_S = 0.15  # after a deadline: who waits has told by then
_IN_FLIGHT_S = 0.2  # what a rank sent before it closed has come by then
_BUSY_RATE = 2e8  # bytes per second: what moves more slowly need not be hurried


class Waits:
    """The members of one group, as one of them waits for the others; parameters as `Operations`."""

    def __init__(
        self, world: MpiWorld, comm: MPI.Intracomm, members: Sequence[int], channel: int
    ) -> None:
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.members = tuple(members)
        self._world = world
        self._channel = channel
        self._heard = world.hear_of(channel)
        self._me = self.members[self.rank]  # in every text: the world's ranks

    def _wait(
        self,
        is_done: Callable[[], object],
        header: Header,
        deadline: Deadline,
        *,
        nbytes: int = 0,
        has_met: bool = False,
        peer: int | None = None,
    ) -> None:
        """Wait for MPI, with an eye on the deadline, the news and (by itself) signals.

        ``has_met``: all ranks are in the operation. ``peer``: the one rank that is waited for.
        """
        world = self._world
        others = [r for r in range(self.size) if r != self.rank] if peer is None else [peer]
        is_exact = peer is not None or len(others) == 1
        has_told = has_met or is_exact
        seen: dict[str, float] = {}

        def check(waited_s: float) -> None:
            nonlocal has_told
            world.listen()
            if world.reason is not None:
                raise AbortedError(world.reason)
            if not has_met:
                self._check_closed(header, others, waited_s, seen, is_pair=peer is not None)
                if peer is None and self._heard.waiting:
                    self._check_visible(header)
            is_over = deadline.is_over()
            if not has_told and (is_over or waited_s > _TELL_AFTER_S):
                has_told = True
                members = [self.members[rank] for rank in others]
                world.tell_waiting(members, self._channel, header.pack())
            if is_over:
                over_s = seen.setdefault("deadline", waited_s)
                if has_met or is_exact or waited_s - over_s > _ANSWER_S:
                    missing = others if is_exact else self._missing(header, others)
                    raise AbortedError(self._late(header, deadline, [] if has_met else missing))

        wait_until(is_done, check, busy_s=nbytes / _BUSY_RATE)

    def _check_closed(
        self,
        header: Header,
        others: Sequence[int],
        waited_s: float,
        seen: dict[str, float],
        *,
        is_pair: bool,
    ) -> None:
        for rank in others:
            member = self.members[rank]
            done = self._heard.closed.get(member)
            if done is None or (not is_pair and done >= header.seq):
                continue
            first_s = seen.setdefault("closed", waited_s)
            if waited_s - first_s >= _IN_FLIGHT_S:
                text = f"rank {member} closed the group; rank {self._me} was in {header}"
                raise AbortedError(Reason(_native.ABORT_CLOSED, member, text))

    def _visible(self, header: Header) -> dict[int, bytes]:
        """Return the headers of the members that are known to wait in this operation, by rank."""
        found = {self.rank: header.pack()}
        for rank, member in enumerate(self.members):
            came = self._heard.waiting.get(member)
            if came is not None and Header.unpack(came).seq == header.seq:
                found[rank] = came
        return dict(sorted(found.items()))

    def _check_visible(self, header: Header) -> None:
        """See a mismatch among those that have come, whoever never comes."""
        found = self._visible(header)
        text = describe_mismatch([self.members[r] for r in found], tuple(found.values()))
        if text:
            raise AbortedError(Reason(_native.ABORT_MISMATCH, -1, text))

    def _missing(self, header: Header, others: Sequence[int]) -> list[int]:
        found = self._visible(header)
        return [rank for rank in others if rank not in found]

    def _late(self, header: Header, deadline: Deadline, missing: Sequence[int]) -> Reason:
        ranks = [self.members[rank] for rank in missing]
        names = ", ".join(map(str, ranks))
        who = f"missing: rank{'s' if len(ranks) > 1 else ''} {names}" if ranks else "none missing"
        text = f"rank {self._me}: {header} timed out after {deadline}; {who}"
        culprit = ranks[0] if len(ranks) == 1 else -1
        return Reason(_native.ABORT_TIMEOUT, culprit, text)
