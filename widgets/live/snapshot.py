"""Keep a still picture of a live widget in the notebook's file.

The picture is a separate output beside the widget; it is redrawn when its content changes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from IPython.display import DisplayHandle, display

from ..stills.svg import StillPicture

log = logging.getLogger(__name__)


class SavedSnapshot:
    """An output that holds a still picture and is updated when outdated.

    The output lies beside the widget's own output. A page that shows the widget hides the picture,
    found by its ``mark`` (``shared/still.ts``). The picture is a separate output because replacing
    data in the widget's output makes a front end rebuild the view; the text typed, the choice and
    the zoom of the user would be lost.

    Any thread may call `ask`. One thread at a time draws, and at most one other waits for it.
    `_lock` guards the fields; it is not held while drawing.
    """

    def __init__(self, draw: Callable[[], StillPicture]) -> None:
        self._draw = draw
        self._drawing = threading.Lock()
        self._lock = threading.Lock()
        self._handle: DisplayHandle | None = None
        self._mark = ""
        self._shown: StillPicture | None = None
        self._next: threading.Event | None = None  # set after a drawing that has not begun yet

    def show(self, picture: StillPicture, mark: str) -> None:
        """Display the picture here; all its outputs are updated together."""
        with self._lock:
            self._mark, self._shown = mark, picture
            marked = self._marked(picture)
            if self._handle is None:
                self._handle = display(marked, display_id=True)
            else:
                self._handle.display(marked)

    def ask(self) -> threading.Event:
        """Draw anew on another thread; return an event that is set afterwards."""
        with self._lock:
            if self._next is not None:
                return self._next
            drawn = threading.Event()
            if self._handle is None:
                drawn.set()
                return drawn
            thread = threading.Thread(
                target=self._renew, args=(drawn,), name="phalanx-still", daemon=True
            )
            try:
                thread.start()
                self._next = drawn
            except RuntimeError:  # the limit of threads is reached
                drawn.set()
                log.exception("a still picture could not be drawn anew")
            return drawn

    def _renew(self, drawn: threading.Event) -> None:
        with self._drawing:
            with self._lock:
                self._next = None  # what changes from now on may be missing in this drawing
            try:
                picture = self._draw()
                with self._lock:
                    if self._handle is not None and picture != self._shown:
                        self._handle.update(self._marked(picture))
                    self._shown = picture
            except Exception:
                # The next drawing may succeed; the file keeps the old picture.
                log.exception("a still picture could not be drawn anew")
            finally:
                drawn.set()

    def _marked(self, picture: StillPicture) -> StillPicture:
        return replace(
            picture, svg=picture.svg.replace("<svg", f'<svg data-px-still="{self._mark}"', 1)
        )
