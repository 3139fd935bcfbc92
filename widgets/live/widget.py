"""Base class of live widgets: updates, requests and still pictures.

Each widget is one Python class and one TypeScript module (``js/src/NAME.ts``). A widget works only
while a view of it is visible.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import msgspec
import traitlets
from IPython.core.getipython import get_ipython
from IPython.display import display

from phalanx.errors import DistributedError
from phalanx.protocol import RankInfo, WorldTopology
from phalanx.workspace import Trace, Workspace

from ..stills.svg import StillPicture, with_alarm
from .presence import PollTimer
from .snapshot import SavedSnapshot

if TYPE_CHECKING:
    from ..frames import WidgetFrame
    from ..frames.monitor import MonitorFrame
    from ..frames.topology import TopologyFrame

log = logging.getLogger(__name__)

STATIC = Path(__file__).parents[1] / "static"
_SHOWN = "shown"  # name of the page's view until the page sends its own
REPEAT_S = 2.0  # a view reports a lost kernel after 8 s without a frame
STILL_S = 0.5  # longest wait at a cell's end for the still pictures; a picture takes about 10 ms
MOST_QUESTIONS = 8  # at the same time: a view sends one at a time, and there are few views


class LiveWidget(anywidget.AnyWidget):
    """A widget that polls a workspace while a view is visible.

    Subclasses name their bundle in ``_esm`` and ``_css``. Browser messages may come on any thread,
    so they are only noted here. `tick` runs on the ticker's thread, each `answer` on a new thread.
    These threads poll, one at a time, under the lock `_polling`. The lock `_looking` guards the
    fields. It is not held during a poll, which takes as long as the supervisor is silent. Only
    `tick` and a change of the workspace set traits that are sent, except ``still_id``, which `show`
    sets.
    """

    # The changing data, as one record in JSON; JavaScript reads it with `decode`.
    frame = traitlets.Bytes(b"").tag(sync=True)
    # The mark of the still picture, by which a page with the widget hides it. Empty: no picture.
    still_id = traitlets.Unicode("").tag(sync=True)

    def __init__(self, workspace: Workspace) -> None:
        self._polling = threading.Lock()  # taken before `_looking`
        self._looking = threading.Lock()
        self._why_gone = ""
        self._was_left = False
        self._last: Any = None  # the last frame
        self._sent_s = 0.0
        self._workspace = self._checked(workspace)
        self._prepare()
        self._asking = threading.BoundedSemaphore(MOST_QUESTIONS)
        self._shell = get_ipython()
        self._is_in_cell = self._shell is not None
        # Views that have sent a message and were not closed. A page that is reloaded closes none.
        self._views: set[str] = set()
        self._has_had_views = False
        self._drawn: tuple[StillPicture, object] | None = None  # with what it was drawn of
        self._snapshot = SavedSnapshot(self._renewed_still)
        self._ticker = PollTimer(self.tick, begin=self.begins, is_busy=lambda: self._is_in_cell)
        super().__init__()
        # ipykernel 7.4 hands a page's message to the loop that wrote to the page last. Our ticker
        # has no loop, so ipykernel would use the main loop, where each click waits for the cell's
        # end.
        self.comm._reply_subshell_for = _keep_subshell
        if self._shell is not None:
            self._shell.events.register("pre_run_cell", self._on_cell_begins)
            self._shell.events.register("post_run_cell", self._on_cell_ends)
        self.on_msg(self._on_message)
        self.workspace = workspace

    # -- to be defined by subclasses --------------------------------------------------------------

    def _prepare(self) -> None:
        """Make the fields, before anything is shown.

        Raises
        ------
        DistributedError
            There is nothing to show.
        """

    def _poll(self, workspace: Workspace) -> Any:
        """Return new data of a workspace; raise `DistributedError` without."""
        raise NotImplementedError

    def _begin(self, found: WorldTopology | DistributedError) -> None:
        """Show the workspace from now on; `_looking` is held."""
        self._show(found)

    def _show(self, polled: Any) -> None:
        """Show the result of `_poll`, or its `DistributedError`; `_looking` is held."""
        raise NotImplementedError

    def begins(self) -> None:
        """Handle the first visible view after a pause; on the ticker's thread."""

    def answer(self, action: str, args: Mapping[str, Any]) -> str:
        """Run a button's action and return the result text.

        The text of a DistributedError or ValueError is shown to the person.
        """
        raise NotImplementedError

    def still(self) -> StillPicture:
        """Return the picture for places without live widgets."""
        raise NotImplementedError

    def _still_basis(self) -> object:
        """Return cheaply the data that `still` depends on, for comparison.

        None: unknown, so draw.
        """
        return None

    def _renewed_still(self) -> StillPicture:
        """Return the picture, drawn anew unless its data are unchanged."""
        basis = self._still_basis()  # first: later changes may be missing in the picture
        drawn = self._drawn
        if drawn is None or basis is None or basis != drawn[1]:
            drawn = self._drawn = self.still(), basis
        return drawn[0]

    # -- the workspace ----------------------------------------------------------------------------

    @property
    def workspace(self) -> Workspace:
        """Return the workspace that is shown."""
        return self._workspace

    @workspace.setter
    def workspace(self, workspace: Workspace) -> None:
        found = self._asked(self._checked(workspace).topology)
        with self._looking:
            self._workspace, self._why_gone = workspace, ""
            self._begin(found)

    def _checked(self, workspace: Workspace) -> Workspace:
        if not hasattr(workspace, "topology"):
            msg = f"{type(self).__name__} shows a Workspace, not {type(workspace).__name__}"
            raise TypeError(msg)
        return workspace

    @staticmethod
    def _asked(poll: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return poll(*arguments)
        except DistributedError as error:
            return error

    def tick(self) -> None:
        """Poll the workspace and send new data."""
        with self._polling:
            workspace = self._workspace
            polled = self._asked(self._poll, workspace)
            with self._looking:
                if workspace is self._workspace:  # else another one is shown meanwhile
                    self._show(polled)

    def _publish(self, frame: WidgetFrame) -> bool:
        """Send a frame that has changed; return whether it was sent.

        An unchanged frame is repeated as a sign of life: ``now`` makes it differ.
        """
        before, now_s = self._last, time.monotonic()
        is_same = before is not None and msgspec.structs.replace(frame, now=before.now) == before
        if is_same and self.frame and now_s < self._sent_s + REPEAT_S:
            return False
        self._last, self._sent_s = frame, now_s
        self.frame = msgspec.json.encode(frame)
        return True

    def _absent(self, error: DistributedError, **cleared: Any) -> Any:
        """Return the last frame with the reason for no new one."""
        # A live supervisor that does not answer may answer later.
        status = "silent" if self._workspace.is_running else "gone"
        why = self._reason(error)
        return msgspec.structs.replace(self._last, status=status, why=why, **cleared)

    def _reason(self, error: DistributedError) -> str:
        """Say why there are no data; keep a dead workspace's first reason.

        After the clean-up of a dead workspace, later errors say only that it was stopped.
        """
        if self._workspace.is_running:
            return str(error)
        if not self._why_gone:
            self._why_gone, self._was_left = str(error), self._workspace.was_left
        return self._why_gone

    # -- visible views --------------------------------------------------------------------------

    def _on_cell_begins(self, *_: Any) -> None:
        self._is_in_cell = True

    def _on_cell_ends(self, *_: Any) -> None:
        self._is_in_cell = False
        # Wait before the cell ends, as nbclient takes no output later. The first widget waits for
        # all.
        if self._shell is not None:
            ends = self._shell.events.callbacks["post_run_cell"]
            owners = [getattr(its, "__self__", None) for its in ends]
            live = [its for its in owners if isinstance(its, LiveWidget)]
            # Empty if an earlier callback of this event has closed this widget.
            if live and live[0] is self:
                keep_stills(live)

    def keep_still(self) -> None:
        """Request an update of the file's still picture; never raises."""
        if self._may_have_views:
            self._snapshot.ask()

    @property
    def _may_have_views(self) -> bool:
        """Whether a page may have a view; true before the first message."""
        return bool(self._views) or not self._has_had_views

    def _on_message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if not isinstance(content, dict):
            return
        kind, view = content.get("kind"), str(content.get("view", ""))
        if kind in ("open", "look"):
            self._has_had_views = True
            self._views.add(view)
        if kind == "look":
            self._ticker.look(view)
            self._ticker.leave(_SHOWN)
        elif kind in ("leave", "close"):
            self._ticker.leave(view)
            if kind == "close":
                self._views.discard(view)
        elif kind == "ask":
            # Ack at once: without an ack, the page knows that its front end holds clicks until a
            # cell ends.
            self.send({"kind": "ack", "id": content.get("id")})
            self._take(content)

    def _take(self, question: dict[str, Any]) -> None:
        until = question.get("until")
        if isinstance(until, int | float) and time.time() > until:
            return  # timed out: the page no longer waits, and the action may be wrong now
        if not self._asking.acquire(blocking=False):
            self._say(question, is_ok=False, text="too much was asked at once; try again")
            return
        thread = threading.Thread(
            target=self._answer, args=(question,), name="phalanx-answer", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the limit of threads is reached
            self._asking.release()
            self._say(question, is_ok=False, text=str(error))

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
        # Browsers reject JSON with a lone surrogate.
        text = text.encode("utf-8", "replace").decode("utf-8")
        self.send({"kind": "answer", "id": question.get("id"), "ok": is_ok, "text": text})

    def close(self) -> None:
        """Remove the widget from the page and end its thread; idempotent."""
        if not hasattr(self, "_ticker"):
            return  # `__init__` failed; the object is collected all the same
        self._ticker.close()
        if self._shell is not None:
            self._shell.events.unregister("pre_run_cell", self._on_cell_begins)
            self._shell.events.unregister("post_run_cell", self._on_cell_ends)
            self._shell = None
        super().close()

    # -- being shown ------------------------------------------------------------------------------

    def show(self) -> None:
        """Display the widget, and a still picture for the notebook's file.

        The picture is updated after each cell; with ``display(widget)`` the file would keep the
        state at the time of the display. A page that shows the widget hides the picture. Without
        live widgets (IPython in a terminal), only the picture is shown.
        """
        self._drawn = None
        picture = self._renewed_still()  # first, so that the two outputs stay adjacent
        if not hasattr(self._shell, "kernel"):
            display(picture)
            return
        self.still_id = self.still_id or uuid.uuid4().hex
        self._ticker.look(_SHOWN, has_sent=False)
        data, metadata = super()._repr_mimebundle_() or ({}, {})
        display({**data, "text/plain": ""}, metadata=metadata, raw=True)
        self._snapshot.show(picture, self.still_id)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the widget's view together with a current still picture."""
        self._ticker.look(_SHOWN, has_sent=False)
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        return {**data, **self.still()._repr_mimebundle_()}, metadata


class WorldWidget(LiveWidget):
    """A live widget that shows the ranks of a world."""

    # The fixed part of the world, as a `WorldFrame` in JSON.
    world = traitlets.Bytes(b"").tag(sync=True)

    def _prepare(self) -> None:
        self._seen = self._workspace.topology()

    def _publish(self, frame: Any) -> bool:
        before: MonitorFrame | TopologyFrame = self._last
        is_sent = super()._publish(frame)
        # The update of the file's picture after a cell is not enough: the next cell may come much
        # later, and the last one ended here before its supervisor had answers from all its ranks.
        if _lives(frame) != _lives(before) or (_is_busy(before) and not _is_busy(frame)):
            self.keep_still()
        return is_sent

    # -- the still picture ------------------------------------------------------------------------

    def _picture(self, trace: Trace | None) -> StillPicture:
        """Draw `_seen`; without a trace, only facts that outlast silence."""
        raise NotImplementedError

    def still(self) -> StillPicture:
        """Return a picture of the current or last known state."""
        workspace, trace, why = self._workspace, None, ""
        try:
            trace, found = workspace.trace(), workspace.topology()
        except DistributedError as error:
            with self._looking:
                why = self._why_absent(error)
        else:
            with self._looking:
                if workspace is self._workspace:
                    self._seen = found
                else:
                    trace = None  # another one is shown meanwhile
        picture = self._picture(trace)
        return with_alarm(picture, why) if why else picture

    def _why_absent(self, error: DistributedError) -> str:
        """Say why a still picture is outdated.

        Return "" if a person ended the workspace.
        """
        why = self._reason(error)
        if self._workspace.is_running:  # its supervisor is alive and may answer later
            return f"the workspace is silent: {why}"
        if self._workspace.why_lost:  # another process has taken it over
            return why
        return "" if self._was_left else f"the workspace has gone: {why}"

    def _still_basis(self) -> object:
        """Return data that cells and deaths change; see `LiveWidget._still_basis`.

        It asks the supervisor only for the states of the ranks, as the recorders may have
        megabytes. Operations that threads of an idle rank run appear in the next picture.
        """
        workspace = self._workspace
        n_ended = workspace.n_ended  # first: later ends are not covered by this basis
        try:
            found = workspace.topology()
        except DistributedError as error:
            return str(error)  # no new data can come
        if not all(_rests(its) for its in found.ranks):
            return None
        ranks = tuple((its.pid, its.state, its.detail) for its in found.ranks)
        return found.name, found.epoch, ranks, n_ended, workspace.measured_links


def _lives(frame: MonitorFrame | TopologyFrame) -> list[tuple[int, bool]]:
    is_gone = frame.status == "gone"
    return [(its.pid, is_gone or its.state == "dead") for its in frame.ranks]


def _is_busy(frame: MonitorFrame | TopologyFrame) -> bool:
    return any(its.state == "busy" for its in frame.ranks)


def _rests(rank: RankInfo) -> bool:
    return rank.state == "dead" or (rank.state == "idle" and not rank.detail)


def keep_stills(widgets: Iterable[LiveWidget], *, is_forced: bool = False) -> None:
    """Update the widgets' still pictures; wait at most `STILL_S`.

    ``is_forced``: also if the data seem unchanged, as these ranks will not be visible any more.
    """
    there = [its for its in widgets if its._may_have_views]
    for its in there if is_forced else ():
        its._drawn = None
    until_s = time.monotonic() + STILL_S
    for drawn in [its._snapshot.ask() for its in there]:  # they draw at the same time
        drawn.wait(max(0.0, until_s - time.monotonic()))


def _keep_subshell(_data: Any, subshell_id: str | None) -> str | None:
    """Return the subshell to which the page sent the message."""
    return subshell_id
