"""Show the ranks' activity, late ranks and traffic in a live widget.

`frames.monitor` has the records that are sent; ``js/src/monitor.ts`` draws them.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from phalanx.errors import DistributedError
from phalanx.protocol import WorldTopology
from phalanx.workspace import SampleView, Trace, Workspace, say_trace

from ..frames.monitor import (
    KERNEL_BUSY,
    NOBODY_LOOKED,
    SUPERVISOR_BUSY,
    MonitorFrame,
    MonitorFrameBuilder,
)
from ..frames.topology import world_of
from ..stills.monitor import monitor
from ..stills.svg import StillPicture
from .widget import STATIC, WorldWidget

LATE_S = 1.0  # polls come every 0.2 s; after one later than this, its reason explains missing data
SILENT_S = 3.0  # a working supervisor sends samples three times a second
KEPT_NBYTES = 4 << 20  # of frames, for views that open later: two minutes of 4 busy ranks
KEPT_FRAMES = 600
MOST_SAVED = 100_000  # operations: 30 MB, which a page can take in one message in a second
SAVED_AS = "trace.json"
RUNNING = -1  # the number of a cell that has not ended
MOST_NUMBERS = 256  # cells of the notebook that a lane can link to


class Monitor(WorldWidget):
    """Live lanes of a workspace's ranks, with late ranks named.

    Parameters
    ----------
    workspace : Workspace
        A running workspace. Set `workspace` to show another, as after an attach.

    Raises
    ------
    DistributedError
        The workspace has ended; the text says why.

    Notes
    -----
    The workspace's supervisor samples the ranks three times a second, only while a view is visible.
    The ranks need not respond: they may be busy, frozen or dead. Operations too close together are
    drawn as one, with their number. Operations lost between samples are counted, and gaps without
    data have a reason. A saved notebook keeps a still picture (SVG, text) from the time of the
    display or, with `show`, from the end of the last cell.

    Examples
    --------
    >>> px.widgets.Monitor(ws)  # doctest: +SKIP
    """

    _esm = STATIC / "monitor.js"
    _css = STATIC / "monitor.css"

    def _prepare(self) -> None:
        super()._prepare()
        self._numbers: deque[tuple[int, int]] = deque(maxlen=MOST_NUMBERS)
        self._kept: deque[bytes] = deque()
        self._kept_nbytes = 0
        self._has_paused = False
        self._why_none = SUPERVISOR_BUSY  # why there is no sample since the last one
        self._came_s = self._polled_s = time.monotonic()
        self._last = MonitorFrame("live", "", 0.0, 0, self._seen.epoch)
        self._still = monitor(self._workspace.trace(), self._seen)

    def _poll(self, workspace: Workspace) -> SampleView:
        return workspace.samples(self._lanes.number)

    def _begin(self, found: WorldTopology | DistributedError) -> None:
        self._came_s = time.monotonic()
        self._lanes = MonitorFrameBuilder(self._number_of)
        if isinstance(found, DistributedError):
            self._show_frame(self._absent(found, spans=()))
            return
        self.world = msgspec.json.encode(world_of(found))
        if _is_other_world(found, self._seen):
            # Old lanes would be taken for lanes of the new ranks, here and in every view.
            self._kept.clear()
            self._kept_nbytes = 0
            world = self._last.world + 1
            self._show_frame(MonitorFrame("live", "", 0.0, 0, found.epoch, world=world))
        else:
            self._show_frame(msgspec.structs.replace(self._last, status="live", why="", spans=()))
        self._seen = found

    # -- the notebook's cells ---------------------------------------------------------------------

    def _on_cell_begins(self, *arguments: Any) -> None:
        super()._on_cell_begins(*arguments)
        self._numbers.append((time.monotonic_ns(), RUNNING))

    def _on_cell_ends(self, *arguments: Any) -> None:
        super()._on_cell_ends(*arguments)
        # Only at the end of a cell do all versions of IPython give the cell's own number.
        number = getattr(arguments[0], "execution_count", None) if arguments else None
        if self._numbers and self._numbers[-1][1] == RUNNING:
            begun_ns, _ = self._numbers.pop()
            self._numbers.append((begun_ns, number or 0))

    def _number_of(self, begun_ns: int) -> int:
        """Return the number of the notebook cell that ran at a time."""
        return next((number for ns, number in reversed([*self._numbers]) if ns <= begun_ns), 0)

    # -- frames -----------------------------------------------------------------------------------

    def begins(self) -> None:
        """Note a pause: samples taken meanwhile were for other clients."""
        with self._looking:
            self._has_paused = True

    def tick(self) -> None:
        """Poll the workspace and send new data."""
        with self._looking:
            now_s = time.monotonic()
            if now_s > self._polled_s + LATE_S:
                self._why_none = NOBODY_LOOKED if self._has_paused else KERNEL_BUSY
            self._polled_s = now_s
        super().tick()

    def _show(self, view: SampleView | DistributedError) -> None:
        now_s = time.monotonic()
        if isinstance(view, DistributedError):
            self._show_frame(self._absent(view, spans=()))
            return
        if self._has_paused and view.samples:
            self._has_paused, view = False, dataclasses.replace(view, dropped=0)
        frame = self._lanes.take(view, self._why_none)
        if frame is not None:
            self._came_s, self._why_none = now_s, SUPERVISOR_BUSY
            self._show_frame(msgspec.structs.replace(frame, world=self._last.world))
        elif now_s > self._came_s + SILENT_S:
            why = f"the supervisor has sent nothing for {now_s - self._came_s:.0f} s"
            self._show_frame(
                msgspec.structs.replace(self._last, status="silent", why=why, spans=())
            )

    def _show_frame(self, frame: MonitorFrame) -> None:
        if self._publish(frame) and frame.status == "live" and frame.number:
            self._keep(self.frame)

    def _keep(self, encoded: bytes) -> None:
        self._kept.append(encoded)
        self._kept_nbytes += len(encoded)
        while len(self._kept) > KEPT_FRAMES or self._kept_nbytes > KEPT_NBYTES:
            self._kept_nbytes -= len(self._kept.popleft())

    # -- requests --------------------------------------------------------------------------------

    def answer(self, action: str, args: Mapping[str, Any]) -> str:
        """Run the action of a button; see `LiveWidget.answer`."""
        if action == "history":  # requested by a new view
            with self._looking:
                return f"[{b','.join(self._kept).decode()}]"
        if action == "save":
            return self._saved()
        msg = f"nothing is known of {action!r}"
        raise ValueError(msg)

    def _saved(self) -> str:
        """Return one line about the saved file, then the file's text."""
        whole = self._workspace.trace()
        trace = whole.newest(MOST_SAVED)
        said = say_trace(trace, SAVED_AS)
        if trace is not whole:
            said += f"; %distributed trace {SAVED_AS} writes all {len(whole.records)}"
        return f"{said}\n{trace.to_json().decode()}"

    def _picture(self, trace: Trace | None) -> StillPicture:
        if trace is not None:
            self._still = monitor(trace, self._seen)
        return self._still


def _is_other_world(found: WorldTopology, before: WorldTopology) -> bool:
    """Return whether all ranks belong to another workspace than before.

    The new workspace may have the same name. If all ranks were replaced, the epoch is higher; a new
    workspace begins with the first epoch.
    """
    if (found.name, found.size) != (before.name, before.size):
        return True
    is_later = found.epoch > before.epoch
    return not is_later and {its.pid for its in found.ranks}.isdisjoint(
        its.pid for its in before.ranks
    )
