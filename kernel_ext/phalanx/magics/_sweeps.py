"""`%distributed bandwidth`: a sweep in the cell that asked for it, and the sweeps before it.

It prints and draws; the sweep is the workspace's, the picture the widgets'.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from IPython.display import display

from phalanx import widgets
from phalanx.distributed.bench import parse_size
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

    def measure(self, workspace: Workspace, options: Any) -> None:
        """Sweep, print each size as it comes, and draw what came, also when it was stopped."""
        target = None if options.save is None else _checked(options.save)
        sweep = workspace.bench(
            options.op,
            begin=parse_size(options.begin),
            end=parse_size(options.end),
            factor=options.factor,
            dtype=options.dtype,
            iterations=options.iters,
            wait=options.wait,
        )
        try:
            self._print(sweep)
        finally:
            if sweep.points:
                self._show(sweep.run, target)

    def _print(self, sweep: Sweep) -> None:
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
            if sweep.progress.state == "stopped":
                print(f"# {sweep.progress.text}")  # noqa: T201

    def _show(self, run: SweepRun, target: Path | None) -> None:
        picture = widgets.bandwidth(run.points, limits=run.limits, earlier=self._same(run))
        display(picture)
        self._earlier = (*self._earlier, run)[-_MOST_KEPT:]
        if target is not None:
            forms = {
                ".csv": lambda: widgets.sweep_csv(run.points),
                ".json": lambda: widgets.sweep_json(run),
                ".svg": lambda: picture.svg,
            }
            target.write_text(forms[target.suffix](), encoding="utf-8")

    def _same(self, run: SweepRun) -> Sequence[SweepRun]:
        """Those before that can be compared with it: of the same operation."""
        return [one for one in self._earlier if one.op == run.op]


def _checked(name: str) -> Path:
    target = Path(name)
    if target.suffix not in _FORMS:
        msg = f"a sweep is saved as {', '.join(_FORMS[:-1])} or {_FORMS[-1]}, not as {name!r}"
        raise UsageMistake(msg)
    if not target.parent.is_dir():
        msg = f"there is no folder {str(target.parent)!r} to save {target.name!r} in"
        raise UsageMistake(msg)
    return target
