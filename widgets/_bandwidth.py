"""Draws a sweep: bus bandwidth and latency by size, on log axes, one line per operation and path.

It knows `phalanx.protocol.Measurement` only; measuring is `phalanx.distributed.bench`'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from phalanx.protocol import Measurement

from ._still import StillPicture
from ._svg import SERIES_COLOURS, clean, fit, group, line, path, picture, render, text
from ._table import format_size, table

__all__ = ["bandwidth"]

# Pixels: a panel's plot area, and what stands around it.
_PLOT_W, _PLOT_H = 352.0, 232.0
_LEFT, _BETWEEN, _RIGHT, _TOP, _FOOT = 58.0, 66.0, 22.0, 78.0, 44.0
_WIDTH = _LEFT + _PLOT_W + _BETWEEN + _PLOT_W + _RIGHT
_LEGEND_ROW = 20.0
_MARKERS = ("circle", "square", "triangle", "diamond", "down", "plus")
_MOST_X_LABELS, _MOST_Y_LABELS = 7, 7


def bandwidth(measurements: Sequence[Measurement], *, title: str = "bandwidth") -> StillPicture:
    """Return a still picture of a sweep, and its table.

    Parameters
    ----------
    measurements : sequence of Measurement
        In any order; lines are made of equal operation, transport, dtype and ranks.
    title : str, optional
        The picture's headline.

    Returns
    -------
    StillPicture
        Left: bus bandwidth by size; right: time by size with the 99th percentile as a whisker.
        The text is nccl-tests' table. Measurements of no bytes (a barrier) are told in words.

    Examples
    --------
    >>> print(bandwidth([], title="nothing yet").text.splitlines()[0])
    nothing yet
    """
    words = [clean(title), table(measurements)]
    n_wrong = sum(m.n_wrong for m in measurements)
    if n_wrong:
        words.append(f"# {n_wrong} wrong elements")
    return StillPicture(render(_draw(measurements, title, n_wrong)), "\n".join(words))


@dataclass(frozen=True)
class _Series:
    """Measurements that make one line, and how it looks."""

    name: str
    colour: str
    marker: str
    points: list[Measurement]


@dataclass(frozen=True)
class _Axis:
    """A log axis: values from ``low`` to ``high`` onto ``start`` to ``stop`` pixels."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.stop - self.start)


