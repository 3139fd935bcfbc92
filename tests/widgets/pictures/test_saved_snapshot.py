"""The still picture beside a widget: drawn anew when it is not true any more, and only then."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest
from support.programs.restarting import wait_for

from phalanx.widgets import StillPicture, keep_stills
from phalanx.widgets.live import snapshot as _kept_still
from phalanx.widgets.live import widget as _live
from phalanx.widgets.live.snapshot import SavedSnapshot

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
    """A picture of a word that changes, on the page."""

    def __init__(self) -> None:
        self.text = "before"
        self.may_draw = threading.Event()
        self.may_draw.set()
        self.n_drawn = 0
        self.kept = SavedSnapshot(self)
        self.kept.show(self(), MARK)

    def __call__(self) -> StillPicture:
        self.may_draw.wait(10)
        self.n_drawn += 1
        if not self.text:
            msg = "nothing to draw"
            raise RuntimeError(msg)
        return StillPicture(f"<svg>{self.text}</svg>", self.text)

    def renew(self, text: str | None = None) -> None:
        self.text = self.text if text is None else text
        assert self.kept.ask().wait(5.0)


@pytest.fixture
def drawn(page):
    return Drawn()


def test_it_is_shown_once_and_then_renewed_in_its_place(page, drawn):
    drawn.renew("after")
    assert (page.shown, page.updates) == (["before"], ["after"])
    drawn.renew()
    assert page.updates == ["after"]  # it is true yet
    drawn.kept.show(drawn(), MARK)
    assert page.shown == ["before", "after"]


def test_what_nobody_has_is_not_drawn(page):
    assert SavedSnapshot(lambda: pytest.fail("drawn")).ask().is_set()
    assert page.shown == []


def test_a_picture_that_takes_long_keeps_nobody_and_comes(page, drawn):
    drawn.may_draw.clear()
    drawn.text = "after"
    asked = [drawn.kept.ask() for _ in range(9)]
    assert not asked[-1].wait(0.01)
    assert page.updates == []
    drawn.may_draw.set()
    assert all(its.wait(5.0) for its in asked)
    wait_for(lambda: not any(t.name == "phalanx-still" for t in threading.enumerate()))
    assert page.updates == ["after"]
    assert drawn.n_drawn <= 3


def test_one_that_cannot_be_drawn_is_told_of_and_the_next_one_comes(page, drawn, caplog):
    with caplog.at_level(logging.ERROR):
        drawn.renew("")
    assert "could not be drawn anew" in caplog.text
    drawn.renew("after")
    assert page.updates == ["after"]


@pytest.mark.parametrize("failure", [RuntimeError("can't start new thread"), KeyboardInterrupt()])
def test_where_no_thread_can_begin_nobody_waits_and_the_next_one_comes(
    page, drawn, caplog, monkeypatch, failure
):
    def refuse(_: threading.Thread) -> None:
        raise failure

    with monkeypatch.context() as limited, caplog.at_level(logging.ERROR):
        limited.setattr(threading.Thread, "start", refuse)
        with suppress(KeyboardInterrupt):
            drawn.renew("after")
    assert ("can't start new thread" in caplog.text) == isinstance(failure, RuntimeError)
    assert page.updates == []
    drawn.renew()
    assert page.updates == ["after"]


def test_several_are_drawn_beside_each_other_in_one_time(monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(_live, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    calls: list[str | float] = []

    class Slow:
        def ask(self) -> Slow:
            calls.append("ask")
            return self

        def wait(self, wait_s: float) -> None:
            calls.append(round(wait_s, 3))
            now_s[0] += min(wait_s, 0.3)

    keep_stills([SimpleNamespace(_may_have_views=True, _snapshot=Slow()) for _ in range(3)])
    assert calls == ["ask", "ask", "ask", 0.5, 0.2, 0.0]
