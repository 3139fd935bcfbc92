"""Draw the SVG shapes and style that all still pictures share.

All text goes through ElementTree, which escapes it.
"""

from __future__ import annotations

import math
import textwrap
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from ..text.world import clean

# Okabe and Ito's palette, which differs with every kind of colour vision
# (https://jfly.uni-koeln.de/color/); orange and sky blue are darker, for a white ground.
SERIES_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b0619a", "#c98500", "#3a9bd1")

# A card has its own background, so it is legible on any page; the reader's colour scheme selects
# light or dark.
_STYLE = """
.px-card{fill:#ffffff;stroke:#d8dde3}.px-host{fill:#f6f8fa;stroke:#d8dde3}
.px-arena{fill:#e3f1ec;stroke:#8cc7b3}.px-tile{fill:#ffffff;stroke:#c3cad2}
.px-ink{fill:#1c2430}.px-soft{fill:#5b6673}.px-arenaink{fill:#0b6b50}
.px-grid{stroke:#e4e8ec}.px-axis{stroke:#8a94a0}.px-link{stroke:#6b7683;fill:none}
.px-alarm{fill:#b23c00}.px-limit{stroke:#8a5a00}.px-limitink{fill:#8a5a00}
@media (prefers-color-scheme: dark){
.px-card{fill:#171b21;stroke:#323a44}.px-host{fill:#1e242c;stroke:#38414c}
.px-arena{fill:#16322a;stroke:#2f6f5b}.px-tile{fill:#262d36;stroke:#47515e}
.px-ink{fill:#e8ecf1}.px-soft{fill:#a2adba}.px-arenaink{fill:#7fd1b5}
.px-grid{stroke:#2a313a}.px-axis{stroke:#6b7683}.px-link{stroke:#93a0ae;fill:none}
.px-alarm{fill:#ff9a66}.px-limit{stroke:#e0b050}.px-limitink{fill:#e0b050}
}
"""
# JupyterLab 4.6 without widgets shows SVG as an image of fixed width and cuts images that are too
# wide. A window of 1280 pixels with the file browser open leaves 790 pixels.
_WIDEST = 776.0
_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
_SVG = "http://www.w3.org/2000/svg"
_WIDTH_EM = 0.56  # width of a character, see `fit`
_SIZE, _LINE, _MARGIN = 12.0, 18.0, 18.0  # of the text below a picture


def fit(outside: str, room: float, size: float) -> str:
    """Cut text to ``room`` pixels at font size ``size``, with an ellipsis.

    A character counts as 0.56 em wide, the average of DejaVu Sans and Segoe UI for lower-case text
    and digits. Wide East Asian characters count as 1 em.

    Examples
    --------
    >>> fit("abcdefgh", 40, 10)
    'abcdef…'
    """
    words = clean(outside)
    widths = [size * (1.0 if unicodedata.east_asian_width(c) in "WF" else _WIDTH_EM) for c in words]
    if sum(widths) <= room:
        return words
    used, kept = size * _WIDTH_EM, ""
    for character, width in zip(words, widths, strict=True):
        used += width
        if used > room:
            break
        kept += character
    return kept + "…"


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _add(parent: ET.Element, tag: str, attributes: dict[str, str | float | None]) -> ET.Element:
    plain = {
        name.rstrip("_").replace("_", "-"): value if isinstance(value, str) else _number(value)
        for name, value in attributes.items()
        if value is not None
    }
    return ET.SubElement(parent, tag, plain)


def picture(width: float, height: float, *, title: str, description: str) -> ET.Element:
    """Return an empty picture on a rounded card.

    ``title`` and ``description`` are for screen readers.
    """
    scale = min(1.0, _WIDEST / width)
    root = ET.Element(
        "svg",
        {
            "xmlns": _SVG,
            "width": _number(width * scale),
            "height": _number(height * scale),
            "viewBox": f"0 0 {_number(width)} {_number(height)}",
            "role": "img",
            "aria-label": clean(title),
            # Less than 100 %: front ends cut pixels at the edge of an output.
            "style": "max-width:calc(100% - 8px);height:auto",
            "font-family": _FONT,
        },
    )
    ET.SubElement(root, "title").text = clean(title)
    ET.SubElement(root, "desc").text = clean(description)
    ET.SubElement(root, "style").text = _STYLE
    rect(root, 0.5, 0.5, width - 1, height - 1, class_="px-card", rx=10)
    return root


