"""Format measurements as a table with the columns of nccl-tests."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from phalanx.distributed.bench import algorithm_changes, busbw_factor, fit_measurements
from phalanx.protocol import Limit, Measurement, SweepRun

from .world import clean

# Name, unit, width, and the cell's text.
_COLUMNS: tuple[tuple[str, str, int, Callable[[Measurement], str]], ...] = (
    ("size", "(B)", 12, lambda m: str(m.nbytes)),
    ("count", "(elements)", 12, lambda m: str(m.count)),
    ("type", "", 12, lambda m: clean(m.dtype)),
    ("op", "", 13, lambda m: clean(m.op)),
    ("transport", "", 10, lambda m: clean(m.transport)),
    ("algorithm", "", 11, lambda m: clean(m.algorithm) or "-"),  # an MPI library reports none
    ("time", "(us)", 11, lambda m: _digits(m.time_us)),
    ("p99", "(us)", 11, lambda m: _digits(m.p99_us)),
    ("algbw", "(GB/s)", 8, lambda m: _digits(m.algbw_gbs)),
    ("busbw", "(GB/s)", 8, lambda m: _digits(m.busbw_gbs)),
    ("#wrong", "", 7, lambda m: str(m.n_wrong)),
)
HEADER = "\n".join(
    "#" + "".join(f"{column[line]:>{column[2]}}" for column in _COLUMNS)[1:].rstrip()
    for line in (0, 1)
)
_MODEL_STEPS = 48
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def format_size(nbytes: int) -> str:
    """Format bytes in a binary unit, with at most one decimal digit.

    Examples
    --------
    >>> format_size(8), format_size(1536), format_size(64 << 20)
    ('8 B', '1.5 KiB', '64 MiB')
    """
    unit, value = 0, float(nbytes)
    while value >= 1024 and unit < len(_UNITS) - 1:
        unit, value = unit + 1, value / 1024
    return f"{value:.1f}".removesuffix(".0") + f" {_UNITS[unit]}"


def _digits(value: float) -> str:
    """Format a number with about four digits: 0.123, 12.35, 1234.5."""
    return f"{value:.3f}" if value < 10 else f"{value:.2f}" if value < 1000 else f"{value:.1f}"


def format_measurement(m: Measurement) -> str:
    """Format one line of the table.

    Columns are separated by a space, however long a value is.
    """
    return "".join(" " + f"{cell(m):>{width - 1}}" for _, _, width, cell in _COLUMNS)


def table(measurements: Iterable[Measurement]) -> str:
    """Return the two header lines and a line for each measurement."""
    return "\n".join([HEADER, *map(format_measurement, measurements)])


def limit_words(limit: Limit) -> str:
    """Name a limit and its number: memory copy 8.21 GB/s."""
    number = f"{limit.gbs:.3g} GB/s" if limit.gbs > 0 else "not known"
    return f"{clean(limit.name)} {number}"


def sweep_words(points: Sequence[Measurement], limits: Sequence[Limit] = ()) -> list[str]:
    """Describe a sweep's limits, fitted model and algorithm changes.

    Parameters
    ----------
    points : sequence of Measurement
        Measurements of one operation.
    limits : sequence of Limit, optional
        Limits of the ranks' machine, measured without Phalanx.

    Returns
    -------
    list of str
        One line for each fact; unknown facts have no line.
    """
    said = [f"limit: {limit_words(limit)} ({clean(limit.how)})" for limit in limits]
    fit = fit_measurements(points)
    if fit is not None:
        said.append(f"time: {fit.text}")
        if fit.alpha_s > 0 and math.isfinite(fit.half_nbytes):
            half = format_size(round(fit.half_nbytes))
            said.append(f"half of its best bandwidth at {half}")
    said += [
        f"algorithm: {clean(change.before)} up to {format_size(change.below)}, "
        f"{clean(change.after)} from {format_size(change.above)}"
        for change in algorithm_changes(points)
    ]
    return said


def unsized_words(m: Measurement, name: str) -> str:
    """Describe a measurement of no bytes, as of a barrier."""
    return f"{name}: {m.time_us:.3g} µs (99 % of the calls under {m.p99_us:.3g} µs)"


def wrong_words(n_wrong: int) -> str:
    """Warn of wrong elements."""
    return f"{n_wrong} wrong elements: do not trust this machine's results"


def sweep_csv(points: Iterable[Measurement]) -> str:
    """Return the measurements as CSV, with field names as first line."""
    written = io.StringIO()
    fields = Measurement.__struct_fields__
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(fields)
    writer.writerows([getattr(m, field) for field in fields] for m in points)
    return written.getvalue()


def sweep_model(run: SweepRun) -> dict[str, Any]:
    """Return a sweep's limits, fit and algorithm changes as plain values."""
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


def model_curve(points: Sequence[Measurement]) -> tuple[tuple[float, float, float], ...]:
    """Return the fitted model as a curve.

    Each row has bytes, bus bandwidth in GB/s and time in µs.
    """
    fit = fit_measurements(points)
    if fit is None:
        return ()
    measured = [m.nbytes for m in points if m.nbytes > 0]
    low, high = min(measured), max(measured)
    factor = busbw_factor(points[0].op, points[0].ranks)
    sizes = [low * (high / low) ** (i / _MODEL_STEPS) for i in range(_MODEL_STEPS + 1)]
    return tuple((n, n / fit.seconds(n) * factor / 1e9, fit.seconds(n) * 1e6) for n in sizes)


def sweep_json(run: SweepRun) -> str:
    """Return a sweep as JSON: request, points and derived model."""
    whole = {**msgspec.to_builtins(run), "model": sweep_model(run)}
    return msgspec.json.format(msgspec.json.encode(whole), indent=1).decode() + "\n"
