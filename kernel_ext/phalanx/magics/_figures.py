"""The places of ranks' figures in a cell's output: shown once, updated, taken back.

It knows IPython's displays by id, nothing of lines or prompts.
"""

from __future__ import annotations

import uuid
from collections import defaultdict, deque

from IPython.display import publish_display_data

from phalanx.workspace import Display

__all__ = ["Figures"]


class Figures:
    """Gives each figure a place (a display id of ours), so that it can be changed later.

    A rank that clears its output gives its places free; its next figures take them again, so a
    plot that is redrawn in a loop stays where it is while the other ranks' stay as they are.
    """

    def __init__(self) -> None:
        self._named: dict[tuple[int, str], str] = {}  # (rank, its display id) -> place
        self._shown: dict[int, list[str]] = defaultdict(list)
        self._free: dict[int, deque[str]] = defaultdict(deque)

    def has_place(self, event: Display) -> bool:
        """Whether this figure replaces one that is shown."""
        return (event.rank, event.display_id) in self._named or bool(self._free[event.rank])

    def show(self, event: Display) -> None:
        """Show a figure in its place, or in a new one."""
        key = event.rank, event.display_id
        if event.is_update and key not in self._named:
            return  # of a figure that another cell has shown
        place = self._named.get(key, "")
        is_update = bool(place)
        if not place and self._free[event.rank]:
            place, is_update = self._free[event.rank].popleft(), True
        place = place or str(uuid.uuid4())
        if event.display_id:
            self._named[key] = place
        if place not in self._shown[event.rank]:
            self._shown[event.rank].append(place)
        transient = {"display_id": place}
        publish_display_data(event.data, event.metadata, transient=transient, update=is_update)

    def clear(self, rank: int, *, wait: bool) -> None:
        """Give a rank's places free; without ``wait`` they are emptied at once."""
        places, self._shown[rank] = self._shown[rank], []
        self._free[rank].extend(places)
        self._named = {key: place for key, place in self._named.items() if key[0] != rank}
        if not wait:
            for place in places:
                publish_display_data(
                    {"text/plain": ""}, {}, transient={"display_id": place}, update=True
                )