def group(parent: ET.Element, *, label: str | None = None) -> ET.Element:
    """Return a group; its label is the tooltip."""
    g = ET.SubElement(parent, "g")
    if label is not None:
        ET.SubElement(g, "title").text = clean(label)
    return g


def rect(
    parent: ET.Element, x: float, y: float, w: float, h: float, **attributes: str | float
) -> ET.Element:
    """Draw a rectangle."""
    return _add(parent, "rect", {"x": x, "y": y, "width": w, "height": h, **attributes})


def line(
    parent: ET.Element, x1: float, y1: float, x2: float, y2: float, **attributes: str | float
) -> ET.Element:
    """Draw a straight line."""
    return _add(parent, "line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, **attributes})


def path(parent: ET.Element, d: str, **attributes: str | float) -> ET.Element:
    """Draw a path."""
    return _add(parent, "path", {"d": d, **attributes})


def text(
    parent: ET.Element,
    x: float,
    y: float,
    words: str,
    kind: str = "px-ink",
    size: float = 12,
    *,
    room: float = math.inf,
    anchor: str | None = None,
    **attributes: str | float,
) -> None:
    """Write one line, cut to ``room`` pixels; ``kind`` is its class."""
    its = {"x": x, "y": y, "font_size": size, "class": kind, **attributes, "text_anchor": anchor}
    _add(parent, "text", its).text = fit(words, room, size)


def render(root: ET.Element) -> str:
    """Return the picture as SVG text."""
    return ET.tostring(root, encoding="unicode")


@dataclass(frozen=True)
class StillPicture:
    """One picture as SVG and as text.

    Parameters
    ----------
    svg : str
        A whole SVG document; outside text in it is escaped.
    text : str
        The same content as text.
    """

    svg: str
    text: str

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundle = {"image/svg+xml": self.svg, "text/plain": self.text}
        wanted = set(include or bundle) - set(exclude or ())
        return {kind: data for kind, data in bundle.items() if kind in wanted}

    def __str__(self) -> str:
        return self.text

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file.

        Parameters
        ----------
        path : str or Path
            File name; the ending ``.svg`` or ``.txt`` selects the form.

        Returns
        -------
        Path
            The written file.

        Raises
        ------
        ValueError
            The name has another ending.
        """
        target = Path(path)
        forms = {".svg": self.svg, ".txt": self.text + "\n"}
        if target.suffix not in forms:
            msg = f"a still picture is saved as .svg or .txt, not as '{target.name}'"
            raise ValueError(msg)
        target.write_text(forms[target.suffix], encoding="utf-8")
        return target


def with_alarm(picture: StillPicture, words: str) -> StillPicture:
    """Return the picture with a wrapped alarm text below.

    Examples
    --------
    >>> from phalanx.widgets.stills.svg import picture, render
    >>> card = render(picture(420, 100, title="", description=""))
    >>> print(with_alarm(StillPicture(card, "a: 1 rank"), "it has gone"))
    a: 1 rank
      it has gone
    """
    root = ET.fromstring(picture.svg)  # noqa: S314 - our own SVG: outside text in it is escaped
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    root.set("xmlns", _SVG)
    width, height = (float(n) for n in root.attrib["viewBox"].split()[2:])
    said = textwrap.wrap(clean(words), int((width - 2 * _MARGIN) / (_SIZE * _WIDTH_EM)))
    taller = height + _LINE * len(said)
    root.set("viewBox", f"0 0 {_number(width)} {_number(taller)}")
    root.set("height", _number(float(root.attrib["width"]) * taller / width))
    for card in root.iterfind("rect[@class='px-card']"):
        card.set("height", _number(taller - 1))
    for description in root.iterfind("desc"):
        description.text = f"{description.text or ''} {clean(words)}"
    for row, line_ in enumerate(said):
        text(root, _MARGIN, height + _LINE * row, line_, "px-alarm", _SIZE)
    return StillPicture(render(root), f"{picture.text}\n  {clean(words)}")
