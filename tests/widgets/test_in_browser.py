"""Renders the pictures with chromium, in both colour schemes, and looks for ink."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from browser import chromium_page
from msgspec.structs import replace
from worlds import make_sweep, make_trace, make_world

from phalanx.protocol import Limit, SweepRun
from phalanx.widgets import bandwidth, monitor, topology

pytestmark = [pytest.mark.slow, pytest.mark.browser]
_ARTIFACTS = Path(__file__).resolve().parents[1] / "artifacts"


def _pixels(png: bytes) -> np.ndarray:
    """An 8-bit RGB or RGBA PNG as an array (chromium writes no other)."""
    header = struct.unpack(">IIBB", png[16:26])
    width, height, channels = header[0], header[1], {2: 3, 6: 4}[header[3]]
    data, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += 12 + length
    rows = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, 1 + width * channels)
    # Filtered rows: enough to tell a drawing from a blank.
    return rows[:, 1:]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_are_drawn(scheme):
    pictures = {
        "topology-one-host": topology(make_world(1, 4, states=("idle", "busy", "input", "dead"))),
        "topology-tcp": topology(make_world(1, 4, tcp=True)),
        "topology-hosts": topology(make_world(3, 4)),
        "topology-64": topology(make_world(1, 64)),
        "monitor": monitor(
            make_trace(4, late=2, dropped=7), make_world(1, 4, states=("busy", "idle", "dead"))
        ),
        "monitor-64": monitor(make_trace(64), make_world(1, 64)),
        "bandwidth-beside": bandwidth(
            [
                replace(m, algorithm="inline" if m.nbytes < 5000 else "staged")
                for m in make_sweep("all_sum", 12)
            ],
            limits=[Limit("memory copy", "arena", 25.0, 1 << 30, 0.2, "one core copies 64 MiB")],
            earlier=[
                SweepRun(
                    "all_sum",
                    "float32",
                    4,
                    "done",
                    "2026-11-21T10:00:00+00:00",
                    tuple(make_sweep("all_sum", 12, transport="tcp")),
                )
            ],
        ),
        "bandwidth": bandwidth(
            make_sweep("all_sum", 12) + make_sweep("all_sum", 12, transport="tcp"), title="a sweep"
        ),
    }
    _ARTIFACTS.mkdir(exist_ok=True)
    with chromium_page(color_scheme=scheme) as page:
        for name, picture in pictures.items():
            page.set_content(f"<body style='margin:0'>{picture.svg}</body>")
            png = page.locator("svg").screenshot()
            (_ARTIFACTS / f"{name}-{scheme}.png").write_bytes(png)
            assert len(np.unique(_pixels(png))) > 20, f"{name} is blank"
            # Every text stands inside the picture.
            outside = page.evaluate(
                "() => { const s = document.querySelector('svg').getBoundingClientRect();"
                " return [...document.querySelectorAll('text')].filter(t => {"
                " const r = t.getBoundingClientRect();"
                " return r.left < s.left || r.right > s.right || r.top < s.top || r.bottom > s.bottom"
                " }).map(t => t.textContent) }"
            )
            assert outside == [], name
