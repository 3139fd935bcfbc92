"""Whether the other side of a link between supervisors lives, and how its clock stands to ours.

Pure: what was heard when, and the clock's time, in.
"""

from __future__ import annotations

__all__ = ["ClockOffset", "Silence", "beat_every_s"]

# As a look at ranks' hearts: a pause of our own (a suspended machine) is no silence of theirs.
MOST_STEP_S = 0.5


def beat_every_s(silence_s: float) -> float:
    """How often each side lets the other hear from it.

    Examples
    --------
    >>> beat_every_s(5.0), beat_every_s(2.0)
    (1.0, 0.5)
    """
    return min(1.0, silence_s / 4)


class Silence:
    """Counts how long nothing was heard, in steps, so that a pause of ours counts as one step.

    Examples
    --------
    >>> silence = Silence(2.0, now_s=0.0)
    >>> [silence.is_over(now) for now in (0.4, 0.8, 100.0, 100.5, 101.0, 101.5)]
    [False, False, False, False, True, True]
    """

    def __init__(self, limit_s: float, now_s: float) -> None:
        self._limit_s = limit_s
        self._looked_s = now_s
        self._lasts_s = 0.0

    @property
    def lasts_s(self) -> float:
        """How long it has lasted at the last look."""
        return self._lasts_s

    def heard(self) -> None:
        """Note that the other side has said something."""
        self._lasts_s = 0.0

    def is_over(self, now_s: float) -> bool:
        """Look; whether the silence has lasted for the limit."""
        self._lasts_s += min(now_s - self._looked_s, MOST_STEP_S)
        self._looked_s = now_s
        return self._lasts_s >= self._limit_s


class ClockOffset:
    """How the clock of another machine stands to ours, by the fastest answers that there were.

    An answer tells the other's time at some moment of its round trip: half of that is what it may
    be wrong by. Clocks drift apart (100 ppm is much), so an old answer is worth less by the second.

    Examples
    --------
    >>> offset = ClockOffset()
    >>> offset.learn(sent_ns=1_000, came_ns=1_200, theirs_ns=501_100)
    >>> offset.at(1_200)
    (-500000, 100)
    """

    DRIFT = 1e-4

    def __init__(self) -> None:
        self._best: tuple[int, int, int] | None = None  # offset, uncertainty, when (ns)

    @property
    def is_known(self) -> bool:
        """Whether there was an answer."""
        return self._best is not None

    def learn(self, *, sent_ns: int, came_ns: int, theirs_ns: int) -> None:
        """Take one answer."""
        half = (came_ns - sent_ns) // 2
        offset = sent_ns + half - theirs_ns
        if self._best is None or half <= self.at(came_ns)[1]:
            self._best = offset, half, came_ns

    def at(self, now_ns: int) -> tuple[int, int]:
        """Return what to add to the other's time, and by how much that may be wrong (ns)."""
        if self._best is None:
            return 0, 0
        offset, uncertainty, when = self._best
        return offset, uncertainty + int((now_ns - when) * self.DRIFT)
