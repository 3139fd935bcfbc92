"""Where ranks' pictures stand, what they become, and what they cost, without a kernel."""

from __future__ import annotations

import base64
import io
import math
import re
import sys
from types import SimpleNamespace

import pytest

from phalanx.magics import figures as figures_module
from phalanx.magics.figures import FULL, Figures, Grid, Slot
from phalanx.magics.notebook_view import KernelStatus, NotebookView, status_for
from phalanx.workspace import Clear, Display, Question
from phalanx.workspace.output.front_end import Text
from phalanx.workspace.output.printer import WINDOW_S, CellOutput, LineMerger


class Screen:
    """What a front end shows: displays in order, updated in place; every message is kept."""

    def __init__(self) -> None:
        self.places: dict[str, dict[str, str]] = {}
        self.sent: list[dict[str, str]] = []

    def publish(self, data, metadata, *, transient, update=False):
        place = transient["display_id"]
        assert update == (place in self.places)
        self.places[place] = data
        self.sent.append(data)

    @property
    def captions(self):
        """The captions of each display, pictures with their data."""
        return [
            re.findall(r"<figcaption[^>]*>(.*?)</figcaption>.*?base64,(\w+)", data["text/html"])
            for data in self.places.values()
            if "text/html" in data
        ]


@pytest.fixture
def screen(monkeypatch):
    screen = Screen()
    monkeypatch.setattr(figures_module, "publish_display_data", screen.publish)
    return screen


@pytest.fixture
def figures():
    return Figures(lambda ranks: f"[{','.join(map(str, ranks))}] ", {})


def png(rank, data, *, name="", is_update=False, is_result=False):
    bundle = {"image/png": data, "text/plain": "<Figure>"}
    return Display(rank, bundle, {}, is_result, name, is_update)


def show(figures, *events):
    for event in events:
        figures.show(event, (event.rank,))


def test_pictures_stand_side_by_side_and_equal_ones_once(screen, figures):
    show(figures, png(2, "AA"), png(0, "BB"), png(1, "AA"))
    assert figures.refresh(0.0) is None
    assert screen.captions == [[("[0]", "BB"), ("[1,2]", "AA")]]
    assert len(screen.sent) == 1
    assert screen.sent[0]["text/plain"] == "[0] <Figure>\n[1,2] <Figure>"


def test_a_late_rank_joins_what_stands_below_its_text(screen, figures):
    show(figures, png(0, "AA"), png(0, "BB"))
    figures.refresh(0.0)
    figures.said((0,))
    show(figures, png(1, "CC"))
    figures.refresh(1.0)
    figures.said((1,))
    show(figures, png(1, "DD"), png(0, "EE"))
    figures.refresh(2.0)
    assert screen.captions == [
        [("[0]", "AA"), ("[1]", "CC")],
        [("[0]", "BB")],
        [("[0]", "EE"), ("[1]", "DD")],
    ]


def test_a_grid_has_its_place_before_text_that_comes_later(screen, figures):
    show(figures, png(0, "AA"))
    figures.said((1,))
    assert len(screen.places) == 1


def test_redraws_are_limited_by_time_and_bytes(screen, figures, monkeypatch):
    show(figures, png(0, "AA"))
    figures.refresh(0.0)
    for frame in range(100):
        show(figures, png(1, f"F{frame}", name="h", is_update=frame > 0))
        figures.refresh(0.001 * frame)
    assert len(screen.sent) == 1
    assert figures.refresh(0.0999) == pytest.approx(figures_module.REDRAW_S)
    assert figures.refresh(0.1) is None
    assert screen.captions == [[("[0]", "AA"), ("[1]", "F99")]]
    monkeypatch.setattr(figures_module, "BYTES_PER_S", 10.0)
    show(figures, png(1, "BB", name="h", is_update=True))
    assert figures.refresh(0.2) is None
    show(figures, png(1, "CC", name="h", is_update=True))
    assert figures.refresh(1.0) > 10.0
    figures.refresh(math.inf)
    assert "CC" in screen.sent[-1]["text/html"]


