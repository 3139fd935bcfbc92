"""The columns of nccl-tests, and how it was done: where a measurement becomes a line of text.

It knows `Measurement` and nothing of how one is made.
"""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree import ElementTree as ET

from phalanx.protocol import Measurement

from ._svg import clean

__all__ = ["HEADER", "format_measurement", "format_size", "table", "table_html"]

_COLUMNS = (
    ("size", "(B)", 12),
    ("count", "(elements)", 12),
    ("type", "", 12),
    ("op", "", 13),
    ("transport", "", 10),
    ("algorithm", "", 11),
    ("time", "(us)", 11),
    ("p99", "(us)", 11),
    ("algbw", "(GB/s)", 8),
    ("busbw", "(GB/s)", 8),
    ("#wrong", "", 7),
)
HEADER = "\n".join(
    "#" + "".join(f"{column[line]:>{column[2]}}" for column in _COLUMNS)[1:].rstrip()
    for line in (0, 1)
)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def format_size(nbytes: int) -> str:
    """Bytes in the largest unit that needs at most one digit after the point.

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
    """Four or so digits that count: 0.123, 12.35, 1234.5."""
    return f"{value:.3f}" if value < 10 else f"{value:.2f}" if value < 1000 else f"{value:.1f}"


def _cells(m: Measurement) -> tuple[str, ...]:
    return (
        str(m.nbytes),
        str(m.count),
        clean(m.dtype),
        clean(m.op),
        clean(m.transport),
        clean(m.algorithm) or "-",  # the engine of an MPI library does not tell
        _digits(m.time_us),
        _digits(m.p99_us),
        _digits(m.algbw_gbs),
        _digits(m.busbw_gbs),
        str(m.n_wrong),
    )


def format_measurement(m: Measurement) -> str:
    """One line of the table; columns keep a space between them however long a value is."""
    cells = zip(_cells(m), _COLUMNS, strict=True)
    return "".join(" " + f"{cell:>{column[2] - 1}}" for cell, column in cells)


def table(measurements: Iterable[Measurement]) -> str:
    """Return the two header lines and a line for each measurement."""
    return "\n".join([HEADER, *map(format_measurement, measurements)])


def table_html(measurements: Iterable[Measurement]) -> str:
    """Return the same as an HTML table; text from outside is escaped."""
    root = ET.Element("table", {"aria-label": "bandwidth by size"})
    head = ET.SubElement(ET.SubElement(root, "thead"), "tr")
    for name, unit, _ in _COLUMNS:
        ET.SubElement(head, "th", {"scope": "col"}).text = f"{name} {unit}".strip()
    body = ET.SubElement(root, "tbody")
    for m in measurements:
        row = ET.SubElement(body, "tr")
        for cell in _cells(m):
            ET.SubElement(row, "td", {"style": "text-align:right"}).text = cell
    return ET.tostring(root, encoding="unicode", method="html")
