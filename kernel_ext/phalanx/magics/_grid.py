"""Pictures of several ranks side by side: one HTML display, each picture with its ranks.

Pure: figures in, a MIME bundle out. Pictures are `<img>` with their bytes, so a saved notebook
shows them without a kernel, and nothing in them runs; all text of ranks is escaped.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from typing import Any

from phalanx.workspace import IMAGE_KINDS, Display, name_ranks

__all__ = ["FULL", "Grid", "Slot"]

# Pictures in one display: it is sent again when one is added or changes, so this bounds the cost.
FULL = 16
_GRID = "display:flex;flex-wrap:wrap;gap:0.5em 1em;align-items:flex-start"
_WIDTHS = ((1, "100%"), (4, "48%"), (9, "31%"))  # of a picture at most, by how many there are
_WIDTH = "23%"
_CAPTION = "font-family:monospace"
_PICTURE = "max-width:100%;height:auto"
_BACKGROUNDS = {"light": "#fff", "dark": "#111"}


@dataclass(eq=False)
class Slot:
    """The place of one figure in a grid; empty while it is taken back."""

    grid: Grid
    ranks: tuple[int, ...]
    event: Display | None = None


@dataclass(eq=False)
class Grid:
    """Figures that share one display; ``number`` counts the grids of a cell from 1."""

    number: int
    place: str  # its display id
    is_folded: bool
    slots: list[Slot] = field(default_factory=list)
    is_shown: bool = False
    due_s: float = 0.0  # when it may be drawn next

    def bundle(self, label: Callable[[tuple[int, ...]], str]) -> dict[str, Any]:
        """Draw it; ``label`` says what stands over a figure of ranks.

        The same picture of several ranks is shown once, with all of them.
        """
        figures: dict[str, tuple[set[int], Display]] = {}
        for slot in self.slots:
            if slot.event is not None:
                ranks, _ = figures.setdefault(_picture(slot.event), (set(), slot.event))
                ranks.update(slot.ranks)
        if not figures:
            return {}
        width = next((width for most, width in _WIDTHS if len(figures) <= most), _WIDTH)
        cells, lines, everyone = [], [], set()
        for picture, (ranks, event) in sorted(figures.items(), key=lambda item: min(item[1][0])):
            caption = (label(tuple(sorted(ranks))) + "Out:" * event.is_result).strip()
            text = str(event.data.get("text/plain", ""))
            what = f"figure of {name_ranks(ranks)}"
            cells.append(
                f'<figure style="margin:0;max-width:{width}">'
                f'<figcaption style="{_CAPTION}">{escape(caption)}</figcaption>'
                f"{picture.replace(_ALT, escape(f'{what}: {text}'), 1)}</figure>"
            )
            lines.append(f"{caption} {text}".strip())
            everyone |= ranks
        html = f'<div style="{_GRID}">{"".join(cells)}</div>'
        if self.is_folded:
            count = f"{len(cells)} figure{'s' * (len(cells) > 1)} of {name_ranks(everyone)}"
            html = f"<details><summary>{count}</summary>{html}</details>"
        return {"text/html": html, "text/plain": "\n".join(lines)}


_ALT = "\x00alt\x00"  # cannot be in escaped text or base64: where the alternative text goes


def _picture(event: Display) -> str:
    """Write the picture of a figure as HTML, or its text where it has none (any more)."""
    kind = next((kind for kind in IMAGE_KINDS if kind in event.data), "")
    if not kind:
        return f"<pre>{escape(str(event.data.get('text/plain', '')))}</pre>"
    data = str(event.data[kind])
    if kind == "image/svg+xml":
        if "xmlns=" not in data:  # needed in a file, not in a page
            data = data.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
        data = base64.b64encode(data.encode(errors="replace")).decode()
    else:
        data = escape("".join(data.split()))
    style = _PICTURE
    background = _BACKGROUNDS.get(str(event.metadata.get("needs_background")))
    if background:
        style += f";background:{background}"
    sizes = event.metadata.get(kind)
    size = ""
    for name in ("width", "height"):
        number = sizes.get(name) if isinstance(sizes, dict) else None
        if re.fullmatch(r"\d{1,5}(\.\d+)?", str(number)):
            size += f' {name}="{number}"'
    return f'<img src="data:{kind};base64,{data}" alt="{_ALT}" style="{style}"{size}>'