def test_a_grid_is_bounded_and_many_are_folded(screen, figures):
    for rank in range(3 * FULL):
        show(figures, png(rank, f"P{rank}"))
        figures.refresh(float(rank))
    assert [len(grid) for grid in screen.captions] == [FULL, FULL, FULL]
    is_folded = ["<details>" in data["text/html"] for data in screen.places.values()]
    assert is_folded == [False, True, True]
    assert "16 figures of ranks 16-31" in list(screen.places.values())[1]["text/html"]
    # Each alone, the worst that can come: half a grid for each picture.
    n_pictures = sum(data["text/html"].count("<img") for data in screen.sent)
    assert n_pictures == 3 * FULL * (FULL + 1) / 2


def test_updates_and_clears_stay_in_place(screen, figures):
    show(figures, png(0, "AA", name="h"), png(1, "BB"))
    figures.refresh(0.0)
    show(figures, png(0, "A2", name="h", is_update=True))
    show(figures, png(1, "XX", name="unknown", is_update=True))
    figures.clear(1, wait=True)
    figures.refresh(1.0)
    assert screen.captions == [[("[0]", "A2"), ("[1]", "BB")]]
    show(figures, png(1, "B2"))
    figures.refresh(2.0)
    assert screen.captions == [[("[0]", "A2"), ("[1]", "B2")]]
    figures.clear(0, wait=False)
    figures.clear(1, wait=False)
    figures.refresh(3.0)
    assert list(screen.places.values()) == [{}]


def test_what_is_more_than_a_picture_leaves_the_grid(screen, figures):
    show(figures, png(0, "AA"), png(1, "BB"))
    figures.refresh(0.0)
    figures.clear(0, wait=True)
    table = Display(0, {"text/html": "<table>"}, {}, False)
    assert figures.is_new(table)
    figures.show(table)
    figures.refresh(1.0)
    assert screen.captions[0] == [("[1]", "BB")]
    assert list(screen.places.values())[1] == {"text/html": "<table>"}


def test_a_figure_of_an_earlier_cell_can_be_updated(screen):
    named = {}
    first, second = Figures(str, named), Figures(str, named)
    show(first, png(0, "AA", name="h"), png(1, "BB"))
    first.refresh(0.0)
    show(second, png(0, "A2", name="h", is_update=True))
    second.clear(0, wait=False)
    second.refresh(1.0)
    assert [data for _, data in screen.captions[0]] == ["A2", "BB"]


def test_nothing_of_a_rank_becomes_html():
    grid = Grid(1, "place", is_folded=False)
    evil = '"><script>alert(1)</script>'
    svg = f"<svg>{evil}</svg>"
    events = [
        Display(0, {"image/png": evil, "text/plain": evil}, {}, False),
        Display(1, {"image/svg+xml": svg}, {"image/svg+xml": {"width": evil}}, False),
        Display(2, {"text/plain": evil}, {"needs_background": evil}, False),
        Display(3, {"image/jpeg": "AA"}, {"image/jpeg": {"width": 640, "height": 4.5}}, True),
    ]
    grid.slots = [Slot(grid, (event.rank,), event) for event in events]
    text = grid.bundle(lambda ranks: f"[{ranks[0]}] {evil} ")["text/html"]
    assert "<script" not in text
    assert 'width="640" height="4.5"' in text
    assert text.count("<img") == 3
    inner = base64.b64decode(re.search(r"data:image/svg\+xml;base64,([^\"]+)", text)[1]).decode()
    assert inner == f'<svg xmlns="http://www.w3.org/2000/svg">{evil}</svg>'


def test_figures_wait_for_those_of_other_ranks_in_the_order_of_lines():
    merger = LineMerger()
    for rank in range(2):
        merger.add(rank, "stdout", "step", 0.0)
        merger.add(rank, "display", "image", 0.0).events.append(png(rank, "AA"))
        merger.add(rank, "display", "clear", 0.0).events.append(Clear(rank, True))
    merger.add(0, "display", "image", 0.0).events.append(png(0, "BB"))
    due = merger.due({0, 1}, 0.0)
    assert [(line.text, sorted(line.ranks), len(line.events)) for line in due] == [
        ("step", [0, 1], 0),
        ("image", [0, 1], 2),
        ("clear", [0, 1], 2),
    ]
    assert len(merger.due({0, 1}, WINDOW_S)) == 1


