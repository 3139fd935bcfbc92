"""Draw the figures of ranks.

Pictures are `<img>` elements that contain their bytes, so a saved notebook shows them without a
kernel and nothing in them runs. All text of ranks is escaped.

Cost: pictures of several ranks share grids of at most `FULL` pictures. A grid is sent when it
appears, and again when a picture in it is new or changed, at most 10 times a second and at
`BYTES_PER_S`. So ranks that show their pictures together send each picture once. If ranks show them
one by one, a grid is sent at most `FULL` times, and each picture about `FULL` / 2 times. A plot
that is redrawn in a loop costs its frames if the ranks are in step, and is bounded by the rate
otherwise.
"""

from __future__ import annotations

import base64
import math
import re
import uuid
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from typing import Any

from IPython.display import publish_display_data

from phalanx.protocol import name_ranks
from phalanx.workspace import IMAGE_KINDS, Display

# Pictures in one display. The display is sent again for each new or changed picture, so this number
# bounds the cost.
FULL = 16
_GRID = "display:flex;flex-wrap:wrap;gap:0.5em 1em;align-items:flex-start"
_WIDTHS = ((1, "100%"), (4, "48%"), (9, "31%"))  # (most pictures, widest picture)
_WIDTH = "23%"
_CAPTION = "font-family:monospace"
_PICTURE = "max-width:100%;height:auto"
_BACKGROUNDS = {"light": "#fff", "dark": "#111"}

_ALT = "\x00alt\x00"  # place of the alternative text; cannot occur in escaped text or base64
REDRAW_S = 0.1
BYTES_PER_S = 20e6  # limit for grids that are sent again, so that a browser stays usable
UNFOLDED = 16  # pictures of a cell; later grids are folded
MAX_NAMED = 1000  # remembered display ids of figures


@dataclass(eq=False)
class Slot:
    """The place of one figure in a grid; empty after a clear."""

    grid: Grid
    ranks: tuple[int, ...]
    event: Display | None = None


@dataclass(eq=False)
class Grid:
    """Figures that share one display.

    ``number`` counts the grids of a cell from 1. ``is_alone``: the display is for one figure, which
    need not be a picture.
    """

    number: int
    place: str  # the display id
    is_folded: bool
    is_alone: bool = False
    slots: list[Slot] = field(default_factory=list)
    is_shown: bool = False
    due_s: float = 0.0  # earliest time of the next drawing

    def bundle(self, label: Callable[[tuple[int, ...]], str]) -> dict[str, Any]:
        """Draw the grid as a MIME bundle; ``label`` makes the captions.

        A picture that several ranks show alike is drawn once, with all of these ranks.
        """
        figures: dict[str, tuple[set[int], Display]] = {}
        for slot in self.slots:
            if slot.event is not None:
                ranks, _ = figures.setdefault(_picture(slot.event), (set(), slot.event))
                ranks.update(slot.ranks)
        if not figures:
            return {}
        width = next((width for most, width in _WIDTHS if len(figures) <= most), _WIDTH)
        cells, lines, everyone = [], [], set()
        for picture, (ranks, event) in sorted(figures.items(), key=lambda item: min(item[1][0])):
            caption = (label(tuple(sorted(ranks))) + "Out:" * event.is_result).strip()
            text = str(event.data.get("text/plain", ""))
            what = f"figure of {name_ranks(ranks)}"
            cells.append(
                f'<figure style="margin:0;max-width:{width}">'
                f'<figcaption style="{_CAPTION}">{escape(caption)}</figcaption>'
                f"{picture.replace(_ALT, escape(f'{what}: {text}'), 1)}</figure>"
            )
            lines.append(f"{caption} {text}".strip())
            everyone |= ranks
        html = f'<div style="{_GRID}">{"".join(cells)}</div>'
        if self.is_folded:
            count = f"{len(cells)} figure{'s' * (len(cells) > 1)} of {name_ranks(everyone)}"
            html = f"<details><summary>{count}</summary>{html}</details>"
        return {"text/html": html, "text/plain": "\n".join(lines)}


