"""How ranks that have no connection yet tell each other where they listen.

One small seam, `Rendezvous`: through the supervisor, or in memory among threads of one
process. It carries bytes in rounds and knows nothing of what they say.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from phalanx.errors import DistributedError, RankFailure
from phalanx.protocol import Channel, ChannelClosed, Gather, Gathered, Refused, ToRank

from ._deadline import Deadline

__all__ = ["ChannelRendezvous", "MemoryRendezvous", "Rendezvous", "name_ranks", "refusal"]


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
    """A place where all ranks of one epoch meet, round after round."""

    @property
    def rank(self) -> int:
        """This process's rank."""

    @property
    def size(self) -> int:
        """How many ranks meet."""

    def all_gather(self, data: bytes, *, timeout: float | None) -> list[bytes]:
        """Give a share to everyone; the shares of all ranks come back, by rank.

        Raises
        ------
        TimeoutError
            Not all ranks came within ``timeout`` seconds.
        RankFailure, DistributedError
            The round can never be complete.
        """


class _Board:
    """The rounds of a `MemoryRendezvous`; the condition's lock guards every field."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.rounds: list[dict[int, bytes]] = []
        self.given_up: str | None = None


class MemoryRendezvous:
    """Ranks that are threads of one process; make all of them with `of_size`.

    Examples
    --------
    >>> alone, = MemoryRendezvous.of_size(1)
    >>> alone.all_gather(b"here", timeout=1.0)
    [b'here']
    """

    def __init__(self, board: _Board, rank: int) -> None:
        self._board = board
        self._rank = rank
        self._round = 0

    @classmethod
    def of_size(cls, size: int) -> list[MemoryRendezvous]:
        """One rendezvous per rank, which meet each other."""
        board = _Board(size)
        return [cls(board, rank) for rank in range(size)]

    @property
    def rank(self) -> int:
        """This thread's rank."""
        return self._rank

    @property
    def size(self) -> int:
        """How many ranks meet."""
        return self._board.size

    def all_gather(self, data: bytes, *, timeout: float | None) -> list[bytes]:
        """As `Rendezvous.all_gather`; who gives up ends the rendezvous for the others too."""
        board, number = self._board, self._round
        self._round += 1
        deadline = Deadline(timeout)
        with board.changed:
            while len(board.rounds) <= number:
                board.rounds.append({})
            parts = board.rounds[number]
            parts[self._rank] = data
            board.changed.notify_all()
            while len(parts) < board.size:
                if board.given_up is not None:
                    raise DistributedError(board.given_up)
                if not board.changed.wait(deadline.remaining()) and len(parts) < board.size:
                    missing = [rank for rank in range(board.size) if rank not in parts]
                    board.given_up = f"rank {self._rank} gave up the rendezvous"
                    board.changed.notify_all()
                    msg = f"{name_ranks(missing)} did not come to the rendezvous within {deadline}"
                    raise TimeoutError(msg)
            return [parts[rank] for rank in range(board.size)]


def refusal(answer: Refused, host_names: Sequence[str]) -> DistributedError:
    """Turn the supervisor's refusal into the error it stands for."""
    if answer.rank < 0:
        return DistributedError(answer.message)
    host = host_names[answer.rank] if answer.rank < len(host_names) else ""
    return RankFailure(answer.rank, host, answer.message)


class ChannelRendezvous:
    """Ranks of one world, through their supervisors.

    Parameters
    ----------
    channel : Channel
        To the supervisor of this host.
    epoch, rank, size : int
        As in the supervisor's `Welcome`.
    host_names : sequence of str, by rank
        To say where a lost rank ran.
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
        """This process's rank."""
        return self._rank

    @property
    def size(self) -> int:
        """How many ranks meet."""
        return self._size

    def all_gather(self, data: bytes, *, timeout: float | None) -> list[bytes]:
        """As `Rendezvous.all_gather`."""
        number = self._round
        self._round += 1
        answer = self._ask(data, number, timeout)
        if isinstance(answer, Refused):
            raise refusal(answer, self._host_names)
        if not isinstance(answer, Gathered) or len(answer.parts) != self._size:
            msg = (
                f"the supervisor answered round {number} of epoch {self._epoch} "
                f"with a wrong {type(answer).__name__}"
            )  # its contents stay out of texts: a Welcome holds the key
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
        """Give up a round that was not complete in time, unless it is just now."""
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
