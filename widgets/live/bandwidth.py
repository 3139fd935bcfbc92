"""Show a bandwidth sweep live; run, stop and save sweeps.

`frames.bandwidth` has the record that is sent; ``js/src/bandwidth.ts`` draws it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from phalanx.distributed.bench import parse_size
from phalanx.errors import DistributedError
from phalanx.protocol import SweepProgress, SweepRun, WorldTopology
from phalanx.workspace import Sweep, Workspace

from ..frames.bandwidth import SweepRequest, frame_of
from ..stills.bandwidth import bandwidth
from ..stills.svg import StillPicture
from ..text.tables import sweep_csv, sweep_json
from .widget import STATIC, LiveWidget

_MOST_KEPT = 16


class Bandwidth(LiveWidget):
    """Live bandwidth of a workspace's ranks by size.

    Parameters
    ----------
    workspace : Workspace
        A running workspace. Set `workspace` to measure another, as after an attach.
    earlier : sequence of SweepRun, optional
        Earlier sweeps to draw behind the next sweep, for example of other ranks. By default the
        sweeps of the workspace.

    Notes
    -----
    Points are sent as they are measured, at most five times a second, and only while a view is
    visible; the sweep itself goes on. A saved notebook keeps a still picture (SVG, text) from the
    time of the display or, with `show`, of the last sweep.

    Examples
    --------
    >>> px.widgets.Bandwidth(ws)  # doctest: +SKIP
    """

    _esm = STATIC / "bandwidth.js"
    _css = STATIC / "bandwidth.css"

    def __init__(self, workspace: Workspace, *, earlier: Sequence[SweepRun] | None = None) -> None:
        self._earlier = earlier
        super().__init__(workspace)

    def _prepare(self) -> None:
        self._sweep: Sweep | None = None
        self._runs = tuple(self._workspace.sweeps if self._earlier is None else self._earlier)
        self._form = SweepRequest()
        self._error = ""
        self._waits_for_ranks = False  # the error says that the ranks are busy

    def _current(self) -> tuple[SweepRun | None, SweepProgress | None, tuple[SweepRun, ...]]:
        """Return the current or last sweep, its progress, and earlier sweeps.

        Only our own sweep has a progress. `_looking` is held.
        """
        if self._sweep is not None:
            return self._sweep.run, self._sweep.progress, self._runs
        return (self._runs[-1] if self._runs else None), None, self._runs[:-1]

    def begin(self, asked: SweepRequest, *, wait: bool = False) -> Sweep:
        """Check the request and make a new sweep; `follow` runs it."""
        with self._looking:
            before = self._sweep
            if before is not None and _is_under_way(before):
                msg = "this sweep is not over yet; stop it first"
                raise DistributedError(msg)
            sweep = self._workspace.bench(
                asked.op,
                begin=parse_size(asked.begin),
                end=parse_size(asked.end),
                factor=asked.factor,
                dtype=asked.dtype,
                iterations=asked.iters,
                wait=wait,
            )
            if before is not None and before.points:
                self._runs = (*self._runs, before.run)[-_MOST_KEPT:]
            self._sweep, self._form, self._error = sweep, asked, ""
            self._waits_for_ranks = False
        return sweep

    def follow(self, sweep: Sweep) -> SweepRun:
        """Run a sweep while the ticker shows its points; Ctrl-C stops it."""
        try:
            with sweep.ends_at_ctrl_c():
                for _ in sweep:
                    pass
        except Exception as error:
            found = self._asked(self._workspace.topology)
            are_busy = isinstance(found, DistributedError) or not _are_idle(found)
            with self._looking:
                self._error = str(error) or type(error).__name__
                self._waits_for_ranks = not sweep.points and are_busy
                if self._sweep is sweep and not sweep.points:
                    self._sweep = None  # refused: show the sweep before again
            raise
        finally:
            self.tick()
            self.keep_still()
        return sweep.run

    # -- methods of `LiveWidget` ------------------------------------------------------------------

    def _poll(self, workspace: Workspace) -> WorldTopology | None:
        # Only to learn why the ranks are gone, or whether they are free again.
        is_needed = self._waits_for_ranks or not workspace.is_running
        return workspace.topology() if is_needed else None

    def _show(self, polled: Any) -> None:
        if self._waits_for_ranks and isinstance(polled, WorldTopology) and _are_idle(polled):
            self._error, self._waits_for_ranks = "", False  # no longer true
        is_gone = isinstance(polled, DistributedError) and not self._workspace.is_running
        self._publish(
            frame_of(
                *self._current(),
                self._form,
                why_gone=self._reason(polled) if is_gone else "",
                error=self._error,
                now=time.monotonic(),
            )
        )

    def answer(self, action: str, args: Mapping[str, Any]) -> str:
        """Run the action of a button; see `LiveWidget.answer`."""
        if action == "run":
            self._run_beside(_request_in(args))
            return "measuring"
        if action == "stop":
            with self._looking:
                sweep = self._sweep
            if sweep is not None:
                sweep.stop()
            return "stopped"
        with self._looking:
            run, _, _ = self._current()
        if run is None:
            msg = "nothing is measured yet"
            raise ValueError(msg)
        if action == "csv":
            return sweep_csv(run.points)
        if action == "json":
            return sweep_json(run)
        msg = f"there is no action {action!r}"
        raise ValueError(msg)

    def _run_beside(self, asked: SweepRequest) -> None:
        """Measure on a new thread: the answer must not wait."""
        try:
            sweep = self.begin(asked)
        except (DistributedError, ValueError) as error:
            with self._looking:
                self._error, self._waits_for_ranks = str(error), False
            raise

        def work() -> None:
            try:
                self.follow(sweep)
            except Exception:  # noqa: BLE001 - the page shows the error
                return

        threading.Thread(target=work, name="phalanx-sweep", daemon=True).start()

    def still(self) -> StillPicture:
        """Return a picture of the measurements so far."""
        with self._looking:
            run, _, earlier = self._current()
        if run is None:
            return bandwidth([])
        same = [one for one in earlier if one.op == run.op]
        return bandwidth(run.points, limits=run.limits, earlier=same)

    def close(self) -> None:
        """Remove the widget from the page and stop its sweep."""
        if not hasattr(self, "_sweep"):
            return  # `__init__` failed early
        with self._looking:
            sweep = self._sweep
        if sweep is not None and _is_under_way(sweep):
            sweep.stop()
        super().close()


def _is_under_way(sweep: Sweep) -> bool:
    return sweep.progress.state in ("waiting", "measuring")


def _are_idle(t: WorldTopology) -> bool:
    return all(rank.state == "idle" for rank in t.ranks)


def _request_in(args: Mapping[str, Any]) -> SweepRequest:
    """Parse the form; raise `ValueError` for invalid data."""
    wanted = {field: args.get(field) for field in SweepRequest.__struct_fields__}
    try:
        return msgspec.convert(wanted, SweepRequest)
    except msgspec.ValidationError as error:
        msg = f"this is no sweep: {error}"
        raise ValueError(msg) from None
