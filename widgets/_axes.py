"""Log axes of the still pictures' panels, and where a panel's plot area stands.

Numbers and shapes; it knows nothing of what is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from ._svg import line, text
from ._table import format_size

__all__ = ["PLOT_H", "PLOT_W", "TOP", "Axis", "decades", "draw_x_axis", "draw_y_axis"]

# Pixels.
PLOT_W, PLOT_H, TOP = 352.0, 232.0, 78.0
_MOST_X_LABELS, _MOST_Y_LABELS = 7, 7


@dataclass(frozen=True)
class Axis:
    """A log axis: values from ``low`` to ``high`` onto ``start`` to ``stop`` pixels."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.stop - self.start)


def decades(values: Sequence[float]) -> tuple[float, float]:
    """Whole decades around the values; never an empty span."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def draw_y_axis(g: ET.Element, left: float, y: Axis) -> None:
    """Draw decades, and between few of them 2 and 5 as well."""
    first, last = round(math.log10(y.low)), round(math.log10(y.high))
    step = max(1, -(-(last - first + 1) // _MOST_Y_LABELS))
    for exponent in range(first, last + 1):
        at = y(10.0**exponent)
        line(g, left, at, left + PLOT_W, at, class_="px-grid")
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
                    left + PLOT_W,
                    between,
                    class_="px-grid",
                    stroke_dasharray="2 4",
                )
    line(g, left, y.start, left + PLOT_W, y.start, class_="px-axis")
    line(g, left, y.start, left, y.stop, class_="px-axis")


def draw_x_axis(g: ET.Element, x: Axis, sizes: Sequence[int]) -> None:
    """Draw labels where something was measured, as many as have room."""
    room = PLOT_W / _MOST_X_LABELS
    free = -math.inf
    for nbytes in sizes:
        at = x(nbytes)
        line(g, at, TOP + PLOT_H, at, TOP + PLOT_H + 4, class_="px-axis")
        if at >= free:
            text(
                g,
                at,
                TOP + PLOT_H + 18,
                format_size(nbytes),
                size=11,
                class_="px-soft",
                text_anchor="middle",
            )
            free = at + room
