"""The places of ranks' figures in a cell's output: shown once, updated, taken back.

It knows IPython's displays by id and where ranks' text stands, nothing of lines or prompts.

What it costs: pictures of several ranks come together in grids of at most `FULL`. A grid is sent
when it appears, and again when a picture in it is new or changed, 10 times a second and
`BYTES_PER_S` at most. So ranks that show their pictures together send each once; ranks that come
one by one send a grid `FULL` times at worst, each picture about `FULL` / 2 times; a plot that is
redrawn in a loop costs its frames where ranks keep in step, and the rate where they do not.
"""

from __future__ import annotations

import math
import uuid
from collections import defaultdict, deque
from collections.abc import Callable

from IPython.display import publish_display_data

from phalanx.workspace import Display

from ._grid import FULL, Grid, Slot

__all__ = ["Figures", "Named"]

REDRAW_S = 0.1
BYTES_PER_S = 20e6  # of grids that are sent again: a browser stays usable
UNFOLDED = 16  # pictures of a cell; grids after them are folded
MAX_NAMED = 1000  # names of figures that are remembered

Place = str | Slot  # a display id of ours, or a slot in a grid
Named = dict[tuple[int, str], Place]  # (rank, its own display id) -> place, of all cells


class Figures:
    """Gives each figure of a cell a place, so that it can be changed later.

    A rank that clears its output gives its places free; its next figures take them again, so a
    plot that is redrawn in a loop stays where it is while the other ranks' stay as they are.

    A rank's picture joins the first grid below everything that the rank has shown: so the ranks'
    first pictures stand side by side, then their second ones, and each below what its rank
    printed before it, also where one rank comes late.

    Parameters
    ----------
    label : callable
        What stands over a picture of some ranks.
    named : dict
        Shared by the cells of a notebook: a rank may update what an earlier cell displayed.
    """

    def __init__(self, label: Callable[[tuple[int, ...]], str], named: Named) -> None:
        self._label = label
        self._named = named
        self._shown: dict[int, dict[Place, None]] = defaultdict(dict)  # in order
        self._free: dict[int, deque[Place]] = defaultdict(deque)
        self._grids: list[Grid] = []
        self._stale: dict[str, Grid] = {}  # by display id, the oldest first
        self._stands_at: dict[int, int] = {}  # rank -> number of the grid its last output is at
        self._n_pictures = 0
        self._now_s = 0.0

    def is_new(self, event: Display) -> bool:
        """Whether `show` gives this figure a new place."""
        is_known = event.is_update or (event.rank, event.display_id) in self._named
        return not is_known and not any(isinstance(p, str) for p in self._free[event.rank])

    def said(self, ranks: tuple[int, ...]) -> None:
        """Note that these ranks show something now, below all grids so far."""
        self.settle()
        for rank in ranks:
            self._stands_at[rank] = len(self._grids)

    def settle(self) -> None:
        """Draw the grids that have no place yet: what is shown next stands below them."""
        for grid in [grid for grid in self._stale.values() if not grid.is_shown]:
            self._draw(grid)

    def show(self, event: Display) -> None:
        """Show a figure in its place, or in a new one below everything."""
        place = self._named.get((event.rank, event.display_id))
        if place is None and event.is_update:
            return  # of a figure that nobody has seen
        if isinstance(place, Slot):
            self._fill(place, event)
            return
        is_update = place is not None
        free = self._free[event.rank]
        while place is None and free:
            first = free.popleft()
            if isinstance(first, str):
                place, is_update = first, True
            else:
                self._fill(first, None)  # a grid is for pictures
        if place is None:
            self.said((event.rank,))
        place = place or str(uuid.uuid4())
        self._keep(event, place)
        transient = {"display_id": place}
        publish_display_data(event.data, event.metadata, transient=transient, update=is_update)

    def show_picture(self, ranks: tuple[int, ...], event: Display) -> None:
        """Show a picture in its place, or in a grid beside those of the other ranks."""
        free = self._free[event.rank]
        if event.is_update or (event.rank, event.display_id) in self._named:
            self.show(event)
            return
        place = free[0] if free else self._new_slot(ranks)
        if isinstance(place, str):
            self.show(event)
            return
        if free:
            free.popleft()
        self._fill(place, event)
        self._keep(event, place)

    def _new_slot(self, ranks: tuple[int, ...]) -> Slot:
        behind = max(self._stands_at.get(rank, 0) for rank in ranks)
        grid = next((grid for grid in self._grids[behind:] if len(grid.slots) < FULL), None)
        if grid is None:
            is_folded = self._n_pictures >= UNFOLDED
            grid = Grid(len(self._grids) + 1, str(uuid.uuid4()), is_folded)
            self._grids.append(grid)
        self._n_pictures += 1
        for rank in ranks:
            self._stands_at[rank] = grid.number
        slot = Slot(grid, ranks)
        grid.slots.append(slot)
        return slot

    def _fill(self, slot: Slot, event: Display | None) -> None:
        slot.event = event
        self._stale[slot.grid.place] = slot.grid

    def _keep(self, event: Display, place: Place) -> None:
        if event.display_id:
            self._named[event.rank, event.display_id] = place
            while len(self._named) > MAX_NAMED:
                del self._named[next(iter(self._named))]
        self._shown[event.rank][place] = None

    def clear(self, rank: int, *, wait: bool) -> None:
        """Give a rank's places free; without ``wait`` they are emptied at once."""
        places, self._shown[rank] = self._shown[rank], {}
        self._free[rank].extend(places)
        for key in [key for key, place in self._named.items() if place in places]:
            del self._named[key]
        if wait:
            return
        for place in places:
            if isinstance(place, Slot):
                self._fill(place, None)
            else:
                publish_display_data({}, {}, transient={"display_id": place}, update=True)

    def refresh(self, now_s: float) -> float | None:
        """Draw the grids whose time has come; say when the next one's comes."""
        self._now_s = now_s
        for grid in list(self._stale.values()):
            if not grid.is_shown or now_s >= grid.due_s:
                self._draw(grid)
        return min((grid.due_s for grid in self._stale.values()), default=None)

    def _draw(self, grid: Grid) -> None:
        del self._stale[grid.place]
        data = grid.bundle(self._label)
        transient = {"display_id": grid.place}
        publish_display_data(data, {}, transient=transient, update=grid.is_shown)
        grid.is_shown = True
        if math.isfinite(self._now_s):  # else it was the last time
            nbytes = len(data.get("text/html", ""))
            grid.due_s = self._now_s + max(REDRAW_S, nbytes / BYTES_PER_S)
