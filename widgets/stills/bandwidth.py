"""Draw a still picture of a sweep."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from phalanx.distributed.bench import algorithm_changes, fit_measurements
from phalanx.protocol import Limit, Measurement, SweepRun

from ..frames.bandwidth import MOST_EARLIER
from ..text.tables import (
    format_size,
    limit_words,
    model_curve,
    sweep_words,
    table,
    unsized_words,
    wrong_words,
)
from ..text.world import clean, count
from .svg import SERIES_COLOURS, StillPicture, group, line, path, picture, render, text

# Pixels.
PLOT_W, PLOT_H, TOP = 352.0, 232.0, 78.0
_MOST_X_LABELS, _MOST_Y_LABELS = 7, 7

_LEGEND_ROW = 20.0
_MARKERS = ("circle", "square", "triangle", "diamond", "down", "plus")


@dataclass(frozen=True)
class Axis:
    """A log axis: maps ``low`` … ``high`` to ``start`` … ``stop`` pixels."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.stop - self.start)


def decades(values: Sequence[float]) -> tuple[float, float]:
    """Return whole decades around the values; never an empty span."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def draw_y_axis(g: ET.Element, left: float, y: Axis) -> None:
    """Draw decades; if there are few, also 2 and 5 between them."""
    first, last = round(math.log10(y.low)), round(math.log10(y.high))
    step = max(1, -(-(last - first + 1) // _MOST_Y_LABELS))
    for exponent in range(first, last + 1):
        at = y(10.0**exponent)
        line(g, left, at, left + PLOT_W, at, class_="px-grid")
        if (exponent - first) % step == 0:
            words = f"{10.0**exponent:g}" if -4 <= exponent <= 5 else f"1e{exponent}"
            text(g, left - 8, at + 4, words, "px-soft", 11, anchor="end")
        if last - first <= 3 and exponent < last:
            for factor in (2, 5):
                between = y(factor * 10.0**exponent)
                line(
                    g,
                    left,
                    between,
                    left + PLOT_W,
                    between,
                    class_="px-grid",
                    stroke_dasharray="2 4",
                )
    line(g, left, y.start, left + PLOT_W, y.start, class_="px-axis")
    line(g, left, y.start, left, y.stop, class_="px-axis")


def draw_x_axis(g: ET.Element, x: Axis, sizes: Sequence[int]) -> None:
    """Draw labels at measured sizes, as many as have room."""
    room = PLOT_W / _MOST_X_LABELS
    free = -math.inf
    for nbytes in sizes:
        at = x(nbytes)
        line(g, at, TOP + PLOT_H, at, TOP + PLOT_H + 4, class_="px-axis")
        if at >= free:
            text(g, at, TOP + PLOT_H + 18, format_size(nbytes), "px-soft", 11, anchor="middle")
            free = at + room


# Pixels around the panels' plot areas.
_LEFT, _BETWEEN, _RIGHT, _FOOT = 58.0, 66.0, 22.0, 44.0
_WIDTH = _LEFT + PLOT_W + _BETWEEN + PLOT_W + _RIGHT


def bandwidth(
    measurements: Sequence[Measurement],
    *,
    title: str = "bandwidth",
    limits: Sequence[Limit] = (),
    earlier: Sequence[SweepRun] = (),
) -> StillPicture:
    """Return a still picture of a sweep, and its table.

    Parameters
    ----------
    measurements : sequence of Measurement
        In any order. Measurements of equal operation, transport, dtype and ranks make a line.
    title : str, optional
        Title of the picture.
    limits : sequence of Limit, optional
        Limits of this machine, measured without Phalanx; a line each in the bandwidth panel.
    earlier : sequence of SweepRun, optional
        Earlier sweeps, drawn as thin lines; the last four are drawn.

    Returns
    -------
    StillPicture
        Left: bus bandwidth by size; right: time by size with the 99th percentile as a whisker.
        The text is nccl-tests' table, then words for the other drawn parts: limits, fitted model
        (dashed) and algorithm changes (dotted). Measurements of no bytes (a barrier) are described
        in words.

    Examples
    --------
    >>> print(bandwidth([], title="nothing yet").text.splitlines()[0])
    nothing yet
    """
    words = [clean(title), table(measurements)]
    runs = list(earlier)[-MOST_EARLIER:]
    said = _aside_words(measurements, limits)
    words += [f"# {line_}" for line_ in said]
    n_wrong = sum(m.n_wrong for m in measurements)
    if n_wrong:
        words.append(f"# {n_wrong} wrong elements")
    return StillPicture(
        render(_draw(measurements, title, n_wrong, limits, runs, said)), "\n".join(words)
    )


@dataclass(frozen=True)
class _Series:
    """The measurements of one line, and its look."""

    name: str
    colour: str
    marker: str
    points: list[Measurement]
    is_earlier: bool = False

    @property
    def sized(self) -> list[Measurement]:
        """Return the measurements with a size above 0, for the log axis."""
        return [m for m in self.points if m.nbytes > 0]


def _series(
    measurements: Sequence[Measurement], *, start: int = 0, when: str = ""
) -> list[_Series]:
    lines: dict[tuple[str, str, str, int], list[Measurement]] = {}
    for m in measurements:
        lines.setdefault((m.op, m.transport, m.dtype, m.ranks), []).append(m)
    made = []
    for i, ((op, transport, dtype, ranks), points) in enumerate(lines.items(), start):
        parts = [op, transport, dtype, count(ranks, "rank"), when]
        colour = i % len(SERIES_COLOURS)
        marker = _MARKERS[(i + i // len(SERIES_COLOURS)) % len(_MARKERS)]
        name = " · ".join(clean(p) for p in parts if p)
        ordered = sorted(points, key=lambda m: m.nbytes)
        made.append(_Series(name, SERIES_COLOURS[colour], marker, ordered, bool(when)))
    return made


def _aside_words(measurements: Sequence[Measurement], limits: Sequence[Limit]) -> list[str]:
    """Describe the parts beside the curves; with several lines only limits."""
    return sweep_words(measurements if len(_series(measurements)) == 1 else (), limits)


def _draw(
    measurements: Sequence[Measurement],
    title: str,
    n_wrong: int,
    limits: Sequence[Limit],
    earlier: Sequence[SweepRun],
    aside: Sequence[str],
) -> ET.Element:
    series = _series(measurements)
    for run in earlier:
        when = run.started[11:19] or "earlier"
        series += _series(run.points, start=len(series), when=when)
    drawn = [s for s in series if s.sized]
    said = [unsized_words(m, s.name) for s in series for m in s.points if m.nbytes == 0] + list(
        aside
    )
    if n_wrong:
        said.insert(0, wrong_words(n_wrong))
    legend_rows = -(-len(drawn) // 2)
    bottom = TOP + (PLOT_H + _FOOT if drawn else 0)
    height = bottom + _LEGEND_ROW * (legend_rows + len(said)) + 20
    shown = ", ".join(s.name for s in series) or "no measurements yet"
    root = picture(_WIDTH, height, title=title, description=f"Bandwidth and time by size: {shown}")
    text(root, 20, 34, title, size=16, room=_WIDTH - 40, font_weight=650)
    if not series:
        text(root, 20, 60, "no measurements yet", "px-soft")
    if drawn:
        right = _LEFT + PLOT_W + _BETWEEN
        _panel(root, _LEFT, drawn, _BANDWIDTH, limits)
        _panel(root, right, drawn, _TIME, ())
    for i, s in enumerate(drawn):
        x, y = _LEFT + (i % 2) * (PLOT_W + _BETWEEN), bottom + _LEGEND_ROW * (i // 2) + 6
        line(root, x, y, x + 26, y, stroke=s.colour, **_stroke(s))
        _marker(root, x + 13, y, s)
        text(root, x + 34, y + 4, s.name, room=PLOT_W - 30)
    for i, words in enumerate(said):
        y = bottom + _LEGEND_ROW * (legend_rows + i) + 14
        kind = "px-alarm" if n_wrong and not i else "px-ink"
        text(root, 20, y, words, kind, room=_WIDTH - 40)
    return root


def _stroke(s: _Series) -> dict[str, float]:
    return {"stroke_width": 1.2, "stroke_opacity": 0.6} if s.is_earlier else {"stroke_width": 2.2}


@dataclass(frozen=True)
class _Shown:
    """The quantity of a panel.

    ``value`` returns a measurement's value and the end of its whisker; ``column`` is the place in
    the rows of a `model_curve`.
    """

    name: str
    value: Callable[[Measurement], tuple[float, float]]
    column: int


_BANDWIDTH = _Shown("bus bandwidth, GB/s", lambda m: (m.busbw_gbs, m.busbw_gbs), 1)
_TIME = _Shown("time, µs (whisker: p99)", lambda m: (m.time_us, m.p99_us), 2)


def _panel(
    root: ET.Element,
    left: float,
    series: Sequence[_Series],
    shown: _Shown,
    limits: Sequence[Limit],
) -> None:
    value = shown.value
    points = [m for s in series for m in s.sized]
    positive = [v for m in points for v in value(m) if v > 0]
    positive += [limit.gbs for limit in limits if limit.gbs > 0]
    sizes = [m.nbytes for m in points]
    widened = (1, 1) if min(sizes) < max(sizes) else (2, 2)
    x = Axis(min(sizes) / widened[0], max(sizes) * widened[1], left + 8, left + PLOT_W - 8)
    y = Axis(*decades(positive or [1.0]), TOP + PLOT_H, TOP)
    g = group(root, label=shown.name)
    text(g, left, TOP - 12, shown.name, "px-soft")
    draw_y_axis(g, left, y)
    for limit in limits:
        _draw_limit(g, left, y, limit)
    for s in (s for s in series if not s.is_earlier):
        _draw_model(g, x, y, s, shown)
        _draw_changes(g, x, s)
    draw_x_axis(g, x, sorted(set(sizes)))
    for s in series:
        good = [(m, *value(m)) for m in s.sized if value(m)[0] > 0]
        steps = " ".join(
            f"{'L' if i else 'M'}{x(m.nbytes):.1f} {y(v):.1f}" for i, (m, v, _) in enumerate(good)
        )
        if len(good) > 1:
            path(g, steps, fill="none", stroke=s.colour, stroke_linejoin="round", **_stroke(s))
        for m, v, far in good:
            at = group(g, label=f"{s.name}, {format_size(m.nbytes)}: {v:.4g}{_aside(m)}")
            if far > v and not s.is_earlier:
                line(
                    at, x(m.nbytes), y(v), x(m.nbytes), y(far), stroke=s.colour, stroke_opacity=0.55
                )
            if not s.is_earlier:
                _marker(at, x(m.nbytes), y(v), s)
            if m.n_wrong:
                text(at, x(m.nbytes), y(v) - 8, "✕", "px-alarm", 15, anchor="middle")


def _draw_limit(g: ET.Element, left: float, y: Axis, limit: Limit) -> None:
    if limit.gbs <= 0:
        return
    at, right = y(limit.gbs), left + PLOT_W
    words = group(g, label=f"{limit_words(limit)}: {limit.how}")
    line(words, left, at, right, at, class_="px-limit", stroke_dasharray="7 4", stroke_width=1.4)
    text(words, left + 6, at - 5, limit_words(limit), "px-limitink", 11)


def _draw_model(g: ET.Element, x: Axis, y: Axis, s: _Series, shown: _Shown) -> None:
    """Draw the fitted cost model as a dashed line inside the panel."""
    model = fit_measurements(s.points)
    if model is None:
        return
    values = [(row[0], row[shown.column]) for row in model_curve(s.points)]
    inside = [(n, v) for n, v in values if y.low <= v <= y.high]
    steps = " ".join(f"{'L' if i else 'M'}{x(n):.1f} {y(v):.1f}" for i, (n, v) in enumerate(inside))
    if len(inside) > 1:
        at = group(g, label=f"{s.name}: {model.text}")
        path(at, steps, fill="none", stroke=s.colour, stroke_width=1.3, stroke_dasharray="3 3")


def _draw_changes(g: ET.Element, x: Axis, s: _Series) -> None:
    for i, change in enumerate(algorithm_changes(s.points)):
        at, label = x(change.nbytes), f"{change.before} → {change.after}"
        words = group(g, label=f"{s.name}: {label}")
        line(
            words,
            at,
            TOP,
            at,
            TOP + PLOT_H,
            stroke=s.colour,
            stroke_dasharray="1 4",
            stroke_width=1.4,
        )
        # Near the bottom, where the curves leave room; staggered so that labels do not overlap.
        down = TOP + PLOT_H - 8 - 14 * (i % 3)
        is_left = at < (x.start + x.stop) / 2
        room, side = (x.stop - at, 4) if is_left else (at - x.start, -4)
        anchor = None if is_left else "end"
        text(words, at + side, down, label, "px-soft", 10, room=room, anchor=anchor)


def _aside(m: Measurement) -> str:
    wrong = f"{m.n_wrong} wrong elements" if m.n_wrong else ""
    return "".join(f", {words}" for words in (m.algorithm, wrong) if words)


def _marker(g: ET.Element, x: float, y: float, s: _Series) -> None:
    r = 4.0
    shapes = {
        "circle": f"M{x - r:.1f} {y:.1f} a{r} {r} 0 1 0 {2 * r} 0 a{r} {r} 0 1 0 {-2 * r} 0 Z",
        "square": f"M{x - 3.5:.1f} {y - 3.5:.1f} h7 v7 h-7 Z",
        "triangle": f"M{x:.1f} {y - 4.8:.1f} l4.8 8.4 h-9.6 Z",
        "diamond": f"M{x:.1f} {y - 5:.1f} l5 5 l-5 5 l-5 -5 Z",
        "down": f"M{x:.1f} {y + 4.8:.1f} l4.8 -8.4 h-9.6 Z",
        "plus": f"M{x - 5:.1f} {y - 1.5:.1f} h3.5 v-3.5 h3 v3.5 h3.5 v3 h-3.5 v3.5 h-3 v-3.5 h-3.5 Z",
    }
    path(g, shapes[s.marker], fill=s.colour)
