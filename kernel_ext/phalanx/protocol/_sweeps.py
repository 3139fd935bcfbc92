"""The records of a bandwidth sweep as a whole: how far it is, what bounds it, what came of it.

A leaf, as its neighbours: immutable and typed; one point of a sweep is a `Measurement`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ._records import Measurement

__all__ = ["LIMITS_MIME", "Limit", "LinksProgress", "SweepProgress", "SweepRun", "SweepState"]

# In which a rank displays what bounds it to whoever runs the sweep.
LIMITS_MIME = "application/vnd.phalanx.limits+json"

SweepState = Literal["waiting", "measuring", "done", "stopped", "failed"]


class Limit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the machine of all ranks can do without us, over the path that a transport takes.

    ``gbs`` is 1e9 bytes that arrived a second: a copy of n bytes counts n, though it reads n and
    writes n. ``nbytes`` and ``seconds`` say how much was moved to find that out, ``how`` in words.
    Where it is not known ``gbs`` is 0, and ``how`` says why.
    """

    name: str
    transport: Literal["arena", "tcp"]
    gbs: float
    nbytes: int
    seconds: float
    how: str


class SweepProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a sweep is: sizes done of all, the size (bytes) that is measured now, and the times.

    ``left_s`` is an estimate from the sizes so far; None while there is none.
    """

    state: SweepState
    n_done: int
    n_points: int
    nbytes: int
    elapsed_s: float
    left_s: float | None

    @property
    def text(self) -> str:
        """One line in a user's words.

        Examples
        --------
        >>> SweepProgress("measuring", 3, 11, 512, 1.0, 4.2).text
        '3 of 11 sizes, about 4 s left'
        """
        far = f"{self.n_done} of {self.n_points} size{'' if self.n_points == 1 else 's'}"
        if self.state == "waiting":
            return "waiting for the ranks"
        if self.state != "measuring":
            return f"{self.state} after {far}, {self.elapsed_s:.1f} s"
        if self.left_s is None:
            return far
        return f"{far}, {_about(self.left_s)} left"


class LinksProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a measurement of the links between ranks is: pairs done of all, and since when."""

    n_done: int
    n_links: int
    elapsed_s: float

    @property
    def text(self) -> str:
        """One line in a user's words.

        Examples
        --------
        >>> LinksProgress(504, 2016, 8.0).text
        '504 of 2016 links, about 24 s left'
        >>> LinksProgress(0, 2016, 0.1).text
        '0 of 2016 links'
        """
        far = f"{self.n_done} of {self.n_links} link{'' if self.n_links == 1 else 's'}"
        if not self.n_done:
            return far
        left_s = self.elapsed_s / self.n_done * (self.n_links - self.n_done)
        return f"{far}, {_about(left_s)} left"


class SweepRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sweep that is over: what was asked, what was measured, how it ended, when it began."""

    op: str
    dtype: str
    ranks: int
    state: SweepState
    started: str
    points: tuple[Measurement, ...]
    limits: tuple[Limit, ...] = ()


def _about(seconds: float) -> str:
    if seconds < 1:
        return "less than 1 s"
    return f"about {seconds:.0f} s" if seconds < 90 else f"about {seconds / 60:.0f} min"
