"""Exchange addresses between ranks that have no connection yet.

`Rendezvous` is the interface, `ChannelRendezvous` goes through the supervisors. Ranks exchange
bytes in numbered rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from phalanx.errors import DistributedError, RankFailure
from phalanx.protocol import Channel, ChannelClosed, Gather, Gathered, Refused, ToRank

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

    @property
    def rank(self) -> int:
        """Return this process's rank."""

    @property
    def size(self) -> int:
        """Return the number of ranks."""

    def all_gather(self, data: bytes, *, timeout: float | None) -> list[bytes]:
        """Send a share to all ranks and return all shares, by rank.

        Raises
        ------
        TimeoutError
            Not all ranks arrived within ``timeout`` seconds.
        RankFailure, DistributedError
            The round can never be complete.
        """


def refusal(answer: Refused, host_names: Sequence[str]) -> DistributedError:
    """Convert the supervisor's refusal into an exception."""
    if answer.rank < 0:
        return DistributedError(answer.message)
    host = host_names[answer.rank] if answer.rank < len(host_names) else ""
    return RankFailure(answer.rank, host, answer.message)


class ChannelRendezvous:
    """Rendezvous of a world's ranks through their supervisors.

    ``channel`` leads to the supervisor of this host. ``host_names`` (by rank of the whole world)
    are for errors about a lost rank.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        epoch: int,
        rank: int,
        size: int,
        host_names: Sequence[str] = (),
    ) -> None:
        self._channel = channel
        self._epoch = epoch
        self._rank = rank
        self._size = size
        self._host_names = tuple(host_names)
        self._round = 0

    @property
    def rank(self) -> int:
        """Return this process's rank."""
        return self._rank

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        return self._size

    def all_gather(self, data: bytes, *, timeout: float | None) -> list[bytes]:
        """Do as `Rendezvous.all_gather`."""
        number = self._round
        self._round += 1
        answer = self._ask(data, number, timeout)
        if isinstance(answer, Refused):
            raise refusal(answer, self._host_names)
        if not isinstance(answer, Gathered) or len(answer.parts) != self._size:
            msg = (
                f"the supervisor answered round {number} of epoch {self._epoch} "
                f"with a wrong {type(answer).__name__}"
            )  # never print its contents: a Welcome holds the key
            raise DistributedError(msg)
        return list(answer.parts)

    def _ask(self, data: bytes, number: int, timeout: float | None) -> ToRank:
        ask = Gather(self._channel.next_id(), self._epoch, number, data)
        try:
            return self._channel.request(ask, ask.id, timeout=timeout)
        except ChannelClosed as error:
            raise DistributedError(str(error)) from error
        except TimeoutError as error:
            return self._late(ask.id, number, timeout, error)

    def _late(
        self, request_id: int, number: int, timeout: float | None, error: TimeoutError
    ) -> ToRank:
        """Withdraw a late round, but return an answer that arrived just now."""
        try:
            late = self._channel.withdraw(request_id)
        except ChannelClosed as closed:
            raise DistributedError(str(closed)) from closed
        except TimeoutError:
            who = "not every rank came"
        else:
            if late.id == request_id:
                return late
            missing = late.message if isinstance(late, Refused) else ""
            who = f"{missing} did not come" if missing else "not every rank came"
        msg = (
            f"{who} to round {number} of the rendezvous of epoch {self._epoch} "
            f"within {Deadline(timeout)}"
        )
        raise TimeoutError(msg) from error