def _picture(event: Display) -> str:
    """Write a figure's picture as HTML, or its text without one."""
    kind = next((kind for kind in IMAGE_KINDS if kind in event.data), "")
    if not kind:
        return f"<pre>{escape(str(event.data.get('text/plain', '')))}</pre>"
    data = str(event.data[kind])
    if kind == "image/svg+xml":
        if "xmlns=" not in data:  # an image needs it, inline SVG in a page does not
            data = data.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
        data = base64.b64encode(data.encode(errors="replace")).decode()
    else:
        data = escape("".join(data.split()))
    style = _PICTURE
    background = _BACKGROUNDS.get(str(event.metadata.get("needs_background")))
    if background:
        style += f";background:{background}"
    sizes = event.metadata.get(kind)
    size = ""
    for name in ("width", "height"):
        number = sizes.get(name) if isinstance(sizes, dict) else None
        if re.fullmatch(r"\d{1,5}(\.\d+)?", str(number)):
            size += f' {name}="{number}"'
    return f'<img src="data:{kind};base64,{data}" alt="{_ALT}" style="{style}"{size}>'


def publish(place: str, data: Any, metadata: Any = None, *, is_update: bool = False) -> None:
    """Show a MIME bundle in a display, or change the display."""
    transient = {"display_id": place}
    publish_display_data(data, metadata or {}, transient=transient, update=is_update)


def _slot_alone(rank: int) -> Slot:
    return Slot(Grid(0, str(uuid.uuid4()), is_folded=False, is_alone=True), (rank,))


Named = dict[tuple[int, str], Slot]  # (rank, the rank's display id) -> place, of all cells