def _series(measurements: Sequence[Measurement]) -> list[_Series]:
    lines: dict[tuple[str, str, str, int], list[Measurement]] = {}
    for m in measurements:
        lines.setdefault((m.op, m.transport, m.dtype, m.ranks), []).append(m)
    made = []
    for i, ((op, transport, dtype, ranks), points) in enumerate(lines.items()):
        parts = [op, transport, dtype, f"{ranks} ranks" if ranks != 1 else "1 rank"]
        colour = i % len(SERIES_COLOURS)
        marker = _MARKERS[(i + i // len(SERIES_COLOURS)) % len(_MARKERS)]
        name = " · ".join(clean(p) for p in parts if p)
        ordered = sorted(points, key=lambda m: m.nbytes)
        made.append(_Series(name, SERIES_COLOURS[colour], marker, ordered))
    return made


def _draw(measurements: Sequence[Measurement], title: str, n_wrong: int) -> ET.Element:
    series = _series(measurements)
    drawn = [s for s in series if any(m.nbytes > 0 for m in s.points)]
    said = [
        f"{s.name}: {m.time_us:.3g} µs (99 % of the calls under {m.p99_us:.3g} µs)"
        for s in series
        for m in s.points
        if m.nbytes == 0
    ]
    if n_wrong:
        said.insert(0, f"{n_wrong} wrong elements: do not trust this machine's results")
    legend_rows = -(-len(drawn) // 2)
    bottom = _TOP + (_PLOT_H + _FOOT if drawn else 0)
    height = bottom + _LEGEND_ROW * (legend_rows + len(said)) + 16
    shown = ", ".join(s.name for s in series) or "no measurements yet"
    root = picture(_WIDTH, height, title=title, description=f"Bandwidth and time by size: {shown}")
    text(root, 20, 34, fit(title, _WIDTH - 40, 16), size=16, font_weight=650)
    if not series:
        text(root, 20, 60, "no measurements yet", class_="px-soft")
    if drawn:
        right = _LEFT + _PLOT_W + _BETWEEN
        _panel(root, _LEFT, drawn, "bus bandwidth, GB/s", lambda m: (m.busbw_gbs, m.busbw_gbs))
        _panel(root, right, drawn, "time, µs (whisker: p99)", lambda m: (m.time_us, m.p99_us))
    for i, s in enumerate(drawn):
        x, y = _LEFT + (i % 2) * (_PLOT_W + _BETWEEN), bottom + _LEGEND_ROW * (i // 2) + 6
        line(root, x, y, x + 26, y, stroke=s.colour, stroke_width=2.2)
        _marker(root, x + 13, y, s)
        text(root, x + 34, y + 4, fit(s.name, _PLOT_W - 30, 12))
    for i, words in enumerate(said):
        y = bottom + _LEGEND_ROW * (legend_rows + i) + 8
        text(
            root,
            20,
            y,
            fit(words, _WIDTH - 40, 12),
            class_="px-alarm" if n_wrong and not i else "px-ink",
        )
    return root


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Whole decades around the values; never an empty span."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def _panel(
    root: ET.Element,
    left: float,
    series: Sequence[_Series],
    name: str,
    value: Callable[[Measurement], tuple[float, float]],
) -> None:
    points = [m for s in series for m in s.points if m.nbytes > 0]
    positive = [v for m in points for v in value(m) if v > 0]
    sizes = [m.nbytes for m in points]
    widened = (1, 1) if min(sizes) < max(sizes) else (2, 2)
    x = _Axis(min(sizes) / widened[0], max(sizes) * widened[1], left + 8, left + _PLOT_W - 8)
    y = _Axis(*_limits(positive or [1.0]), _TOP + _PLOT_H, _TOP)
    g = group(root, label=name)
    text(g, left, _TOP - 12, name, size=12, class_="px-soft")
    _draw_y_axis(g, left, y)
    _draw_x_axis(g, x, sorted(set(sizes)))
    for s in series:
        good = [(m, *value(m)) for m in s.points if m.nbytes > 0 and value(m)[0] > 0]
        steps = " ".join(
            f"{'L' if i else 'M'}{x(m.nbytes):.1f} {y(v):.1f}" for i, (m, v, _) in enumerate(good)
        )
        if len(good) > 1:
            path(g, steps, fill="none", stroke=s.colour, stroke_width=2.2, stroke_linejoin="round")
        for m, v, far in good:
            at = group(g, label=f"{s.name}, {format_size(m.nbytes)}: {v:.4g}{_aside(m)}")
            if far > v:
                line(
                    at, x(m.nbytes), y(v), x(m.nbytes), y(far), stroke=s.colour, stroke_opacity=0.55
                )
            _marker(at, x(m.nbytes), y(v), s)
            if m.n_wrong:
                text(
                    at, x(m.nbytes), y(v) - 8, "✕", size=15, class_="px-alarm", text_anchor="middle"
                )


def _aside(m: Measurement) -> str:
    wrong = f"{m.n_wrong} wrong elements" if m.n_wrong else ""
    return "".join(f", {words}" for words in (m.algorithm, wrong) if words)


def _draw_y_axis(g: ET.Element, left: float, y: _Axis) -> None:
    first, last = round(math.log10(y.low)), round(math.log10(y.high))
    step = max(1, -(-(last - first + 1) // _MOST_Y_LABELS))
    for exponent in range(first, last + 1):
        at = y(10.0**exponent)
        line(g, left, at, left + _PLOT_W, at, class_="px-grid")
        if (exponent - first) % step == 0:
            words = f"{10.0**exponent:g}" if -4 <= exponent <= 5 else f"1e{exponent}"
            text(g, left - 8, at + 4, words, size=11, class_="px-soft", text_anchor="end")
        if last - first <= 3 and exponent < last:
            for factor in (2, 5):
                between = y(factor * 10.0**exponent)
                line(
                    g,
                    left,
                    between,
                    left + _PLOT_W,
                    between,
                    class_="px-grid",
                    stroke_dasharray="2 4",
                )
    line(g, left, y.start, left + _PLOT_W, y.start, class_="px-axis")
    line(g, left, y.start, left, y.stop, class_="px-axis")


def _draw_x_axis(g: ET.Element, x: _Axis, sizes: Sequence[int]) -> None:
    # Labels where something was measured, as many as have room.
    room = _PLOT_W / _MOST_X_LABELS
    free = -math.inf
    for nbytes in sizes:
        at = x(nbytes)
        line(g, at, _TOP + _PLOT_H, at, _TOP + _PLOT_H + 4, class_="px-axis")
        if at >= free:
            text(
                g,
                at,
                _TOP + _PLOT_H + 18,
                format_size(nbytes),
                size=11,
                class_="px-soft",
                text_anchor="middle",
            )
            free = at + room


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
