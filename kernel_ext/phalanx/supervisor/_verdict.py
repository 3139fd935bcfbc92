"""Which rank of a script failed first, in the sense of cause.

Pure: ends and aborts in their order, a rank out.
"""

from __future__ import annotations

__all__ = ["Verdict"]


class Verdict:
    """How the ranks of a script ended, and whose end was the first failure.

    A rank that was only freed from an operation because of another says so before it ends
    (`blame`); if that other one fails as well, the failure is its.

    Examples
    --------
    >>> verdict = Verdict(3)
    >>> verdict.blame(0, 2)
    >>> verdict.end(0, 1); verdict.end(2, -9); verdict.ending(); verdict.end(1, -15)
    >>> verdict.culprit, verdict.statuses
    (2, (1, -15, -9))
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._statuses: dict[int, int] = {}
        self._blamed: dict[int, int] = {}
        self._is_ending = False
        self._failed: list[int] = []  # in order, before the rest were ended

    def blame(self, rank: int, culprit: int) -> None:
        """Note that ``rank`` was freed because of ``culprit``."""
        if culprit not in {rank, -1}:
            self._blamed.setdefault(rank, culprit)

    def forgive(self, rank: int) -> None:
        """Note that ``rank`` goes on: what it fails of later is something else."""
        self._blamed.pop(rank, None)

    def end(self, rank: int, status: int) -> None:
        """Note the end of a rank."""
        self._statuses[rank] = status
        if status and not self._is_ending:
            self._failed.append(rank)

    def ending(self) -> None:
        """Note that the ranks that still run are being ended: what becomes of them is no cause."""
        self._is_ending = True

    def _chain(self) -> list[int]:
        """Return the first that failed, the one it blames, and so on."""
        chain = self._failed[:1]
        while chain and (blamed := self._blamed.get(chain[-1], -1)) >= 0 and blamed not in chain:
            chain.append(blamed)
        return chain

    @property
    def culprit(self) -> int:
        """The rank that failed first, -1 if none did."""
        return next((rank for rank in reversed(self._chain()) if rank in self._failed), -1)

    @property
    def is_open(self) -> bool:
        """Whether the first that failed blames one that still runs, and so may fail itself."""
        chain = self._chain()
        return bool(chain) and chain[-1] not in self._statuses

    @property
    def running(self) -> tuple[int, ...]:
        """Ranks that have not ended."""
        return tuple(rank for rank in range(self._size) if rank not in self._statuses)

    @property
    def statuses(self) -> tuple[int, ...]:
        """Exit statuses by rank, when all have ended."""
        return tuple(self._statuses[rank] for rank in range(self._size))
