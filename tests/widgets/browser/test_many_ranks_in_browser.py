"""The live topology with 64 ranks that are made up, in chromium: readable, searched, zoomed.

The committed bundle runs on a page of its own with a model that the test plays.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.notebooks.browser import chromium_page
from support.notebooks.widget_page import play
from support.places import ARTIFACTS
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
        _see_links(page)


def _see_links(page: Any) -> None:
    page.get_by_label("find ranks").fill("")
    page.get_by_label("smaller").click()
    page.get_by_role("button", name="Links", exact=True).click()
    rows = page.locator(".px-link-table tbody tr:visible")
    # 28 pairs and an arena on each of 8 hosts, and the links between the hosts.
    assert rows.count() == 8 * 29 + 8
    assert rows.first.text_content() == "07shared memorybroken: rank 7 is dead"
    box = page.locator(".px-link-table").bounding_box()
    assert box["height"] <= 520  # it scrolls, with its heads on top
    page.screenshot(path=ARTIFACTS / "topology-64-links.png", full_page=True)
    page.get_by_label("find ranks").fill("slow")
    assert rows.all_text_contents() == ["816tcpslow: 20 µs, 0.1 GB/s; others 2 GB/s"]
    page.get_by_label("find ranks").fill("node3")
    assert rows.count() == 29 + 2
    # Each row leads to its ranks.
    rows.get_by_label("rank 25", exact=True).first.click()
    page.locator(".px-details").get_by_text("rank 25 ·").wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator(".px-details").get_by_text("rank 26 ·").wait_for()
    page.screenshot(path=ARTIFACTS / "topology-64-found.png", full_page=True)
