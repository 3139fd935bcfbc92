"""The tutorial on seeing ranks: its saved pictures, and what it shows when it is run."""

from __future__ import annotations

import re

import pytest
from notebooks.test_notebooks import _FOLDER, _of, _pictures, _read, _run_all
from support.runs.tiers import deep


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    return _run_all("04_seeing_it.ipynb", tmp_path_factory.mktemp("seeing"))


def test_its_pictures_can_be_read_without_a_kernel():
    """`with_outputs.py` writes them; of the words of the cells that run now."""
    cells = [cell for cell in _read(_FOLDER / "04_seeing_it.ipynb").cells if "outputs" in cell]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    pictured = [cell.source for cell in cells if _pictures(cell.outputs)]
    assert [source.split()[1] for source in pictured] == [
        "topology",
        "monitor",
        "bandwidth",
        "bandwidth",
    ]
    kinds = {kind for cell in cells for output in cell.outputs for kind in output.get("data", ())}
    assert kinds <= {"image/svg+xml", "text/plain"}  # no widget, whose kernel is gone


@deep
@pytest.mark.slow
def test_the_slow_rank_is_seen(seeing):
    waited = [float(found) for found in re.findall(r"waited (\S+) s", _of(seeing, "waited").stdout)]
    assert len(waited) == 4
    assert waited[3] == min(waited)
    assert len(_of(seeing, "measure_links").stdout.splitlines()) == 6
    for words in ("%distributed topology", "%distributed monitor", "--dtype float16"):
        (picture,) = _pictures(_of(seeing, words).outputs)
        assert picture.startswith("<svg")
    (lanes,) = _pictures(_of(seeing, "%distributed monitor").outputs)
    assert "rank 3 held the others up for" in lanes
    assert seeing[1] == []
