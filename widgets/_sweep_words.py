"""What there is to say of a sweep beside its table, and its forms for other programs.

Pure functions of `phalanx.protocol`'s records; how it looks is `_bandwidth`'s.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from phalanx.distributed.bench import algorithm_changes, fit_measurements
from phalanx.protocol import Limit, Measurement, SweepRun

from ._svg import clean
from ._table import format_size

__all__ = ["change_words", "limit_words", "sweep_csv", "sweep_json", "sweep_model", "sweep_words"]


def limit_words(limit: Limit) -> str:
    """Name a limit and its number: memory copy 8.21 GB/s."""
    number = f"{limit.gbs:.3g} GB/s" if limit.gbs > 0 else "not known"
    return f"{clean(limit.name)} {number}"


def change_words(points: Iterable[Measurement]) -> list[str]:
    """Say where the algorithm changes, a phrase for each change."""
    return [
        f"{clean(change.before)} up to {format_size(change.below)}, "
        f"{clean(change.after)} from {format_size(change.above)}"
        for change in algorithm_changes(points)
    ]


def sweep_words(points: Sequence[Measurement], limits: Sequence[Limit] = ()) -> list[str]:
    """Say what bounds a sweep, what model fits it, and where its algorithm changes.

    Parameters
    ----------
    points : sequence of Measurement
        Of one operation.
    limits : sequence of Limit, optional
        What the machine of the ranks can do without us.

    Returns
    -------
    list of str
        A line each; nothing of what is not known.
    """
    said = [f"limit: {limit_words(limit)} ({clean(limit.how)})" for limit in limits]
    fit = fit_measurements(points)
    if fit is not None:
        said.append(f"time: {fit.text}")
        if fit.alpha_s > 0 and math.isfinite(fit.half_nbytes):
            half = format_size(round(fit.half_nbytes))
            said.append(f"half of its best bandwidth at {half}")
    return [*said, *(f"algorithm: {words}" for words in change_words(points))]


def sweep_csv(points: Iterable[Measurement]) -> str:
    """Return the measurements as CSV, the names of their fields in the first line."""
    written = io.StringIO()
    fields = Measurement.__struct_fields__
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(fields)
    writer.writerows([getattr(m, field) for field in fields] for m in points)
    return written.getvalue()


def sweep_model(run: SweepRun) -> dict[str, Any]:
    """Return what follows from a sweep's points, as plain values: limits, fit, changes."""
    fit = fit_measurements(run.points)
    return {
        "limits": [msgspec.to_builtins(limit) for limit in run.limits],
        "fit": None
        if fit is None
        else {
            "alpha_us": fit.alpha_s * 1e6,
            "ns_per_byte": fit.beta_s * 1e9,
            "relative_error": fit.error,
        },
        "changes": [
            {"below": c.below, "above": c.above, "before": c.before, "after": c.after}
            for c in algorithm_changes(run.points)
        ],
    }


def sweep_json(run: SweepRun) -> str:
    """Return a sweep as JSON: what was asked, its points, and what follows from them."""
    whole = {**msgspec.to_builtins(run), "model": sweep_model(run)}
    return msgspec.json.format(msgspec.json.encode(whole), indent=1).decode() + "\n"
