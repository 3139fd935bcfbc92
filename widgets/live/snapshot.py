"""Keep a still picture of a live widget in the notebook's file.

The picture is a separate output beside the widget; it is redrawn when its content changes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
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

    ``basis`` returns cheaply what the picture depends on. If the basis is unchanged, nothing is
    drawn. None: unknown, so draw.

    Any thread may call `ask`, which never raises. One thread at a time draws pictures, and it ends
    when none is left to draw. It draws without the condition's lock; the lock guards all fields.
    """

    def __init__(
        self, draw: Callable[[], StillPicture], basis: Callable[[], object] = lambda: None
    ) -> None:
        self._draw = draw
        self._basis = basis
        self._changed = threading.Condition()
        self._handle: DisplayHandle | None = None
        self._mark = ""
        self._shown: StillPicture | None = None
        self._shown_basis: object = None
        self._n_wanted = self._n_drawn = 0
        self._is_forced = False
        self._thread: threading.Thread | None = None

    def show(self, picture: StillPicture, mark: str) -> None:
        """Display the picture here; all its outputs are updated together."""
        with self._changed:
            self._mark = mark
            marked = self._marked(picture)
            if self._handle is None:
                self._handle = display(marked, display_id=True)
            else:
                self._handle.display(marked)
            self._shown, self._shown_basis = picture, None

    def ask(self, *, is_forced: bool = False) -> int:
        """Request a new drawing; return a number for `wait`.

        ``is_forced``: draw even if the basis is unchanged.
        """
        with self._changed:
            if self._handle is None:
                return 0
            self._is_forced |= is_forced
            self._n_wanted += 1
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="phalanx-still", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # the limit of threads is reached
                    self._n_wanted = self._n_drawn  # so that `wait` returns
                    log.exception("a still picture could not be drawn anew")
            return self._n_wanted

    def wait(self, wanted: int, wait_s: float) -> None:
        """Wait at most ``wait_s`` for a picture requested with `ask`."""
        with self._changed:
            self._changed.wait_for(lambda: self._n_drawn >= wanted, wait_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._n_drawn >= self._n_wanted:
                    self._thread = None
                    return
                wanted, is_forced, self._is_forced = self._n_wanted, self._is_forced, False
            try:
                # Take the basis first: changes during the drawing may be missing in the picture.
                basis = self._basis()
                if is_forced or basis is None or basis != self._shown_basis:
                    self._put(self._draw(), basis)
            except Exception:
                # The next drawing may succeed; the file keeps the old picture.
                log.exception("a still picture could not be drawn anew")
            with self._changed:
                self._n_drawn = wanted
                self._changed.notify_all()

    def _put(self, picture: StillPicture, basis: object) -> None:
        with self._changed:
            if self._handle is not None and picture != self._shown:
                self._handle.update(self._marked(picture))
            self._shown, self._shown_basis = picture, basis

    def _marked(self, picture: StillPicture) -> StillPicture:
        return replace(
            picture, svg=picture.svg.replace("<svg", f'<svg data-px-still="{self._mark}"', 1)
        )


def renew_all(stills: Iterable[SavedSnapshot], wait_s: float, *, is_forced: bool = False) -> None:
    """Redraw all pictures in parallel; wait at most ``wait_s`` for all."""
    until_s = time.monotonic() + wait_s
    for its, wanted in [(its, its.ask(is_forced=is_forced)) for its in stills]:
        its.wait(wanted, max(0.0, until_s - time.monotonic()))
