"""The still picture beside a widget: drawn anew when it is not true any more, and only then."""

from __future__ import annotations

import logging
import threading

import pytest
from restarting import wait_for

from phalanx.widgets import StillPicture, _kept_still
from phalanx.widgets._kept_still import KeptStill

MARK = "0123456789abcdef0123456789abcdef"


class Page:
    """What IPython's display does, as far as it goes here."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.updates: list[str] = []

    def __call__(self, picture: StillPicture, *, display_id: bool) -> Page:
        assert display_id
        self.display(picture)
        return self

    def display(self, picture: StillPicture) -> None:
        assert picture.svg == f'<svg data-px-still="{MARK}">{picture.text}</svg>'
        self.shown.append(picture.text)

    def update(self, picture: StillPicture) -> None:
        assert picture.svg == f'<svg data-px-still="{MARK}">{picture.text}</svg>'
        self.updates.append(picture.text)


@pytest.fixture
def page(monkeypatch):
    page = Page()
    monkeypatch.setattr(_kept_still, "display", page)
    return page


class Drawn:
    """A picture of a word that changes."""

    def __init__(self, text: str = "before") -> None:
        self.text = text
        self.may_draw = threading.Event()
        self.may_draw.set()
        self.n_drawn = 0

    def __call__(self) -> StillPicture:
        self.may_draw.wait(10)
        self.n_drawn += 1
        if not self.text:
            msg = "nothing to draw"
            raise RuntimeError(msg)
        return StillPicture(f"<svg>{self.text}</svg>", self.text)


def test_it_is_shown_once_and_then_renewed_in_its_place(page):
    drawn = Drawn()
    kept = KeptStill(drawn)
    kept.renew(5.0)
    assert (page.shown, drawn.n_drawn) == ([], 0)  # nobody has it
    kept.show(drawn(), MARK)
    drawn.text = "after"
    kept.renew(5.0)
    assert (page.shown, page.updates) == (["before"], ["after"])
    kept.renew(5.0)
    assert page.updates == ["after"]  # it is true yet
    kept.show(drawn(), MARK)
    assert page.shown == ["before", "after"]


def test_a_picture_that_takes_long_keeps_nobody_and_comes(page):
    drawn = Drawn()
    kept = KeptStill(drawn)
    kept.show(drawn(), MARK)
    drawn.may_draw.clear()
    drawn.text = "after"
    kept.renew(0.0)
    kept.renew(0.01)
    assert page.updates == []
    drawn.may_draw.set()
    wait_for(lambda: page.updates == ["after"])
    wait_for(lambda: not any(t.name == "phalanx-still" for t in threading.enumerate()))
    assert drawn.n_drawn <= 3


def test_what_is_on_no_page_is_not_drawn(page):
    drawn = Drawn()
    kept = KeptStill(drawn)
    kept.show(drawn(), MARK)
    kept.mark_there(False)
    drawn.text = "after"
    kept.renew(5.0)
    assert (drawn.n_drawn, page.updates) == (1, [])
    kept.mark_there(True)
    kept.renew(5.0)
    assert page.updates == ["after"]


def test_one_that_cannot_be_drawn_is_told_of_and_the_next_one_comes(page, caplog):
    drawn = Drawn()
    kept = KeptStill(drawn)
    kept.show(drawn(), MARK)
    drawn.text = ""
    with caplog.at_level(logging.ERROR):
        kept.renew(5.0)
    assert "could not be drawn anew" in caplog.text
    drawn.text = "after"
    kept.renew(5.0)
    assert page.updates == ["after"]
