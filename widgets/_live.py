"""What every live widget does: works while somebody looks, answers questions, shows a still picture.

One Python class and one module of TypeScript (``js/src/NAME.ts``) each; this is what the classes
share. It knows anywidget and threads, nothing of ranks.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import anywidget
import traitlets
from IPython.core.getipython import get_ipython
from IPython.display import display

from phalanx.errors import DistributedError

from ._kept_still import KeptStill, renew_all
from ._still import StillPicture
from ._ticker import Ticker
from ._views import Views

__all__ = ["STATIC", "LiveWidget", "keep_stills"]

log = logging.getLogger(__name__)

STATIC = Path(__file__).with_name("static")
_SHOWN = "shown"  # stands for the page until that speaks for itself
STILL_S = 0.5  # a cell's end waits so long for the pictures of its file; one takes some 10 ms
MOST_QUESTIONS = 8  # under way at once: a view asks one at a time, and there are few views


class LiveWidget(anywidget.AnyWidget):
    """A widget that is fed by `tick` while it is shown, and asked with `answer`.

    Subclasses name their bundle in ``_esm`` and ``_css``. Messages of the browser may come on the
    kernel's main thread or on any other, so they are only noted here: `tick` runs on the ticker's
    thread, each `answer` on one of its own. Traits that are sent are set by `tick` alone, but for
    ``still_id``, which `show` sets.
    """

    # What changes, as one record in JSON; JavaScript reads it with `decode`.
    frame = traitlets.Bytes(b"").tag(sync=True)
    # What the still picture beside it says: a page with the widget hides it. Empty: there is none.
    still_id = traitlets.Unicode("").tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        self._asking = threading.BoundedSemaphore(MOST_QUESTIONS)
        self._shell = get_ipython()
        self._is_in_cell = self._shell is not None
        self._views = Views()
        self._kept_still = KeptStill(self.still, self.still_basis)
        self._ticker = Ticker(self._tick, begin=self.begins, is_busy=lambda: self._is_in_cell)
        super().__init__(**traits)
        # ipykernel 7.4 hands a page's message to whichever loop wrote to the page last. Our ticker
        # has no loop, which it takes for the main one: there each click waits for the cell's end.
        self.comm._reply_subshell_for = _where_the_page_asked
        if self._shell is not None:
            self._shell.events.register("pre_run_cell", self._on_cell_begins)
            self._shell.events.register("post_run_cell", self._on_cell_ends)
        self.on_msg(self._on_message)

    # -- what a widget is -------------------------------------------------------------------------

    def tick(self) -> None:
        """Set the traits as things stand now; called at most five times a second."""
        raise NotImplementedError

    def begins(self) -> None:
        """Note that somebody looks again, after nobody did; on the ticker's thread."""

    def answer(self, action: str, args: Mapping[str, Any]) -> str:
        """Do what a button asks and say so; DistributedError and ValueError are for the person."""
        raise NotImplementedError

    def still(self) -> StillPicture:
        """Return the picture for where no widget can live."""
        raise NotImplementedError

    def still_basis(self) -> object:
        """Return cheaply what `still` depends on, to be compared; None: nobody knows."""
        return None

    # -- being looked at --------------------------------------------------------------------------

    def _on_cell_begins(self, *_: Any) -> None:
        self._is_in_cell = True
        self._views.cell_begins()

    def _on_cell_ends(self, *_: Any) -> None:
        self._is_in_cell = False
        self._views.cell_ends()
        # Before the cell is over: nbclient takes nothing after that. All in one wait, the first's.
        if self._shell is not None:
            ends = self._shell.events.callbacks["post_run_cell"]
            live = [its.__self__ for its in ends if _is_live(getattr(its, "__self__", None))]
            if live[0] is self:
                keep_stills(live)

    def keep_still(self) -> None:
        """Let the notebook's file hold what is true now, as soon as it is drawn; raises nothing."""
        if self._views.are_there:
            self._kept_still.ask()

    def _tick(self) -> None:
        try:
            self.tick()
        except Exception:
            # The thread must live on: the next tick may well succeed.
            log.exception("a widget could not be brought up to date")

    def _on_message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if not isinstance(content, dict):
            return
        kind, view = content.get("kind"), str(content.get("view", ""))
        if kind == "look":
            self._ticker.look(view)
            self._ticker.leave(_SHOWN)
            self._views.note(view)
        elif kind == "there":  # out of sight
            self._views.note(view)
        elif kind == "leave":
            self._ticker.leave(view)
        elif kind == "close":
            self._ticker.leave(view)
            self._views.leave(view)
        elif kind == "ask":
            # A page that is not told soon knows that its front end keeps clicks until a cell ends.
            self.send({"kind": "heard", "id": content.get("id")})
            self._take(content)

    def _take(self, question: dict[str, Any]) -> None:
        until = question.get("until")
        if isinstance(until, int | float) and time.time() > until:
            return  # nobody waits any more, and what was asked for then may be wrong now
        if not self._asking.acquire(blocking=False):
            self._say(question, is_ok=False, text="too much was asked at once; try again")
            return
        threading.Thread(
            target=self._answer, args=(question,), name="phalanx-answer", daemon=True
        ).start()

    def _answer(self, question: dict[str, Any]) -> None:
        try:
            text, is_ok = self.answer(str(question.get("action", "")), question), True
        except (DistributedError, ValueError, TimeoutError) as error:
            text, is_ok = str(error), False
        except Exception as error:
            log.exception("a question of a widget could not be answered")
            text, is_ok = f"{type(error).__name__}: {error}", False
        finally:
            self._asking.release()
        self._say(question, is_ok=is_ok, text=text)

    def _say(self, question: dict[str, Any], *, is_ok: bool, text: str) -> None:
        # A lone surrogate is no JSON that a browser would take.
        text = text.encode("utf-8", "replace").decode("utf-8")
        self.send({"kind": "answer", "id": question.get("id"), "ok": is_ok, "text": text})

    def close(self) -> None:
        """Take the widget off the page, and end its thread; idempotent."""
        if not hasattr(self, "_ticker"):
            return  # one that could not be made is collected all the same
        self._ticker.close()
        if self._shell is not None:
            self._shell.events.unregister("pre_run_cell", self._on_cell_begins)
            self._shell.events.unregister("post_run_cell", self._on_cell_ends)
            self._shell = None
        super().close()

    # -- being shown ------------------------------------------------------------------------------

    def show(self) -> None:
        """Display the widget here, and beside it a picture for the notebook's file.

        The file then has how things stood after its last cell, not when the widget was displayed,
        as with ``display(widget)``. A page that shows the widget hides the picture. Where no widget
        can live (IPython in a terminal), the picture is all there is.
        """
        picture = self.still()  # first, so that nothing comes between the two
        if not hasattr(self._shell, "kernel"):
            display(picture)
            return
        self.still_id = self.still_id or uuid.uuid4().hex
        self._ticker.look(_SHOWN, is_heard=False)
        data, metadata = super()._repr_mimebundle_() or ({}, {})
        display({**data, "text/plain": ""}, metadata=metadata, raw=True)
        self._kept_still.show(picture, self.still_id)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Give the widget's view, and in one with it a picture of how things stand now."""
        self._ticker.look(_SHOWN, is_heard=False)
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        return {**data, **self.still()._repr_mimebundle_()}, metadata


def _is_live(one: object) -> bool:
    return isinstance(one, LiveWidget)


def keep_stills(widgets: Iterable[LiveWidget], *, is_forced: bool = False) -> None:
    """Let the notebook's file hold what is true now, and wait `STILL_S` for it at most.

    ``is_forced``: also of what seems to be as it was, as these ranks are not to be seen any more.
    """
    there = [its._kept_still for its in widgets if its._views.are_there]
    renew_all(there, STILL_S, is_forced=is_forced)


def _where_the_page_asked(_data: Any, subshell_id: str | None) -> str | None:
    """Leave a message on the subshell that it was sent to."""
    return subshell_id
