"""Make the record that the live Bandwidth widget sends.

The record is always sent whole. ``js/src/bandwidth/state.ts`` has the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from phalanx.distributed.bench import DTYPES, OPERATIONS
from phalanx.protocol import Limit, Measurement, SweepProgress, SweepRun

from ..text.tables import model_curve, sweep_model, sweep_words, unsized_words, wrong_words
from ..text.world import clean, cleaned, count
from . import WidgetFrame

MOST_EARLIER = 4  # a person cannot tell more lines apart


class SweepRequest(msgspec.Struct, frozen=True):
    """The values of the form."""

    op: str = "all_sum"
    begin: str = "8"
    end: str = "16M"
    factor: int = 4
    dtype: str = "float32"
    iters: int = 20


class _Run(msgspec.Struct, frozen=True):
    name: str
    points: tuple[Measurement, ...]


Asked = SweepRequest  # its public name until 2026-11


class BandwidthFrame(WidgetFrame, frozen=True):
    """All data that a page shows.

    ``fit`` is the `model_curve`, ``changes`` are those of `sweep_model`.
    """

    state: str
    n_done: int
    n_points: int
    progress: str
    error: str
    title: str
    asked: SweepRequest
    run: _Run | None
    earlier: tuple[_Run, ...]
    limits: tuple[Limit, ...]
    fit: tuple[tuple[float, float, float], ...]
    changes: list[dict[str, Any]]
    words: tuple[str, ...]
    ops: tuple[str, ...] = OPERATIONS
    dtypes: tuple[str, ...] = DTYPES


def name_of(run: SweepRun, *, has_time: bool = True) -> str:
    """Name a sweep, like "all_sum · arena · float32 · 4 ranks".

    With ``has_time``, the time of day of the start is added.
    """
    transports = "+".join(sorted({m.transport for m in run.points}))
    when = run.started[11:19] if has_time else ""
    return " · ".join(
        clean(part)
        for part in (run.op, transports, run.dtype, count(run.ranks, "rank"), when)
        if part
    )


def frame_of(
    run: SweepRun | None,
    progress: SweepProgress | None,
    earlier: Sequence[SweepRun],
    asked: SweepRequest,
    *,
    why_gone: str,
    error: str,
    now: float,
) -> BandwidthFrame:
    """Build a frame of the current or last sweep.

    ``progress`` is None for a finished sweep of another widget or call. The last four of the
    ``earlier`` sweeps of the same operation are sent. A page without new frames reports a dead
    kernel, so ``now`` makes frames differ.
    """
    run = None if run is None else _cleaned(run)
    points = () if run is None else run.points
    limits = () if run is None else run.limits
    words = [unsized_words(m, m.op) for m in points if m.nbytes == 0]
    n_wrong = sum(m.n_wrong for m in points)
    if n_wrong:
        words.insert(0, wrong_words(n_wrong))
    elif points:
        words.append(f"{sum(m.iterations for m in points)} timed calls, no wrong element")
    same = [one for one in earlier if run is None or one.op == run.op]
    n_done = progress.n_done if progress else len(points)
    return BandwidthFrame(
        status="gone" if why_gone else "live",
        why=clean(why_gone),
        state=progress.state if progress else run.state if run else "none",
        n_done=n_done,
        n_points=progress.n_points if progress else n_done,
        progress=progress.text if progress else f"{run.state} after {n_done} sizes" if run else "",
        error=clean(error),
        title=name_of(run, has_time=False) if run is not None else "bandwidth",
        asked=asked,
        run=None if run is None else _Run(name_of(run), run.points),
        earlier=tuple(_Run(name_of(one), _cleaned(one).points) for one in same[-MOST_EARLIER:]),
        limits=tuple(limit for limit in limits if limit.gbs > 0),  # else described in words
        fit=model_curve(points),
        changes=[] if run is None else sweep_model(run)["changes"],
        words=(*sweep_words(points, limits), *words),
        now=now,
    )


def _cleaned(run: SweepRun) -> SweepRun:
    """Return a sweep with each text from ranks as one line."""
    return msgspec.structs.replace(
        run, points=tuple(map(cleaned, run.points)), limits=tuple(map(cleaned, run.limits))
    )
