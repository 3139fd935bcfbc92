"""The live bandwidth: a sweep as it is measured, and what to do about it: run, stop, save.

It knows the workspace and the record that is sent (`_bandwidth_frames`); how it looks is
``js/src/bandwidth.ts``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from phalanx.distributed.bench import parse_size
from phalanx.errors import DistributedError
from phalanx.protocol import SweepRun
from phalanx.workspace import Sweep, Workspace

from ._bandwidth import bandwidth
from ._bandwidth_frames import Asked, frame_of
from ._live import STATIC, LiveWidget
from ._live_workspace import checked_workspace
from ._still import StillPicture
from ._sweep_words import sweep_csv, sweep_json

__all__ = ["Bandwidth"]

_REPEAT_S = 2.0  # a view that hears nothing for 8 s says so
_MOST_KEPT = 16


class Bandwidth(LiveWidget):
    """The bandwidth of a workspace's ranks by size, live: run a sweep, watch it, stop it, save it.

    Parameters
    ----------
    workspace : Workspace
        One that runs. Set `workspace` to measure another, as after an attach.
    earlier : sequence of SweepRun, optional
        Sweeps to lay over the next one, as of other ranks; by default the workspace's own.

    Notes
    -----
    Points are sent as they are measured, at most five times a second and only while somebody
    looks; the sweep itself goes on without. A saved notebook keeps a still picture (SVG, text): of
    when it was displayed, or after `show` of the last sweep.

    Examples
    --------
    >>> px.widgets.Bandwidth(ws)  # doctest: +SKIP
    """

    _esm = STATIC / "bandwidth.js"
    _css = STATIC / "bandwidth.css"

    def __init__(self, workspace: Workspace, *, earlier: Sequence[SweepRun] | None = None) -> None:
        # Buttons, the ticker and a cell come on threads of their own; the lock is for what is here.
        self._lock = threading.Lock()
        self._sweep: Sweep | None = None
        self._workspace = checked_workspace("Bandwidth", workspace)
        self._runs = tuple(workspace.sweeps if earlier is None else earlier)
        self._asked = Asked()
        self._error = self._first_reason = ""
        self._waits_for_ranks = False  # as the error says that they are not free
        self._sent_s = 0.0
        super().__init__()
        self.tick()

    @property
    def workspace(self) -> Workspace:
        """Whose ranks are measured."""
        return self._workspace

    @workspace.setter
    def workspace(self, workspace: Workspace) -> None:
        self._workspace = checked_workspace("Bandwidth", workspace)
        self._first_reason = ""
        self.tick()

    @property
    def run(self) -> SweepRun | None:
        """What is measured now, or was last."""
        with self._lock:
            if self._sweep is not None:
                return self._sweep.run
            return self._runs[-1] if self._runs else None

    def measure(self, asked: Asked | None = None, *, wait: bool = False) -> SweepRun:
        """Measure now, and return when it is over; Ctrl-C stops it.

        Raises
        ------
        ValueError, DistributedError
            As `Workspace.bench` and the iteration of what it returns.
        """
        return self.follow(self.begin(asked or Asked(), wait=wait))

    def begin(self, asked: Asked, *, wait: bool = False) -> Sweep:
        """Check what is asked, and make the sweep that is shown from here on; `follow` runs it."""
        with self._lock:
            before = self._sweep
            if before is not None and before.progress.state in ("waiting", "measuring"):
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
            self._sweep, self._asked, self._error = sweep, asked, ""
            self._waits_for_ranks = False
        return sweep

    def follow(self, sweep: Sweep) -> SweepRun:
        """Run it; it keeps its points, the ticker shows them."""
        try:
            for _ in sweep:
                pass
        except Exception as error:
            are_busy = not self._are_idle()
            with self._lock:
                self._error = str(error) or type(error).__name__
                self._waits_for_ranks = not sweep.points and are_busy
                if self._sweep is sweep and not sweep.points:
                    self._sweep = None  # refused: what was measured before is shown again
            raise
        finally:
            self.tick()
            self.keep_still()
        return sweep.run

    # -- what a live widget is --------------------------------------------------------------------

    def tick(self) -> None:
        """Send what has changed."""
        is_free = self._waits_for_ranks and self._are_idle()
        with self._lock:
            if is_free and self._waits_for_ranks:
                self._error, self._waits_for_ranks = "", False  # it would not be true any more
            now = time.monotonic()
            sweep = self._sweep
            runs = self._runs
            run = sweep.run if sweep is not None else runs[-1] if runs else None
            frame = frame_of(
                run,
                sweep.progress if sweep is not None else None,
                runs if sweep is not None else runs[:-1],
                self._asked,
                why_gone=self._why_gone(),
                error=self._error,
                now=self._sent_s,
            )
            # Unchanged it is sent again now and then, as a sign of life: `now` makes it news.
            if msgspec.json.encode(frame) != self.frame or now > self._sent_s + _REPEAT_S:
                self._sent_s = now
                self.frame = msgspec.json.encode(msgspec.structs.replace(frame, now=now))

    def _are_idle(self) -> bool:
        try:
            return all(rank.state == "idle" for rank in self._workspace.topology().ranks)
        except DistributedError:
            return False

    def _why_gone(self) -> str:
        if self._workspace.is_running:
            self._first_reason = ""
        elif not self._first_reason:
            # Whoever cleans up what has died says only that it is stopped.
            try:
                self._workspace.topology()
            except DistributedError as error:
                self._first_reason = str(error)
        return self._first_reason

    def answer(self, action: str, args: Mapping[str, Any]) -> str:
        """Do what a button asks; see `LiveWidget.answer`."""
        if action == "run":
            self._run_beside(_asked_in(args))
            return "measuring"
        if action == "stop":
            with self._lock:
                sweep = self._sweep
            if sweep is not None:
                sweep.stop()
            return "stopped"
        run = self.run
        if run is None:
            msg = "nothing is measured yet"
            raise ValueError(msg)
        if action == "csv":
            return sweep_csv(run.points)
        if action == "json":
            return sweep_json(run)
        msg = f"there is no action {action!r}"
        raise ValueError(msg)

    def _run_beside(self, asked: Asked) -> None:
        """Measure on a thread of its own: an answer is not to wait for a sweep."""
        try:
            sweep = self.begin(asked)
        except (DistributedError, ValueError) as error:
            self._error, self._waits_for_ranks = str(error), False
            raise

        def work() -> None:
            try:
                self.follow(sweep)
            except Exception:  # noqa: BLE001 - the page shows it
                return

        threading.Thread(target=work, name="phalanx-sweep", daemon=True).start()

    def still(self) -> StillPicture:
        """Return the picture of what was measured so far."""
        run, earlier = self.still_basis()
        if run is None:
            return bandwidth([])
        return bandwidth(run.points, limits=run.limits, earlier=earlier)

    def still_basis(self) -> tuple[SweepRun | None, tuple[SweepRun, ...]]:
        """Return the sweep, and those that it is laid over; see `LiveWidget.still_basis`."""
        run = self.run
        with self._lock:
            earlier = self._runs if self._sweep is not None else self._runs[:-1]
        return run, tuple(one for one in earlier if run is not None and one.op == run.op)

    def close(self) -> None:
        """Take the widget off the page; a sweep that it runs is stopped."""
        if not hasattr(self, "_lock"):
            return  # it was never begun
        with self._lock:
            sweep = self._sweep
        if sweep is not None and sweep.progress.state in ("waiting", "measuring"):
            sweep.stop()
        super().close()


def _asked_in(args: Mapping[str, Any]) -> Asked:
    """Read the form; a page may send anything."""
    wanted = {field: args.get(field) for field in Asked.__struct_fields__}
    try:
        return msgspec.convert(wanted, Asked)
    except msgspec.ValidationError as error:
        msg = f"this is no sweep: {error}"
        raise ValueError(msg) from None
