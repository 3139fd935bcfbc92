"""Make the record that the live Bandwidth widget sends.

The record is always sent whole. ``js/src/bandwidth/state.ts`` has the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from phalanx.distributed.bench import (
    DTYPES,
    OPERATIONS,
    algorithm_changes,
    busbw_factor,
    fit_measurements,
)
from phalanx.protocol import Measurement, SweepProgress, SweepRun

from ..text.tables import sweep_words
from ..text.world import clean

MOST_EARLIER = 4  # a person cannot tell more lines apart


class SweepRequest(msgspec.Struct, frozen=True):
    """The values of the form."""

    op: str = "all_sum"
    begin: str = "8"
    end: str = "16M"
    factor: int = 4
    dtype: str = "float32"
    iters: int = 20


class _Point(msgspec.Struct, frozen=True):
    nbytes: int
    time_us: float
    p99_us: float
    busbw_gbs: float
    n_wrong: int
    algorithm: str
    transport: str


class _Run(msgspec.Struct, frozen=True):
    name: str
    points: tuple[_Point, ...]


class _Limit(msgspec.Struct, frozen=True):
    name: str
    gbs: float


class _Fit(msgspec.Struct, frozen=True):
    alpha_us: float
    ns_per_byte: float
    factor: float


class _Change(msgspec.Struct, frozen=True):
    below: int
    above: int
    before: str
    after: str


Asked = SweepRequest  # its public name until 2026-11


class BandwidthFrame(msgspec.Struct, frozen=True):
    """All data that a page shows."""

    status: Literal["live", "gone"]
    why: str
    state: str
    n_done: int
    n_points: int
    progress: str
    error: str
    title: str
    asked: SweepRequest
    run: _Run | None
    earlier: tuple[_Run, ...]
    limits: tuple[_Limit, ...]
    fit: _Fit | None
    changes: tuple[_Change, ...]
    words: tuple[str, ...]
    now: float
    ops: tuple[str, ...] = OPERATIONS
    dtypes: tuple[str, ...] = DTYPES


def name_of(run: SweepRun, *, has_time: bool = True) -> str:
    """Name a sweep, like "all_sum · arena · float32 · 4 ranks".

    With ``has_time``, the time of day of the start is added.
    """
    transports = "+".join(sorted({m.transport for m in run.points}))
    ranks = f"{run.ranks} rank{'' if run.ranks == 1 else 's'}"
    when = run.started[11:19] if has_time else ""
    return " · ".join(clean(part) for part in (run.op, transports, run.dtype, ranks, when) if part)


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
    """Build a frame.

    Parameters
    ----------
    run : SweepRun or None
        The current or last sweep.
    progress : SweepProgress or None
        Progress of the sweep; None for a finished sweep of another widget or call.
    earlier : sequence of SweepRun
        Earlier sweeps; the last four of the same operation are sent.
    asked : SweepRequest
        Values for the form.
    why_gone, error : str
        Why the ranks are gone, and the last error; empty without one.
    now : float
        Clock in seconds. It makes frames differ: a page without new frames reports a dead kernel.
    """
    points = run.points if run is not None else ()
    fit = fit_measurements(points)
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
        run=None if run is None else _run_of(run),
        earlier=tuple(_run_of(one) for one in same[-MOST_EARLIER:]),
        limits=tuple(
            _Limit(clean(one.name), one.gbs)
            for one in (run.limits if run else ())
            if one.gbs > 0  # else described in words
        ),
        fit=None
        if fit is None or run is None
        else _Fit(fit.alpha_s * 1e6, fit.beta_s * 1e9, busbw_factor(run.op, run.ranks)),
        changes=tuple(
            _Change(c.below, c.above, clean(c.before), clean(c.after))
            for c in algorithm_changes(points)
        ),
        words=tuple(sweep_words(points, run.limits if run else ())) + tuple(_alone(points)),
        now=now,
    )


def _run_of(run: SweepRun) -> _Run:
    points = tuple(
        _Point(
            m.nbytes,
            m.time_us,
            m.p99_us,
            m.busbw_gbs,
            m.n_wrong,
            clean(m.algorithm),
            clean(m.transport),
        )
        for m in run.points
    )
    return _Run(name_of(run), points)


def _alone(points: Sequence[Measurement]) -> list[str]:
    """Describe measurements without bytes, and warn of wrong elements."""
    said = [
        f"{clean(m.op)}: {m.time_us:.3g} µs (99 % of the calls under {m.p99_us:.3g} µs)"
        for m in points
        if m.nbytes == 0
    ]
    n_wrong = sum(m.n_wrong for m in points)
    if n_wrong:
        said.insert(0, f"{n_wrong} wrong elements: do not trust this machine's results")
    elif points:
        said.append(f"{sum(m.iterations for m in points)} timed calls, no wrong element")
    return said
