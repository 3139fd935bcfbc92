"""The still picture beside a widget: drawn anew when it is not true any more, and only then."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace

import pytest
from support.programs.restarting import wait_for

from phalanx.widgets import StillPicture
from phalanx.widgets.live import snapshot as _kept_still
from phalanx.widgets.live.snapshot import SavedSnapshot, renew_all

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
        self.basis: object = None

    def __call__(self) -> StillPicture:
        self.may_draw.wait(10)
        self.n_drawn += 1
        if not self.text:
            msg = "nothing to draw"
            raise RuntimeError(msg)
        return StillPicture(f"<svg>{self.text}</svg>", self.text)

    def kept(self) -> SavedSnapshot:
        """It on the page."""
        kept = SavedSnapshot(self, lambda: self.basis)
        kept.show(self(), MARK)
        return kept


def _renew(kept: SavedSnapshot, *, is_forced: bool = False) -> None:
    renew_all([kept], 5.0, is_forced=is_forced)


def test_it_is_shown_once_and_then_renewed_in_its_place(page):
    drawn = Drawn()
    kept = SavedSnapshot(drawn)
    _renew(kept)
    assert (page.shown, drawn.n_drawn) == ([], 0)  # nobody has it
    kept.show(drawn(), MARK)
    drawn.text = "after"
    _renew(kept)
    assert (page.shown, page.updates) == (["before"], ["after"])
    _renew(kept)
    assert page.updates == ["after"]  # it is true yet
    kept.show(drawn(), MARK)
    assert page.shown == ["before", "after"]


def test_a_picture_that_takes_long_keeps_nobody_and_comes(page):
    drawn = Drawn()
    kept = drawn.kept()
    drawn.may_draw.clear()
    drawn.text = "after"
    kept.ask()
    kept.wait(kept.ask(), 0.01)
    assert page.updates == []
    drawn.may_draw.set()
    wait_for(lambda: page.updates == ["after"])
    wait_for(lambda: not any(t.name == "phalanx-still" for t in threading.enumerate()))
    assert drawn.n_drawn <= 3


def test_where_nothing_has_changed_nothing_is_drawn(page):
    drawn = Drawn()
    drawn.basis = "3 cells"
    kept = drawn.kept()
    _renew(kept)  # of which nobody knew what it was of
    n_drawn = drawn.n_drawn
    _renew(kept)
    assert drawn.n_drawn == n_drawn
    drawn.text = "after"
    drawn.basis = "4 cells"
    _renew(kept)
    assert (drawn.n_drawn, page.updates) == (n_drawn + 1, ["after"])
    drawn.text = "at last"  # as of a thread of a rank: no cell has told of it
    _renew(kept, is_forced=True)
    assert page.updates == ["after", "at last"]
    drawn.basis = None
    _renew(kept)
    _renew(kept)
    assert drawn.n_drawn == n_drawn + 4


def test_one_that_cannot_be_drawn_is_told_of_and_the_next_one_comes(page, caplog):
    drawn = Drawn()
    kept = drawn.kept()
    drawn.text = ""
    with caplog.at_level(logging.ERROR):
        _renew(kept)
    assert "could not be drawn anew" in caplog.text
    drawn.text = "after"
    _renew(kept)
    assert page.updates == ["after"]


def test_where_no_thread_can_begin_nobody_waits_and_the_next_one_comes(page, caplog, monkeypatch):
    drawn = Drawn()
    kept = drawn.kept()
    drawn.text = "after"

    def refuse(_: threading.Thread) -> None:
        msg = "can't start new thread"
        raise RuntimeError(msg)

    with monkeypatch.context() as limited, caplog.at_level(logging.ERROR):
        limited.setattr(threading.Thread, "start", refuse)
        kept.wait(kept.ask(), 60.0)
    assert "can't start new thread" in caplog.text
    assert page.updates == []
    _renew(kept)
    assert page.updates == ["after"]


def test_a_ctrl_c_while_a_thread_begins_is_not_the_end_of_all_pictures(page, monkeypatch):
    drawn = Drawn()
    kept = drawn.kept()
    drawn.text = "after"

    def stop(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr(threading.Thread, "start", stop)
        with pytest.raises(KeyboardInterrupt):
            kept.ask()
    _renew(kept)
    assert page.updates == ["after"]


def test_several_are_drawn_beside_each_other_in_one_time(monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(_kept_still, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    calls: list[tuple[str, float]] = []

    class Slow:
        def ask(self, *, is_forced: bool) -> int:
            assert not is_forced
            calls.append(("ask", 0))
            return 1

        def wait(self, wanted: int, wait_s: float) -> None:
            calls.append(("wait", round(wait_s, 3)))
            now_s[0] += min(wait_s, 0.3)

    renew_all([Slow(), Slow(), Slow()], 0.5)
    assert calls == [*[("ask", 0)] * 3, ("wait", 0.5), ("wait", 0.2), ("wait", 0.0)]
