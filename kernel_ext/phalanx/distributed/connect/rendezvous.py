"""Exchange bytes between ranks that have no connection yet.

`Rendezvous` is the interface. The ranks of a world meet through their supervisors
(`ChannelRendezvous`), those of a split through the group that is split (`GroupRendezvous`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from phalanx import _native
from phalanx.errors import CollectiveTimeout, DistributedError, RankFailure
from phalanx.protocol import (
    Channel,
    ChannelClosed,
    Gather,
    Gathered,
    Join,
    RankAnswer,
    Recover,
    Refused,
)

from ..control import Deadline

_WORD = 8  # bytes of a number that ranks of a group exchange


def name_ranks(ranks: Sequence[int]) -> str:
    """Name ranks in an error text.

    Examples
    --------
    >>> name_ranks([2]), name_ranks([0, 3])
    ('rank 2', 'ranks 0, 3')
    """
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word} {', '.join(map(str, ranks))}"


class Rendezvous(Protocol):
    """Interface through which all ranks of an epoch exchange bytes in rounds."""

    def all_gather(self, data: bytes, *, timeout: float | None) -> list[bytes]:
        """Send a share to all ranks and return all shares, by rank.

        Raises `TimeoutError`: not all ranks arrived within ``timeout`` seconds. Raises
        `RankFailure`, `DistributedError`: the round can never be complete.
        """


class Unanswered(TimeoutError):
    """A request was withdrawn; ``missing`` names the ranks it waited for."""

    def __init__(self, missing: str = "") -> None:
        super().__init__(missing)
        self.missing = missing


def ask(
    channel: Channel,
    request: Join | Recover | Gather,
    *,
    timeout: float | None,
    host_names: Sequence[str] = (),
) -> RankAnswer:
    """Send a request that waits for other ranks; return the answer.

    ``host_names``, by rank of the whole world, are for errors about a lost rank. Raises
    `Unanswered`, or the refusal as `RankFailure` or `DistributedError`.
    """
    try:
        try:
            answer = channel.request(request, request.id, timeout=timeout)
        except TimeoutError as error:
            answer = _withdraw(channel, request.id, error)
    except ChannelClosed as error:
        raise DistributedError(str(error)) from error
    if not isinstance(answer, Refused):
        return answer
    if answer.rank < 0:
        raise DistributedError(answer.message)
    host = host_names[answer.rank] if answer.rank < len(host_names) else ""
    raise RankFailure(answer.rank, host, answer.message)


def _withdraw(channel: Channel, request_id: int, error: TimeoutError) -> RankAnswer:
    """Withdraw a late request, but return an answer that arrived just now."""
    try:
        late = channel.withdraw(request_id)
    except TimeoutError:
        raise Unanswered from error
    if late.id != request_id:
        raise Unanswered(late.message if isinstance(late, Refused) else "") from error
    return late


class ChannelRendezvous:
    """Rendezvous of a world's ranks through their supervisors.

    ``channel`` leads to the supervisor of this host. ``host_names`` are as for `ask`.
    """

    def __init__(
        self, channel: Channel, *, epoch: int, size: int, host_names: Sequence[str] = ()
    ) -> None:
        self._channel = channel
        self._epoch = epoch
        self._size = size
        self._host_names = host_names
        self._round = 0

    def all_gather(self, data: bytes, *, timeout: float | None) -> list[bytes]:
        """Do as `Rendezvous.all_gather`."""
        number = self._round
        self._round += 1
        request = Gather(self._channel.next_id(), self._epoch, number, data)
        try:
            answer = ask(self._channel, request, timeout=timeout, host_names=self._host_names)
        except Unanswered as late:
            who = f"{late.missing} did not come" if late.missing else "not every rank came"
            msg = (
                f"{who} to round {number} of the rendezvous of epoch {self._epoch} "
                f"within {Deadline(timeout)}"
            )
            raise TimeoutError(msg) from late
        if not isinstance(answer, Gathered) or len(answer.parts) != self._size:
            msg = (
                f"the supervisor answered round {number} of epoch {self._epoch} "
                f"with a wrong {type(answer).__name__}"
            )  # never print its contents: a Welcome holds the key
            raise DistributedError(msg)
        return list(answer.parts)


class GroupRendezvous:
    """Rendezvous of ranks that have a group; error texts say split."""

    def __init__(self, engine: _native.Group) -> None:
        self._engine = engine

    def all_gather(self, data: bytes, *, timeout: float | None) -> list[bytes]:
        """Do as `Rendezvous.all_gather`; a timeout ends the group's epoch."""
        try:
            lengths = self.exchange([len(data)], timeout)[:, 0].tolist()
            width = -(-max(lengths) // _WORD)
            words = np.frombuffer(data.ljust(width * _WORD, b"\0"), np.int64)
            rows = self.exchange(words, timeout)
        except CollectiveTimeout as error:
            msg = f"not every rank came to the rendezvous: {error}"
            raise TimeoutError(msg) from error
        except DistributedError as error:
            if type(error) is not DistributedError:
                raise
            msg = f"the rendezvous can never be complete: {error}"
            raise DistributedError(msg) from error
        return [row.tobytes()[:length] for row, length in zip(rows, lengths, strict=True)]

    def exchange(
        self, row: Sequence[int] | np.ndarray, timeout: float | None = None
    ) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """Send a row of numbers and return the rows of all ranks."""
        mine = np.ascontiguousarray(row, np.int64)
        rows = np.empty((self._engine.size, mine.size), np.int64)
        self._engine.run("split", mine, rows.reshape(-1), timeout=timeout)
        return rows