class Figures:
    """Gives each figure of a cell a place where it can change.

    A rank that clears its output frees its places, and its next figures take them again. So a plot
    that is redrawn in a loop keeps its place, and other ranks' figures stay unchanged.

    A rank's picture joins the first grid below all output of that rank. So the ranks' first
    pictures stand side by side, then their second ones. Each stands below the text that its rank
    printed before it, even if one rank is late.

    ``label`` makes the caption of a picture. ``named`` is shared by the cells of a notebook: a rank
    may update a figure of an earlier cell.
    """

    def __init__(self, label: Callable[[tuple[int, ...]], str], named: Named) -> None:
        self._label = label
        self._named = named
        self._shown: dict[int, dict[Slot, None]] = defaultdict(dict)  # in order
        self._free: dict[int, deque[Slot]] = defaultdict(deque)
        self._grids: list[Grid] = []
        self._stale: dict[str, Grid] = {}  # by display id, the oldest first
        self._stands_at: dict[int, int] = {}  # rank -> number of the grid its last output is at
        self._widget_rows: list[dict[int, tuple[Slot, Slot]]] = []  # rank -> label, widget
        self._n_widgets: dict[int, int] = defaultdict(int)
        self._now_s = 0.0

    def is_new(self, event: Display) -> bool:
        """Whether `show` gives this figure a new place."""
        is_known = event.is_update or (event.rank, event.display_id) in self._named
        return not is_known and not any(slot.grid.is_alone for slot in self._free[event.rank])

    def said(self, ranks: tuple[int, ...]) -> None:
        """Note that these ranks show something below all grids so far."""
        self.settle()
        for rank in ranks:
            self._stands_at[rank] = len(self._grids)

    def settle(self) -> None:
        """Draw the grids that were not shown yet.

        Later output then stands below these grids.
        """
        for grid in [grid for grid in self._stale.values() if not grid.is_shown]:
            self._draw(grid)

    def show(self, event: Display, picture_of: tuple[int, ...] = ()) -> None:
        """Show a figure in its place, or below everything.

        A picture of the ranks ``picture_of`` shares a grid with other pictures.
        """
        slot = self._named.get((event.rank, event.display_id))
        if slot is None and event.is_update:
            return  # the figure to update was never shown
        if slot is None:
            slot = self._free_slot(event.rank, is_picture=bool(picture_of))
            if slot is None and picture_of:
                slot = self._slot_in_grid(picture_of)
            elif slot is None:
                self.said((event.rank,))
                slot = _slot_alone(event.rank)
            self._keep(event, slot)
        self._fill(slot, event)

    def show_widget(self, event: Display, ranks: tuple[int, ...]) -> None:
        """Show a rank's widget in its place in a row.

        The first row has the first widget of each rank, in the order of ranks, the second row the
        second ones. A place is an empty display until its rank fills it.
        """
        if not self.is_new(event):
            self.show(event)
            return
        number = self._n_widgets[event.rank]
        self._n_widgets[event.rank] += 1
        if number == len(self._widget_rows):
            self.said(ranks)
            self._widget_rows.append(
                {rank: (_slot_alone(rank), _slot_alone(rank)) for rank in ranks}
            )
            for slots in self._widget_rows[-1].values():
                for slot in slots:
                    self._fill(slot, None)
        label, slot = self._widget_rows[number][event.rank]
        text = (self._label((event.rank,)) + "Out:" * event.is_result).strip()
        if text:
            publish(label.grid.place, {"text/plain": text}, is_update=True)
        self._keep(event, slot)
        self._fill(slot, event)

    def _free_slot(self, rank: int, *, is_picture: bool) -> Slot | None:
        free = self._free[rank]
        while free:
            slot = free.popleft()
            if is_picture or slot.grid.is_alone:
                return slot
            self._fill(slot, None)  # a grid is for pictures
        return None

    def _slot_in_grid(self, ranks: tuple[int, ...]) -> Slot:
        behind = max(self._stands_at.get(rank, 0) for rank in ranks)
        grid = next((grid for grid in self._grids[behind:] if len(grid.slots) < FULL), None)
        if grid is None:
            is_folded = sum(len(grid.slots) for grid in self._grids) >= UNFOLDED
            grid = Grid(len(self._grids) + 1, str(uuid.uuid4()), is_folded)
            self._grids.append(grid)
        for rank in ranks:
            self._stands_at[rank] = grid.number
        slot = Slot(grid, ranks)
        grid.slots.append(slot)
        return slot

    def _fill(self, slot: Slot, event: Display | None) -> None:
        grid = slot.grid
        if grid.is_alone:  # sent at once, so that its data need no memory
            data, metadata = (event.data, event.metadata) if event is not None else ({}, {})
            publish(grid.place, data, metadata, is_update=grid.is_shown)
            grid.is_shown = True
        else:
            slot.event = event
            self._stale[grid.place] = grid

    def _keep(self, event: Display, slot: Slot) -> None:
        if event.display_id:
            self._named[event.rank, event.display_id] = slot
            while len(self._named) > MAX_NAMED:
                del self._named[next(iter(self._named))]
        self._shown[event.rank][slot] = None

    def clear(self, rank: int, *, wait: bool) -> None:
        """Free a rank's places; without ``wait`` also empty them at once."""
        slots, self._shown[rank] = self._shown[rank], {}
        self._free[rank].extend(slots)
        for key in [key for key, slot in self._named.items() if slot in slots]:
            del self._named[key]
        if not wait:
            for slot in slots:
                self._fill(slot, None)

    def refresh(self, now_s: float) -> float | None:
        self._now_s = now_s
        for grid in list(self._stale.values()):
            if not grid.is_shown or now_s >= grid.due_s:
                self._draw(grid)
        return min((grid.due_s for grid in self._stale.values()), default=None)

    def _draw(self, grid: Grid) -> None:
        del self._stale[grid.place]
        data = grid.bundle(self._label)
        publish(grid.place, data, is_update=grid.is_shown)
        grid.is_shown = True
        if math.isfinite(self._now_s):  # otherwise this was the last drawing
            nbytes = len(data.get("text/html", ""))
            grid.due_s = self._now_s + max(REDRAW_S, nbytes / BYTES_PER_S)
