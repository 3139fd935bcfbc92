"""The live monitor: what each rank does, who holds the others up, what moves between them.

It knows the workspace and the records that are sent (`_monitor_frames`); how they look is
``js/src/monitor.ts``.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec
import traitlets

from phalanx.errors import DistributedError
from phalanx.protocol import RankInfo, Topology
from phalanx.workspace import say_trace

from ._attention import Attention
from ._live import STATIC
from ._live_workspace import WorkspaceWidget
from ._monitor import monitor
from ._monitor_frames import Frame, Lanes
from ._still import StillPicture, with_alarm
from ._topology_frames import world_of

__all__ = ["Monitor"]

REPEAT_S = 2.0  # a view that hears nothing for 8 s says so
SILENT_S = 3.0  # samples come three times a second from a supervisor that can
KEPT_NBYTES = 4 << 20  # of frames, for a view that comes later: two minutes of 4 busy ranks
KEPT_FRAMES = 600
MOST_SAVED = 100_000  # operations: 30 MB, as much as a page takes in one piece, in a second
SAVED_AS = "trace.json"
RUNNING = -1  # the number of a cell that has not ended
MOST_NUMBERS = 256  # cells of the notebook that a lane can lead to


class Monitor(WorkspaceWidget):
    """What the ranks of a workspace do, live: a lane each, and who holds the others up.

    Parameters
    ----------
    workspace : Workspace
        One that runs, or is watched. Set `workspace` to show another, as after an attach.

    Raises
    ------
    DistributedError
        The workspace is over; says why.

    Notes
    -----
    The workspace's supervisor looks at the ranks three times a second, only while somebody sees
    this; it needs nothing of the ranks, which may be busy, frozen or dead. Operations that lie too
    close to be told apart are drawn as one, with their number; what nobody could look at in time is
    counted; why nothing is known of a time is said. A saved notebook keeps a still picture (SVG,
    text): of when it was displayed, or after `show` of how things stood after the last cell.

    Examples
    --------
    >>> px.widgets.Monitor(ws)  # doctest: +SKIP
    """

    _esm = STATIC / "monitor.js"
    _css = STATIC / "monitor.css"

    world = traitlets.Bytes(b"").tag(sync=True)

    def _prepare(self) -> None:
        self._numbers: deque[tuple[int, int]] = deque(maxlen=MOST_NUMBERS)
        self._kept: deque[bytes] = deque(maxlen=KEPT_FRAMES)
        self._kept_nbytes = 0
        self._has_paused = False
        self._attention = Attention()
        self._came_s = time.monotonic()
        self._seen = self._workspace.topology()
        self._last = Frame("live", "", 0, 0.0, time.time(), self._seen.epoch)
        self._sent_s = 0.0
        self._still = monitor(self._workspace.trace(), self._seen)

    def _begin(self) -> None:
        self._came_s = time.monotonic()
        number_of = (lambda _ns: 0) if self._workspace.is_watching else self._number_of
        self._lanes = Lanes(number_of, self._attention.why_none)
        try:
            found = self._workspace.topology()
        except DistributedError as error:
            self._publish(self._gone(self._reason(error)))
            return
        self.world = msgspec.json.encode(world_of(found))
        if _are_others(found, self._seen):
            # Their lanes would be taken for these ranks' own, here and in every view.
            self._kept.clear()
            self._kept_nbytes = 0
            self._publish(
                Frame("live", "", 0, 0.0, time.time(), found.epoch, world=self._last.world + 1)
            )
        else:
            self._publish(msgspec.structs.replace(self._last, status="live", why="", spans=()))
        self._seen = found

    # -- the notebook's cells ---------------------------------------------------------------------

    def _on_cell_begins(self, *arguments: Any) -> None:
        super()._on_cell_begins(*arguments)
        self._numbers.append((time.monotonic_ns(), RUNNING))

    def _on_cell_ends(self, *arguments: Any) -> None:
        super()._on_cell_ends(*arguments)
        # Only at its end does every IPython say a cell's own number, not the next one's.
        number = getattr(arguments[0], "execution_count", None) if arguments else None
        if self._numbers and self._numbers[-1][1] == RUNNING:
            begun_ns, _ = self._numbers.pop()
            self._numbers.append((begun_ns, number or 0))

    def _number_of(self, begun_ns: int) -> int:
        """Return the number of the notebook's cell that ran then: the ranks' part came in it."""
        return next((number for ns, number in reversed([*self._numbers]) if ns <= begun_ns), 0)

    # -- frames -----------------------------------------------------------------------------------

    def begins(self) -> None:
        """Note a pause: samples that others had meanwhile were not for this view."""
        with self._looking:
            self._has_paused = True
            self._attention.begin()

    def tick(self) -> None:
        """Look, and send what is new."""
        with self._looking:
            self._attention.look()
            try:
                view = self._workspace.samples(self._lanes.number)
                if self._has_paused and view.samples:
                    self._has_paused, view = False, dataclasses.replace(view, dropped=0)
                frame = self._lanes.take(view)
                if frame is not None:
                    frame = msgspec.structs.replace(frame, world=self._last.world)
            except DistributedError as error:
                frame = self._gone(self._reason(error))
            now_s = time.monotonic()
            if frame is not None and frame.status == "live":
                self._came_s = now_s
            elif frame is None and now_s > self._came_s + SILENT_S:
                why = f"the supervisor has not been heard of for {now_s - self._came_s:.0f} s"
                frame = msgspec.structs.replace(self._last, status="silent", why=why, spans=())
            if frame is not None:
                self._publish(frame)

    def _gone(self, why: str) -> Frame:
        # Where its supervisor lives and does not answer, it may yet.
        status = "silent" if self._workspace.is_running else "gone"
        return msgspec.structs.replace(self._last, status=status, why=why, spans=())

    def _publish(self, frame: Frame) -> None:
        is_new = (frame.number, frame.status, frame.world) != (
            self._last.number,
            self._last.status,
            self._last.world,
        )
        if not is_new and self.frame and time.monotonic() < self._sent_s + REPEAT_S:
            return
        self._last, self._sent_s = frame, time.monotonic()
        encoded = msgspec.json.encode(frame)
        if frame.status == "live" and frame.number:
            self._keep(encoded)
        self.frame = encoded
        self._keep_who_lives(frame)

    def _keep(self, encoded: bytes) -> None:
        if len(self._kept) == KEPT_FRAMES:
            self._kept_nbytes -= len(self._kept.popleft())
        self._kept.append(encoded)
        self._kept_nbytes += len(encoded)
        while self._kept_nbytes > KEPT_NBYTES:
            self._kept_nbytes -= len(self._kept.popleft())

    # -- questions --------------------------------------------------------------------------------

    def answer(self, action: str, args: Mapping[str, Any]) -> str:
        """Do what a button asks; see `LiveWidget.answer`."""
        if action == "history":  # of a view that has just come
            with self._looking:
                return f"[{b','.join(self._kept).decode()}]"
        if action == "save":
            return self._saved()
        msg = f"nothing is known of {action!r}"
        raise ValueError(msg)

    def _saved(self) -> str:
        """Return in a line what is saved as what, then the file."""
        whole = self._workspace.trace()
        trace = whole.newest(MOST_SAVED)
        said = say_trace(trace, SAVED_AS)
        if trace is not whole:
            said += f"; %distributed trace {SAVED_AS} writes all {len(whole.records)}"
        return f"{said}\n{trace.to_json().decode()}"

    def still(self) -> StillPicture:
        """Return the picture of what the ranks did last, or of what was seen of it."""
        try:
            self._still = monitor(self._workspace.trace(), self._workspace.topology())
        except DistributedError as error:
            with self._looking:
                why = self._why_absent(error)
            return with_alarm(self._still, why) if why else self._still
        return self._still

    def still_basis(self) -> object:
        """Return what cells and deaths change; see `LiveWidget.still_basis`.

        It asks the supervisor for the states of the ranks only: all that they did may be megabytes.
        What threads do in a rank that is idle is on the next picture.
        """
        workspace = self._workspace
        n_ended = workspace.n_ended  # first: what ends from now on is on no picture of this basis
        try:
            found = workspace.topology()
        except DistributedError as error:
            return str(error)  # and nobody can look
        if workspace.is_watching or not all(_rests(its) for its in found.ranks):
            return None
        ranks = tuple((its.pid, its.state, its.detail) for its in found.ranks)
        return found.name, found.epoch, ranks, n_ended, workspace.measured_links


def _rests(rank: RankInfo) -> bool:
    return rank.state == "dead" or (rank.state == "idle" and not rank.detail)


def _are_others(found: Topology, before: Topology) -> bool:
    """Whether no rank of before is there: others, who may have their workspace's name.

    Ranks that were all replaced are in a later epoch; a new world begins with the first.
    """
    if (found.name, found.size) != (before.name, before.size):
        return True
    is_later = found.epoch > before.epoch
    return not is_later and {its.pid for its in found.ranks}.isdisjoint(
        its.pid for its in before.ranks
    )
