"""A cell that is to be held before its next operation: what its rank reports."""

from __future__ import annotations

import pytest

from phalanx.distributed.bootstrap import progress as progress_module
from phalanx.rank.cell import HeldCell

ALL_SUM_74 = ("all_sum", -1, 74)


class Page:
    """A control page with one group: ``begun`` is None between two submitted operations."""

    def __init__(self):
        self.begun, self.is_open, self.done, self.place = 73, False, 73, None
        self.is_set = False

    def activity(self, slot):
        group = ("", 0, self.done, int(self.is_open), "all_sum", self.begun)
        return 1, {0: group}, (-1, "", -1, 0), {}

    def held(self, slot):
        return self.place

    def hold(self, slot, thread):
        self.is_set = True

    def release(self, slot):
        self.is_set = False

    def drop_hold(self, slot):
        return False


@pytest.fixture
def page(monkeypatch):
    page = Page()
    monkeypatch.setattr(progress_module, "current_page", lambda: (page, 0))
    return page


@pytest.fixture
def cell(page):
    """A cell before which 73 operations have ended."""
    cell = HeldCell(0)
    cell.begin()
    return cell


def test_a_cell_that_has_called_no_operation_is_not_held(page, cell):
    assert not cell.hold()
    assert not page.is_set


@pytest.mark.parametrize("begun", [74, None])
def test_a_cell_with_a_submitted_operation_is_held(page, cell, begun):
    page.begun, page.is_open = begun, True
    assert cell.hold()
    assert page.is_set


def test_a_cell_between_two_submitted_operations_is_held(page, cell):
    page.begun, page.done = None, 74  # the second has begun, and is not counted yet
    assert cell.hold()


def test_a_rank_whose_number_is_unknown_is_not_reported_as_held(page, cell):
    page.begun, page.place, page.done = None, (0, *ALL_SUM_74), 73
    assert cell.report().state == "runs"
    page.begun = 73
    assert cell.report().state == "held"


def test_a_stop_tells_the_last_completed_operation_where_the_number_is_unknown(page, cell):
    page.begun, page.done = None, 75
    report = cell.stop()
    assert [step.number for step in report.begun] == [75]
    assert report.has_called