@pytest.fixture
def shown():
    return []


@pytest.fixture
def output(shown):
    """Output of a cell, whose lines and displays are found in ``shown``."""

    class View(NotebookView):
        def lines(self, stream, lines):
            shown.extend(lines)

        def display(self, ranks, event):
            shown.append((ranks, event))

        def clear(self, event):
            shown.append(event)

    return CellOutput(View(object()))


def table(rank, html="<table>", **options):
    return Display(rank, {"text/html": html}, {}, False, **options)


def test_equal_displays_are_shown_once_in_the_order_of_lines(output, shown):
    for rank in (0, 1):
        output.text(Text(rank, "stdout", "same\n"), 5.0)
        output.display(table(rank), 5.0)
        output.display(table(rank), 5.0)
        output.display(table(rank, f"<i>{rank}"), 5.0)
    output.show({0, 1}, 5.0)
    once = [((0, 1), "same"), ((0, 1), table(0)), ((0, 1), table(0)), ((0,), table(0, "<i>0"))]
    assert shown == once  # rank 0 may still show what rank 1 has shown
    output.show({0, 1}, 5.0 + 2 * WINDOW_S)
    assert shown == [*once, ((1,), table(1, "<i>1"))]


def test_displays_that_a_rank_can_change_are_its_own(output, shown):
    for rank in (0, 1):
        output.display(table(rank, display_id="x"), 5.0)
    output.show({0, 1}, 5.0)
    assert shown == [((rank,), table(rank, display_id="x")) for rank in (0, 1)]
    shown.clear()
    for rank in (0, 1):
        output.display(Clear(rank, True), 5.0)
        output.display(table(rank), 5.0)
    output.show({0, 1}, 5.0)
    assert shown == [Clear(0, True), Clear(1, True), ((0,), table(0)), ((1,), table(1))]


def test_labels_name_hosts():
    view = NotebookView(object(), label="host", hosts={0: "alpha", 1: "alpha", 2: "beta"})
    assert view._prefix((0, 1)) == "[alpha 0-1] "
    assert view._prefix((0, 1, 2)) == "[alpha 0-1, beta 2] "


class Tty(io.StringIO):
    def isatty(self):
        return True


def test_the_status_of_a_terminal_is_erased_before_anything_else(monkeypatch):
    terminal = Tty()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "12")
    view = NotebookView(object())
    assert view.shows_status
    view.status("▸ 1 s · running 0-3")
    view.lines("stdout", [((0,), "line")])
    view.status("▸ 2 s")
    view.status("▸ 3 s")
    view.status("")
    assert terminal.getvalue() == ("▸ 1 s · run\r\x1b[K[0] line\n▸ 2 s\r\x1b[K▸ 3 s\r\x1b[K")


def test_a_terminal_shows_no_status_where_a_person_types(monkeypatch):
    terminal = Tty()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setenv("TERM", "xterm")
    view = NotebookView(object())
    view.status("▸ 1 s")
    prompt = view.ask(Question((0,), "who? "))
    view.status("▸ 2 s")
    prompt.close()
    view.status("▸ 3 s")
    assert terminal.getvalue() == "▸ 1 s\r\x1b[K[0] who? ▸ 3 s"


def test_a_pipe_and_a_plain_terminal_have_no_status(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", Tty())
    assert not NotebookView(object()).shows_status
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert not NotebookView(object()).shows_status


def test_a_run_without_a_person_has_no_status():
    """Its last line would stay in the saved notebook."""
    for is_watched in (True, False):
        shell = SimpleNamespace(kernel=SimpleNamespace(_allow_stdin=is_watched))
        assert status_for(shell).is_shown is is_watched


def test_a_status_that_stays_the_same_costs_nothing_and_none_is_emptied(monkeypatch):
    sent = []
    monkeypatch.setattr(
        figures_module, "publish_display_data", lambda data, metadata, **more: sent.append(data)
    )
    status = KernelStatus()
    for text in ("a", "a", "b", "", ""):
        status.show(text)
    assert sent == [{"text/plain": "a"}, {"text/plain": "b"}]
