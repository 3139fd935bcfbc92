"""The still picture of a live widget in a notebook's file: an output of its own, drawn anew in time.

It knows IPython's displays and threads; what is on the picture is the widget's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from IPython.display import DisplayHandle, display

from ._still import StillPicture

__all__ = ["KeptStill", "renew_all"]

log = logging.getLogger(__name__)


class KeptStill:
    """An output that holds a still picture, and another one once that is not true any more.

    It lies beside the widget's own output, where a page that shows the widget hides it by its
    ``mark`` (``shared/still.ts``): whatever replaces data in the widget's output makes a front end
    build the view anew, without what a person has typed, chosen and zoomed in it.

    ``basis`` says cheaply what the picture depends on: where that is as it was, there is nothing to
    draw. None: nobody knows.

    `ask` may be called by any thread; it raises nothing. Pictures are drawn by one thread at a time,
    which lives while there is one to draw, without the condition's lock, which all else belongs to.
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
        """Display the picture here; more than one output of it is renewed together."""
        with self._changed:
            self._mark = mark
            marked = self._marked(picture)
            if self._handle is None:
                self._handle = display(marked, display_id=True)
            else:
                self._handle.display(marked)
            self._shown, self._shown_basis = picture, None

    def ask(self, *, is_forced: bool = False) -> int:
        """Have it drawn anew where it is shown; `wait` takes what is returned.

        ``is_forced``: also where its basis is as it was.
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
                except RuntimeError:  # at a limit of processes
                    self._n_wanted = self._n_drawn  # nobody is to wait for it
                    log.exception("a still picture could not be drawn anew")
            return self._n_wanted

    def wait(self, wanted: int, wait_s: float) -> None:
        """Wait so long at most for a picture that was asked for."""
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
                # First, as what comes while it is drawn may be on the picture or not.
                basis = self._basis()
                if is_forced or basis is None or basis != self._shown_basis:
                    self._put(self._draw(), basis)
            except Exception:
                # The next one may well succeed; the file has the one before.
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


def renew_all(stills: Iterable[KeptStill], wait_s: float, *, is_forced: bool = False) -> None:
    """Draw all anew, beside each other, and wait so long for them together at most."""
    until_s = time.monotonic() + wait_s
    for its, wanted in [(its, its.ask(is_forced=is_forced)) for its in stills]:
        its.wait(wanted, max(0.0, until_s - time.monotonic()))
