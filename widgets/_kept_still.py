"""The still picture of a live widget in a notebook's file: an output of its own, drawn anew in time.

It knows IPython's displays and threads; what is on the picture is the widget's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from IPython.display import DisplayHandle, display

from ._still import StillPicture

__all__ = ["KeptStill"]

log = logging.getLogger(__name__)


class KeptStill:
    """An output that holds a still picture, and another one once that is not true any more.

    It lies beside the widget's own output, where a page that shows the widget hides it by its
    ``mark`` (``shared/still.ts``): whatever replaces data in the widget's output makes a front end
    build the view anew, without what a person has typed, chosen and zoomed in it.

    `renew` may be called by any thread. Pictures are drawn by one thread at a time, which lives
    while there is one to draw, without the condition's lock, which all else belongs to.
    """

    def __init__(self, draw: Callable[[], StillPicture]) -> None:
        self._draw = draw
        self._changed = threading.Condition()
        self._handle: DisplayHandle | None = None
        self._mark = ""
        self._shown: StillPicture | None = None
        self._n_wanted = self._n_drawn = 0
        self._is_drawing = False
        self._is_there = True

    def show(self, picture: StillPicture, mark: str) -> None:
        """Display the picture here; more than one output of it is renewed together."""
        with self._changed:
            self._mark = mark
            marked = self._marked(picture)
            if self._handle is None:
                self._handle = display(marked, display_id=True)
            else:
                self._handle.display(marked)
            self._shown = picture

    def renew(self, wait_s: float = 0.0) -> None:
        """Draw it anew where it is shown, and wait so long for that at most."""
        with self._changed:
            if self._handle is None or not self._is_there:
                return
            self._n_wanted += 1
            wanted = self._n_wanted
            if not self._is_drawing:
                self._is_drawing = True
                threading.Thread(target=self._run, name="phalanx-still", daemon=True).start()
            self._changed.wait_for(lambda: self._n_drawn >= wanted, wait_s)

    def mark_there(self, is_there: bool) -> None:
        """Note whether its output is on a page yet: what no file can hold need not be drawn."""
        with self._changed:
            self._is_there = is_there

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._n_drawn == self._n_wanted:
                    self._is_drawing = False
                    return
                wanted = self._n_wanted
            try:
                self._put(self._draw())
            except Exception:
                # The next one may well succeed; the file has the one before.
                log.exception("a still picture could not be drawn anew")
            with self._changed:
                self._n_drawn = wanted
                self._changed.notify_all()

    def _put(self, picture: StillPicture) -> None:
        with self._changed:
            if self._handle is not None and picture != self._shown:
                self._handle.update(self._marked(picture))
                self._shown = picture

    def _marked(self, picture: StillPicture) -> StillPicture:
        return replace(
            picture, svg=picture.svg.replace("<svg", f'<svg data-px-still="{self._mark}"', 1)
        )
