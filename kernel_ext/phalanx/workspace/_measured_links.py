"""Running the ranks' measurement of each path between two of them.

It knows the engine's call as code for a cell, and the MIME type that comes back.
"""

from __future__ import annotations

import msgspec

from phalanx.protocol import LINKS_MIME, LinkMeasurement

from ._events import Display
from ._output import MAX_LINES
from ._runner import CellRunner
from ._view import QuietView

__all__ = ["CanMeasureLinks"]

_CODE = "__import__('phalanx.rank').rank.publish_links()"


class _LinksView(QuietView):
    """Takes the measurements out of what rank 0 displays."""

    def __init__(self) -> None:
        self.found: tuple[LinkMeasurement, ...] = ()

    def display(self, ranks: tuple[int, ...], event: Display) -> None:
        """Keep them."""
        data = event.data.get(LINKS_MIME)
        if data is not None:
            self.found = msgspec.convert(data, tuple[LinkMeasurement, ...])


class CanMeasureLinks:
    """The part of a workspace that measures the paths between its ranks."""

    _links: tuple[LinkMeasurement, ...] = ()

    def _up(self) -> CellRunner:
        raise NotImplementedError

    @property
    def measured_links(self) -> tuple[LinkMeasurement, ...]:
        """What `measure_links` has found last; empty before."""
        return self._links

    def measure_links(self) -> tuple[LinkMeasurement, ...]:
        """Measure latency and bandwidth between each two ranks, one pair after the other.

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
        """
        runner = self._up()
        runner.check_idle()
        view = _LinksView()
        what = "a measurement of the links"
        runner.run(_CODE, None, view, timeout=None, max_lines=MAX_LINES, what=what)
        self._links = view.found
        return self._links
