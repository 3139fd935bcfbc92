"""Draw a still picture of a sweep."""

from __future__ import annotations

import math
from collections.abc import Sequence
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

# Pixels: the plot areas of the panels, and the space around them.
_PLOT_W, _PLOT_H, _TOP = 352.0, 232.0, 78.0
_FLOOR = _TOP + _PLOT_H
_LEFT, _BETWEEN, _RIGHT, _FOOT = 58.0, 66.0, 22.0, 44.0
_WIDTH = _LEFT + _PLOT_W + _BETWEEN + _PLOT_W + _RIGHT
_LEGEND_ROW = 20.0

_MOST_X_LABELS, _MOST_Y_LABELS = 7, 7
_MARKERS = ("circle", "square", "triangle", "diamond", "down", "plus")


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
    # With several lines, only the limits are described beside them.
    said = sweep_words(measurements if len(_series(measurements)) == 1 else (), limits)
    n_wrong = sum(m.n_wrong for m in measurements)
    wrong = [f"{n_wrong} wrong elements"] if n_wrong else []
    words = [clean(title), table(measurements), *(f"# {its}" for its in (*said, *wrong))]
    runs = list(earlier)[-MOST_EARLIER:]
    svg = render(_draw(measurements, title, n_wrong, limits, runs, said))
    return StillPicture(svg, "\n".join(words))


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

    @property
    def stroke(self) -> dict[str, float]:
        """Return the attributes of the line, except its colour."""
        if self.is_earlier:
            return {"stroke_width": 1.2, "stroke_opacity": 0.6}
        return {"stroke_width": 2.2}


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
    said = [wrong_words(n_wrong)] if n_wrong else []
    said += [unsized_words(m, s.name) for s in series for m in s.points if m.nbytes == 0]
    said += aside
    legend_rows = -(-len(drawn) // 2)
    bottom = _TOP + (_PLOT_H + _FOOT if drawn else 0)
    height = bottom + _LEGEND_ROW * (legend_rows + len(said)) + 20
    shown = ", ".join(s.name for s in series) or "no measurements yet"
    root = picture(_WIDTH, height, title=title, description=f"Bandwidth and time by size: {shown}")
    text(root, 20, 34, title, size=16, room=_WIDTH - 40, font_weight=650)
    if not series:
        text(root, 20, 60, "no measurements yet", "px-soft")
    if drawn:
        _BandwidthPanel(root, _LEFT, drawn, limits)
        _TimePanel(root, _LEFT + _PLOT_W + _BETWEEN, drawn)
    for i, s in enumerate(drawn):
        x, y = _LEFT + (i % 2) * (_PLOT_W + _BETWEEN), bottom + _LEGEND_ROW * (i // 2) + 6
        line(root, x, y, x + 26, y, stroke=s.colour, **s.stroke)
        _marker(root, x + 13, y, s)
        text(root, x + 34, y + 4, s.name, room=_PLOT_W - 30)
    for i, words in enumerate(said):
        y = bottom + _LEGEND_ROW * (legend_rows + i) + 14
        kind = "px-alarm" if n_wrong and not i else "px-ink"
        text(root, 20, y, words, kind, room=_WIDTH - 40)
    return root


class _Axis:
    """A log axis: maps ``low`` … ``high`` to ``start`` … ``stop`` pixels."""

    def __init__(self, low: float, high: float, start: float, stop: float) -> None:
        self.low, self.high, self.start, self.stop = low, high, start, stop

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.stop - self.start)


class _BandwidthPanel:
    """A panel that draws the bus bandwidth of each size."""

    name = "bus bandwidth, GB/s"
    column = 1  # of a `model_curve`

    def __init__(
        self, root: ET.Element, left: float, series: Sequence[_Series], limits: Sequence[Limit] = ()
    ) -> None:
        points = [m for s in series for m in s.sized]
        known = [limit for limit in limits if limit.gbs > 0]
        positive = [v for m in points for v in self.values(m) if v > 0]
        positive += [limit.gbs for limit in known]
        sizes = sorted({m.nbytes for m in points})
        widened = 1 if len(sizes) > 1 else 2
        self._left = left
        self._x = _Axis(sizes[0] / widened, sizes[-1] * widened, left + 8, left + _PLOT_W - 8)
        # Whole decades; never an empty span.
        low = math.floor(math.log10(min(positive, default=1.0)))
        high = max(math.ceil(math.log10(max(positive, default=1.0))), low + 1)
        self._y = _Axis(10.0**low, 10.0**high, _FLOOR, _TOP)
        self._g = group(root, label=self.name)
        text(self._g, left, _TOP - 12, self.name, "px-soft")
        self._draw_y_axis(low, high)
        for limit in known:
            self._draw_limit(limit)
        for s in (s for s in series if not s.is_earlier):
            self._draw_model(s)
            self._draw_changes(s)
        self._draw_x_axis(sizes)
        for s in series:
            self._draw_points(s)

    def values(self, m: Measurement) -> tuple[float, float]:
        """Return a measurement's value and the end of its whisker."""
        return m.busbw_gbs, m.busbw_gbs

    def _across(self, g: ET.Element, y: float, **style: str | float) -> None:
        line(g, self._left, y, self._left + _PLOT_W, y, **style)

    def _curve(
        self, g: ET.Element, points: Sequence[tuple[float, float]], **style: str | float
    ) -> None:
        places = (f"{self._x(n):.1f} {self._y(value):.1f}" for n, value in points)
        path(g, f"M{' L'.join(places)}", fill="none", **style)

    def _draw_y_axis(self, first: int, last: int) -> None:
        """Draw decades; if there are few, also 2 and 5 between them."""
        step = max(1, -(-(last - first + 1) // _MOST_Y_LABELS))
        for exponent in range(first, last + 1):
            at = self._y(10.0**exponent)
            self._across(self._g, at, class_="px-grid")
            if (exponent - first) % step == 0:
                words = f"{10.0**exponent:g}" if -4 <= exponent <= 5 else f"1e{exponent}"
                text(self._g, self._left - 8, at + 4, words, "px-soft", 11, anchor="end")
            if last - first <= 3 and exponent < last:
                for factor in (2, 5):
                    between = self._y(factor * 10.0**exponent)
                    self._across(self._g, between, class_="px-grid", stroke_dasharray="2 4")
        self._across(self._g, _FLOOR, class_="px-axis")
        line(self._g, self._left, _FLOOR, self._left, _TOP, class_="px-axis")

    def _draw_x_axis(self, sizes: Sequence[int]) -> None:
        """Draw labels at measured sizes, as many as have room."""
        free = -math.inf
        for nbytes in sizes:
            at = self._x(nbytes)
            line(self._g, at, _FLOOR, at, _FLOOR + 4, class_="px-axis")
            if at >= free:
                words = format_size(nbytes)
                text(self._g, at, _FLOOR + 18, words, "px-soft", 11, anchor="middle")
                free = at + _PLOT_W / _MOST_X_LABELS

    def _draw_limit(self, limit: Limit) -> None:
        at, words = self._y(limit.gbs), limit_words(limit)
        g = group(self._g, label=f"{words}: {limit.how}")
        self._across(g, at, class_="px-limit", stroke_dasharray="7 4", stroke_width=1.4)
        text(g, self._left + 6, at - 5, words, "px-limitink", 11)

    def _draw_model(self, s: _Series) -> None:
        """Draw the fitted cost model as a dashed line inside the panel."""
        model = fit_measurements(s.points)
        curve = [(row[0], row[self.column]) for row in model_curve(s.points)]
        inside = [(n, v) for n, v in curve if self._y.low <= v <= self._y.high]
        if model is not None and len(inside) > 1:
            g = group(self._g, label=f"{s.name}: {model.text}")
            self._curve(g, inside, stroke=s.colour, stroke_width=1.3, stroke_dasharray="3 3")

    def _draw_changes(self, s: _Series) -> None:
        for i, change in enumerate(algorithm_changes(s.points)):
            at, label = self._x(change.nbytes), f"{change.before} → {change.after}"
            g = group(self._g, label=f"{s.name}: {label}")
            style: dict[str, str | float] = {"stroke_dasharray": "1 4", "stroke_width": 1.4}
            line(g, at, _TOP, at, _FLOOR, stroke=s.colour, **style)
            # Near the bottom, where the curves leave room; staggered so that labels do not overlap.
            down = _FLOOR - 8 - 14 * (i % 3)
            is_left = at < (self._x.start + self._x.stop) / 2
            room, side = (self._x.stop - at, 4) if is_left else (at - self._x.start, -4)
            anchor = None if is_left else "end"
            text(g, at + side, down, label, "px-soft", 10, room=room, anchor=anchor)

    def _draw_points(self, s: _Series) -> None:
        good = [(m, *self.values(m)) for m in s.sized if self.values(m)[0] > 0]
        if len(good) > 1:
            curve = [(m.nbytes, value) for m, value, _ in good]
            self._curve(self._g, curve, stroke=s.colour, stroke_linejoin="round", **s.stroke)
        for m, value, far in good:
            x, y = self._x(m.nbytes), self._y(value)
            wrong = f"{m.n_wrong} wrong elements" if m.n_wrong else ""
            said = f"{s.name}, {format_size(m.nbytes)}: {value:.4g}"
            g = group(self._g, label=", ".join(filter(None, (said, m.algorithm, wrong))))
            if not s.is_earlier:
                if far > value:
                    line(g, x, y, x, self._y(far), stroke=s.colour, stroke_opacity=0.55)
                _marker(g, x, y, s)
            if m.n_wrong:
                text(g, x, y - 8, "✕", "px-alarm", 15, anchor="middle")


class _TimePanel(_BandwidthPanel):
    """A panel that draws the time of each size."""

    name = "time, µs (whisker: p99)"
    column = 2

    def values(self, m: Measurement) -> tuple[float, float]:
        return m.time_us, m.p99_us


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
