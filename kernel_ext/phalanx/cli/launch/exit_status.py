"""Decide the exit status of `phalanx launch`.

`exit_status` has the rules, `FailureAttribution` finds the rank that failed first.
"""

from __future__ import annotations

from collections.abc import Collection

_TIMED_OUT = 124  # as of timeout(1)


def exit_status(status: int, *, signal: int = 0, timed_out: bool = False) -> int:
    """Return the exit status of a launch; the first rule that applies.

    1. A signal has ended the launch: 128 and the ``signal``.
    2. The time limit has ended it (``timed_out``): 124.
    3. The ``status`` of the ranks: 1 if they could not be started, else `FailureAttribution.status`,
       with MPI that of mpirun. Below 0 it is that of a process that a signal has ended, as
       `subprocess` gives it: 128 and that signal.

    After a mistake in the options the command line itself returns 2, after an error of ours 1.

    Examples
    --------
    >>> exit_status(3), exit_status(-9), exit_status(-9, signal=2), exit_status(-9, timed_out=True)
    (3, 137, 130, 124)
    """
    if signal:
        return 128 + signal
    if timed_out:
        return _TIMED_OUT
    return status if status >= 0 else 128 - status


class FailureAttribution:
    """Record how a script's ranks ended, and which failed first.

    A rank that fails only because another rank failed reports that rank before it ends (`blame`).
    If the blamed rank fails too, the blamed rank is the culprit.

    Examples
    --------
    >>> attribution = FailureAttribution(3)
    >>> attribution.blame(0, 2)
    >>> attribution.end(0, 1); attribution.end(2, -9); attribution.is_ending = True; attribution.end(1, -15)
    >>> attribution.culprit, attribution.status
    (2, -9)
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._statuses: dict[int, int] = {}
        self._blamed: dict[int, int] = {}
        self.is_ending = False  # whether running ranks are being ended: later failures do not count
        self.is_forced = False  # whether running ranks were sent signals
        self._left_behind: frozenset[int] = frozenset()
        self._failed: list[int] = []  # in order of failure, before the remaining ranks were ended

    def blame(self, rank: int, culprit: int) -> None:
        """Record that ``rank`` was freed because of ``culprit``."""
        if culprit not in {rank, -1}:
            self._blamed.setdefault(rank, culprit)

    def has_own_cause(self, rank: int, status: int) -> bool:
        """Whether a rank that ends with ``status`` is the first failure.

        A rank that was killed has not failed because of another one, whatever it has reported.

        Examples
        --------
        >>> attribution = FailureAttribution(3)
        >>> attribution.blame(0, 2)
        >>> [attribution.has_own_cause(0, status) for status in (0, 1, -9)]
        [False, False, True]
        """
        return status < 0 or (status > 0 and rank not in self._blamed)

    def forgive(self, rank: int) -> None:
        """Record that ``rank`` goes on: a later failure has another cause."""
        self._blamed.pop(rank, None)

    def end(self, rank: int, status: int) -> None:
        """Record the end of a rank."""
        self._statuses[rank] = status
        if status and not self.is_ending:
            self._failed.append(rank)

    def leave_behind(self, ranks: Collection[int]) -> None:
        """Record that the others went on without these ranks.

        The ends of these ranks are no failure of the script.
        """
        self._left_behind = frozenset(ranks)
        self._failed = [rank for rank in self._failed if rank not in self._left_behind]

    @property
    def left(self) -> set[int]:
        """Return the ranks that ended with exit status 0."""
        return {rank for rank, status in self._statuses.items() if not status}

    @property
    def has_failed(self) -> bool:
        """Whether a rank has failed for good."""
        return bool(self._failed)

    @property
    def done_without(self) -> tuple[int, ...]:
        """Return the failed ranks without which the others all ended well.

        Examples
        --------
        >>> attribution = FailureAttribution(3)
        >>> attribution.end(1, -9); attribution.leave_behind({1}); attribution.end(0, 0); attribution.end(2, 0)
        >>> attribution.culprit, attribution.done_without
        (-1, (1,))
        """
        others = self._statuses.keys() - self._left_behind
        if any(self._statuses[rank] for rank in others):
            return ()
        return tuple(sorted(rank for rank in self._left_behind if self._statuses[rank]))

    def _chain(self) -> list[int]:
        """Return the chain of blame, beginning with the first failed rank."""
        chain = self._failed[:1]
        while chain and (blamed := self._blamed.get(chain[-1], -1)) >= 0 and blamed not in chain:
            chain.append(blamed)
        return chain

    @property
    def culprit(self) -> int:
        """Return the rank that failed first; -1 if none did."""
        return next((rank for rank in reversed(self._chain()) if rank in self._failed), -1)

    @property
    def beside(self) -> str:
        """Return the culprit's cause and the fate of other ranks.

        The culprit may have waited for a rank that ended well meanwhile.

        Examples
        --------
        >>> attribution = FailureAttribution(3)
        >>> attribution.blame(1, 0); attribution.end(0, 0); attribution.end(1, 1)
        >>> attribution.is_forced = True
        >>> attribution.beside
        '; rank 0 had ended while it was waited for; the others were ended'
        """
        last = next(reversed(self._chain()), -1)
        left_early = self._statuses.get(last) == 0
        early = f"; rank {last} had ended while it was waited for" if left_early else ""
        return early + ("; the others were ended" if self.is_forced else "")

    @property
    def is_open(self) -> bool:
        """Whether the first failure blames a rank that still runs.

        That rank may yet fail and become the culprit.
        """
        chain = self._chain()
        return bool(chain) and chain[-1] not in self._statuses

    @property
    def running(self) -> tuple[int, ...]:
        """Return the ranks that have not ended."""
        return tuple(rank for rank in range(self._size) if rank not in self._statuses)

    @property
    def status(self) -> int:
        """Return the status that stands for all ranks, once they have ended.

        It is that of the rank that failed first; 0 if the others went on without the failed ranks
        and ended well. If no rank failed before the ranks were ended, it is the first that is not 0.
        """
        if self.done_without:
            return 0
        if self.culprit >= 0:
            return self._statuses[self.culprit]
        return next((status for _, status in sorted(self._statuses.items()) if status), 0)
