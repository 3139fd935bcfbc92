"""Measure bandwidths for ``%distributed bandwidth``; show and save them."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from IPython.core.error import UsageError
from IPython.display import display

from phalanx import widgets
from phalanx.protocol import SweepRun
from phalanx.workspace import Sweep, Workspace

from .notebook_view import status_for

# By ending of the file: what of a sweep is saved.
_FORMS: dict[str, Callable[[SweepRun, widgets.Bandwidth], str]] = {
    ".csv": lambda run, _: widgets.sweep_csv(run.points),
    ".json": lambda run, _: widgets.sweep_json(run),
    ".svg": lambda _, widget: widget.still().svg,
}
_MOST_KEPT = 16

LiveWidgets: TypeAlias = "weakref.WeakSet[widgets.Topology | widgets.Monitor | widgets.Bandwidth]"


class Sweeps:
    """The bandwidth sweeps of a notebook, of any workspace.

    Sweeps of several workspaces can be compared, for example with another transport. ``live`` gets
    the widgets that are shown.
    """

    def __init__(self, shell: Any, live: LiveWidgets) -> None:
        self._shell = shell
        self._earlier: tuple[SweepRun, ...] = ()
        self._live = live

    def measure(self, workspace: Workspace, options: Any) -> None:
        """Run a sweep, show each size, and keep the measurements.

        A sweep that was stopped is kept, too. A kernel shows the live widget, unless ``--still`` is
        given; other shells print rows.
        """
        target = None if options.save is None else _checked(options.save)
        asked = widgets.SweepRequest(
            options.op, options.begin, options.end, options.factor, options.dtype, options.iters
        )
        widget = widgets.Bandwidth(workspace, earlier=self._earlier)
        sweep = widget.begin(asked, wait=options.wait)
        try:
            if options.still or not hasattr(self._shell, "kernel"):
                self._print(sweep, widget)
            else:
                self._live.add(widget)
                widget.show()
                widget.follow(sweep)
        finally:
            if sweep.progress.state == "stopped":
                print(f"# {sweep.progress.text}")  # noqa: T201
            if sweep.points:
                run = sweep.run
                self._earlier = (*self._earlier, run)[-_MOST_KEPT:]
                if target is not None:
                    target.write_text(_FORMS[target.suffix](run, widget), encoding="utf-8")

    def _print(self, sweep: Sweep, widget: widgets.Bandwidth) -> None:
        status = status_for(self._shell)
        print(widgets.HEADER)  # noqa: T201 - rows appear as they are measured
        try:
            status.show(sweep.progress.text)
            with sweep.ends_at_ctrl_c():
                for measurement in sweep:
                    status.lift()
                    print(widgets.format_measurement(measurement))  # noqa: T201
                    sys.stdout.flush()
                    status.show(sweep.progress.text)
        finally:
            status.lift()
            status.show("")
            if sweep.points:
                display(widget.still())
            widget.close()


def _checked(name: str) -> Path:
    target = Path(name)
    if target.suffix not in _FORMS:
        *forms, last = _FORMS
        msg = f"a sweep is saved as {', '.join(forms)} or {last}, not as {name!r}"
        raise UsageError(msg)
    if not target.parent.is_dir():
        msg = f"there is no folder {str(target.parent)!r} to save {target.name!r} in"
        raise UsageError(msg)
    return target
