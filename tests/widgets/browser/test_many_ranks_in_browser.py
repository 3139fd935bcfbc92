"""The live topology with 64 ranks that are made up, in chromium: readable, searched, zoomed.

The committed bundle runs on a page of its own with a model that the test plays.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.notebooks.browser import chromium_page
from support.notebooks.widget_page import ARTIFACTS, play
from support.ranks.worlds import make_world
from support.runs.tiers import deep

from phalanx.protocol import LinkMeasurement
from phalanx.widgets.frames.links import judge
from phalanx.widgets.frames.topology import Timeline, world_of

pytestmark = [pytest.mark.slow, pytest.mark.browser, deep]


def _open(page: Any, t: Any, links: list[LinkMeasurement]) -> None:
    world = msgspec.json.encode(world_of(t, judge(links, t)))
    play(
        page, "topology", {"world": world, "frame": msgspec.json.encode(Timeline().take(t, 100.0))}
    )


def test_64_ranks(tmp_path: Path) -> None:
    states = ("idle", "busy", "input", "idle", "idle", "idle", "idle", "dead")
    t = make_world(8, 8, states=states)
    links = [
        LinkMeasurement(link.a, link.b, 20.0, 0.1 if link.b == 16 else 2.0, 1 << 20, 0)
        for link in t.links
    ]
    ARTIFACTS.mkdir(exist_ok=True)
    with chromium_page(viewport={"width": 1000, "height": 900}) as page:
        _open(page, t, links)
        tiles = page.locator(".px-tile")
        assert tiles.count() == 64
        # Every number is on the page and as large as one reads.
        sizes = page.evaluate(
            "() => [...document.querySelectorAll('.px-tile .px-number')].map(n =>"
            " [parseFloat(getComputedStyle(n).fontSize), n.scrollWidth <= n.parentElement.clientWidth])"
        )
        assert all(size >= 11 and fits for size, fits in sizes)
        page.screenshot(path=ARTIFACTS / "topology-64-live.png", full_page=True)
        # What is looked for stands out from the others.
        page.get_by_label("find ranks").fill("node3")
        assert page.locator(".px-tile:not(.px-elsewhere)").count() == 8
        page.get_by_label("find ranks").press("Enter")
        page.locator(".px-details").get_by_text("rank 24 ·").wait_for()
        page.get_by_label("find ranks").fill("dead")
        assert page.locator(".px-tile:not(.px-elsewhere)").count() == 8
        # Larger, with the wheel as well.
        before = tiles.first.bounding_box()["width"]
        page.locator(".px-stage").hover()
        page.keyboard.down("Control")
        page.mouse.wheel(0, -100)
        page.keyboard.up("Control")
        page.wait_for_function(
            "w => document.querySelector('.px-tile').getBoundingClientRect().width > w", arg=before
        )
        _see_matrix(page)


def _see_matrix(page: Any) -> None:
    page.get_by_label("smaller").click()
    page.get_by_role("button", name="Links", exact=True).click()
    matrix = page.locator(".px-matrix svg")
    box = matrix.bounding_box()
    # As many fields as pairs, none smaller than a pointer can hit.
    assert box["width"] >= 26 + 64 * 8
    legend = page.locator(".px-matrix .px-legend").text_content()
    assert all(words in legend for words in ("shared memory", "tcp", "slow", "broken"))
    cell = (box["width"] - 27) / 64

    def read(a: int, b: int) -> str:
        page.mouse.move(box["x"] + 26 + (b + 0.5) * cell, box["y"] + 26 + (a + 0.5) * cell)
        return page.locator(".px-read").text_content()

    assert read(0, 1).startswith("rank 0 \u2013 rank 1: shared memory, 20 µs, 2 GB/s")
    assert "slow: 20 µs, 0.1 GB/s; others 2 GB/s" in read(8, 16)
    assert read(6, 7) == "rank 6 \u2013 rank 7: broken: rank 7 is dead"
    page.screenshot(path=ARTIFACTS / "topology-64-matrix.png", full_page=True)
    # What is looked for stands out here as well, and each row leads to its rank.
    page.get_by_label("find ranks").fill("node3")
    numbers = page.locator(".px-matrix text[text-anchor=end]:not(.px-elsewhere)")
    assert numbers.all_text_contents() == ["24", "27", "30"]
    page.mouse.click(box["x"] + 26 + 5.5 * cell, box["y"] + 26 + 27.5 * cell)
    page.locator(".px-details").get_by_text("rank 27 ·").wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator(".px-details").get_by_text("rank 28 ·").wait_for()
    assert numbers.all_text_contents() == ["24", "28", "31"]  # the chosen one first
    page.screenshot(path=ARTIFACTS / "topology-64-found.png", full_page=True)
