"""Exchange bytes between ranks that have no connection yet, through their supervisors.

`Rendezvous` is the interface. Ranks exchange bytes in numbered rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from phalanx.errors import DistributedError, RankFailure
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

        Raises
        ------
        TimeoutError
            Not all ranks arrived within ``timeout`` seconds.
        RankFailure, DistributedError
            The round can never be complete.
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
