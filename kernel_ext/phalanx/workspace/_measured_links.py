"""Running the ranks' measurement of each path between two of them.

It knows the engine's call as code for a cell, and the MIME types of what comes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from phalanx.protocol import LINKS_DONE_MIME, LINKS_MIME, LinkMeasurement, LinksProgress

from ._events import Display
from ._output import MAX_LINES
from ._runner import CellRunner
from ._view import QuietView

__all__ = ["CanMeasureLinks"]

_CODE = "__import__('phalanx.rank').rank.publish_links()"


class _LinksView(QuietView):
    """Takes the measurements out of what rank 0 displays, and how far they are."""

    def __init__(self, n_links: int, tell: Callable[[LinksProgress], None]) -> None:
        self.found: tuple[LinkMeasurement, ...] = ()
        self._n_links, self._tell = n_links, tell
        self._begun_s = time.monotonic()

    def begin(self, ranks: tuple[int, ...]) -> None:
        """Say so: from here on the ranks can be interrupted."""
        self._begun_s = time.monotonic()
        self._say(0)

    def display(self, ranks: tuple[int, ...], event: Display) -> None:
        """Keep them."""
        if (done := event.data.get(LINKS_DONE_MIME)) is not None:
            self._say(msgspec.convert(done, dict[str, int])["n_done"])
        if (data := event.data.get(LINKS_MIME)) is not None:
            self.found = msgspec.convert(data, tuple[LinkMeasurement, ...])

    def _say(self, n_done: int) -> None:
        self._tell(LinksProgress(n_done, self._n_links, time.monotonic() - self._begun_s))


class CanMeasureLinks:
    """The part of a workspace that measures the paths between its ranks."""

    size: int
    _links: tuple[LinkMeasurement, ...] = ()
    _links_runner: CellRunner | None = None
    _links_engines: tuple[str, ...] = ()
    _links_progress: LinksProgress | None = None

    def _up(self) -> CellRunner:
        raise NotImplementedError

    @property
    def measured_links(self) -> tuple[LinkMeasurement, ...]:
        """What `measure_links` has found last; empty before.

        Of a rank that was replaced since nothing is known: those of its links are left out.
        """
        if self._links_runner is None:
            return ()
        now = self._links_runner.engines
        same = {rank for rank, engine in enumerate(self._links_engines) if now[rank] == engine}
        return tuple(link for link in self._links if link.a in same and link.b in same)

    @property
    def links_progress(self) -> LinksProgress | None:
        """How far `measure_links` is, for another thread; None while nothing is measured."""
        return self._links_progress

    def measure_links(self) -> tuple[LinkMeasurement, ...]:
        """Measure latency and bandwidth between each two ranks, one pair after the other.

        It is stopped as a cell is: by Ctrl-C, or `interrupt` from another thread.

        Returns
        -------
        tuple of LinkMeasurement
            One for each pair of ranks.

        Raises
        ------
        DistributedError
            The ranks run a cell; says which.
        RankFailure
            A rank is dead, or died meanwhile.
        KeyboardInterrupt
            It was stopped; what was measured until then is not kept.
        """
        runner = self._up()
        runner.check_idle()
        view = _LinksView(self.size * (self.size - 1) // 2, self._note_links)
        what = "a measurement of the links"
        engines = runner.engines
        try:
            runner.run(_CODE, None, view, timeout=None, max_lines=MAX_LINES, what=what)
        finally:
            self._links_progress = None
        self._links, self._links_runner, self._links_engines = view.found, runner, engines
        return self._links

    def _note_links(self, progress: LinksProgress) -> None:
        self._links_progress = progress
