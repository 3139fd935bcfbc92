"""`%distributed bandwidth`: a sweep in the cell that asked for it, and the sweeps before it.

It prints and draws; the sweep is the workspace's, the picture the widgets'.
"""

from __future__ import annotations

import sys
import weakref
from pathlib import Path
from typing import Any

from IPython.display import display

from phalanx import widgets
from phalanx.protocol import SweepRun
from phalanx.workspace import Sweep, Workspace

from ._arguments import UsageMistake
from ._status import status_for

__all__ = ["Sweeps"]

_FORMS = (".csv", ".json", ".svg")
_MOST_KEPT = 16


class Sweeps:
    """The sweeps of a notebook, of whichever ranks: a transport can be laid over another."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._earlier: tuple[SweepRun, ...] = ()
        self._live: weakref.WeakSet[widgets.Bandwidth] = weakref.WeakSet()

    def measure(self, workspace: Workspace, options: Any) -> None:
        """Sweep, show each size as it comes, and keep what came, also when it was stopped.

        A kernel shows the live widget, unless ``--still`` is asked for; others print.
        """
        target = None if options.save is None else _checked(options.save)
        asked = widgets.Asked(
            options.op, options.begin, options.end, options.factor, options.dtype, options.iters
        )
        widget = widgets.Bandwidth(workspace, earlier=self._earlier)
        sweep = widget.begin(asked, wait=options.wait)
        try:
            if options.still or not hasattr(self._shell, "kernel"):
                self._print(sweep, widget)
            else:
                self._show(sweep, widget)
        finally:
            if sweep.progress.state == "stopped":
                print(f"# {sweep.progress.text}")  # noqa: T201
            if sweep.points:
                self._keep(sweep.run, widget, target)

    def adopt(self, workspace: Workspace) -> None:
        """Show in widgets what was let go of and is taken up again."""
        for widget in self._live:
            if widget.workspace.name == workspace.name:
                widget.workspace = workspace

    def _show(self, sweep: Sweep, widget: widgets.Bandwidth) -> None:
        self._live.add(widget)
        widget.show()
        widget.follow(sweep)

    def _print(self, sweep: Sweep, widget: widgets.Bandwidth) -> None:
        status = status_for(self._shell)
        print(widgets.HEADER)  # noqa: T201 - rows appear as they are measured
        try:
            status.show(sweep.progress.text)
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

    def _keep(self, run: SweepRun, widget: widgets.Bandwidth, target: Path | None) -> None:
        self._earlier = (*self._earlier, run)[-_MOST_KEPT:]
        if target is not None:
            forms = {
                ".csv": lambda: widgets.sweep_csv(run.points),
                ".json": lambda: widgets.sweep_json(run),
                ".svg": lambda: widget.still().svg,
            }
            target.write_text(forms[target.suffix](), encoding="utf-8")


def _checked(name: str) -> Path:
    target = Path(name)
    if target.suffix not in _FORMS:
        msg = f"a sweep is saved as {', '.join(_FORMS[:-1])} or {_FORMS[-1]}, not as {name!r}"
        raise UsageMistake(msg)
    if not target.parent.is_dir():
        msg = f"there is no folder {str(target.parent)!r} to save {target.name!r} in"
        raise UsageMistake(msg)
    return target
