"""Runs the tutorials top to bottom in a real kernel, typing and pressing stop where a reader would."""

from __future__ import annotations

import csv
import re

import nbformat
import numpy as np
import pytest
from support.notebooks.tutorials import FOLDER, of, pictures, read, run_all, who_said
from support.runs.tiers import deep

_NOTEBOOKS = sorted(FOLDER.glob("0*.ipynb"))
# Saved on the hosts of a bed (test_many_hosts.py).
_SAVED = {"05_many_hosts"}


def test_the_start_page_leads_to_every_tutorial():
    (page,) = read(FOLDER / "start_here.ipynb").cells
    links = re.findall(r"\]\(([^)]+)\)", page.source)
    assert links[0] == _NOTEBOOKS[0].name
    assert {path.name for path in _NOTEBOOKS} <= set(links)
    assert [link for link in links if not (FOLDER / link).exists()] == []


@pytest.mark.parametrize("path", _NOTEBOOKS, ids=lambda p: p.stem)
def test_is_clean(path):
    notebook = read(path)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert sum(bool(cell.outputs) for cell in cells) > len(cells) // 2  # for who reads it on GitHub
    for cell in cells:
        failed = any(output.output_type == "error" for output in cell.outputs)
        assert not failed or "raises-exception" in cell.metadata.get("tags", []), cell.source
    if path.stem not in _SAVED:
        assert not re.search(r"/(tmp|root|home|work)/", path.read_text(encoding="utf-8"))
    assert cells[0].source == "%load_ext phalanx"
    assert cells[-1].source == "%distributed stop"


@pytest.fixture(scope="module")
def first_ranks(tmp_path_factory):
    return run_all("01_first_ranks.ipynb", tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    return run_all("03_when_things_go_wrong.ipynb", tmp_path_factory.mktemp("broken"))


pytestmark = pytest.mark.slow


def test_every_rank_says_who_it_is(first_ranks):
    text = of(first_ranks, "I am rank").text
    assert all(who_said(text, f"I am rank {rank} of 4") == [rank] for rank in range(4))


def test_some_ranks_only(first_ranks):
    text = of(first_ranks, "secret").text
    assert all(value in text for value in ("200", "300"))
    assert "100" not in text


def test_the_sum_is_numpys(first_ranks):
    with (FOLDER / "data" / "seattle-weather.csv").open(encoding="utf-8") as file:
        degrees = np.array([float(day["temp_max_c"]) for day in csv.DictReader(file)])
    said = (
        f"{len(degrees)} days, {degrees.mean():.2f} °C on average, "
        f"standard deviation {degrees.std():.2f} °C"
    )
    assert who_said(of(first_ranks, "standard deviation").text, said) == [0, 1, 2, 3]


def test_the_question_is_asked_once(first_ranks):
    cell = of(first_ranks, "Who is asking")
    assert len(cell.prompts) == 1
    assert "Who is asking?" in cell.prompts[0].text
    assert all(f"hello Ada, says rank {rank}" in cell.text for rank in range(4))


def test_an_error_names_its_rank(first_ranks):
    cell = of(first_ranks, "does not like this cell")
    assert who_said(cell.stdout, "fine here") == [0, 1, 3]
    assert "rank 2 does not like this cell" in cell.text


def test_a_mismatch_names_both_calls(first_ranks):
    text = of(first_ranks, "3 if rank == 0 else 4").text
    assert "CollectiveMismatch" in text
    assert "all_sum" in text


def test_stop_loses_nothing(first_ranks):
    assert "KeyboardInterrupt" in of(first_ranks, "while rank == 0").text
    still = of(first_ranks, "still here").text
    assert who_said(still, "still here, Ada: 4 ranks") == [0, 1, 2, 3]


@pytest.mark.parametrize("magic", ["topology", "bandwidth"])
def test_a_live_widget_ends_as_a_picture(first_ranks, magic):
    mimes = of(first_ranks, f"%distributed {magic}").mimes()
    assert {"application/vnd.jupyter.widget-view+json", "image/svg+xml"} <= mimes


def test_the_sweep_is_right(first_ranks):
    text = of(first_ranks, "%distributed bandwidth").text
    rows = [line.split() for line in text.splitlines() if " all_sum " in f" {line} "]
    measured = [row for row in rows if row[0].isdigit()]
    assert measured
    assert all(row[-1] == "0" for row in measured)


def test_nothing_is_left(first_ranks):
    assert first_ranks[1] == []


# -- 03 when things go wrong --------------------------------------------------------------------


def test_a_dead_rank_is_named_to_the_others(broken):
    cell = of(broken, "signal.SIGKILL")
    assert who_said(cell.stdout, "lost rank 2: killed by signal 9 (SIGKILL)") == [0, 1, 3]
    assert "`%distributed restart 2` replaces it" in cell.stderr
    assert cell.error.startswith("RankFailure: rank 2")
    kept = broken[0]["%%distributed\nwork"]
    assert "this cell runs without rank 2" in kept.stderr
    assert who_said(kept.stdout, "Out: array") == [0, 1, 3]


def test_it_is_replaced_and_the_others_have_their_work(broken):
    replaced = broken[0]["%distributed restart"]
    assert replaced.stdout == "rank 2 is new; ranks 0-1,3 have all they had\n"
    cell = of(broken, "begins anew")
    assert who_said(cell.stdout, "has its work") == [0, 1, 3]
    assert who_said(cell.stdout, "begins anew") == [2]
    assert who_said(cell.stdout, "Out: 4") == [0, 1, 2, 3]


def test_a_mismatch_names_both_lines(broken):
    cell = of(broken, "px.all_max(work)")
    assert cell.error.startswith("CollectiveMismatch: ranks 0-3: ")
    assert re.search(r"rank 0: all_max #\d+ \(int64, shape \(5,\)\) at cell line 2", cell.error)
    assert re.search(r"all_sum #\d+ \(int64, shape \(5,\)\) at cell line 4", cell.error)


def test_nobody_waits_for_one_that_has_ended(broken):
    error = of(broken, "rank != 3").error
    assert error.startswith("CellError: ranks 0-2: RankFailure: rank 3 on ")
    # Who had come when that was found out may be some of them.
    said = r": ended its cell; all_sum #\d+, in which ranks? [\d,-]+ waits?, can never complete"
    assert re.search(said, error)


def test_a_time_limit_says_where_they_were(broken):
    error = of(broken, "load()").error
    assert error.startswith("TimeoutError: the cell ran longer than 1 s; its ranks were stopped: ")
    assert "rank 1 at cell line 5 in load <- cell line 9" in error
    assert re.search(r"ranks 0,2-3 in all_sum #\d+ at cell line 10", error)


def test_a_rank_that_does_not_listen_is_seen_and_replaced(broken):
    assert "rank 1 does not react to the stop" in of(broken, "solve()").stderr
    stacks = of(broken, "%distributed stacks").stdout
    assert "rank 1: runs\n    cell line 5 in solve\n    cell line 9\n" in stacks
    assert "ranks 0,2-3: between cells\n" in stacks
    replaced = of(broken, "--force --from 0")
    assert replaced.stdout == "rank 1 is new; ranks 0,2-3 have all they had\n"
    cell = of(broken, "my work begins")
    assert who_said(cell.stdout, "my work begins with 1") == [0, 1]
    assert who_said(cell.stdout, "my work begins with 3") == [2]
    assert who_said(cell.stdout, "my work begins with 4") == [3]


def test_the_failed_rank_is_looked_at(broken):
    error = of(broken, "weigh(parts[rank])").error
    assert error.startswith("ZeroDivisionError: rank 1: ZeroDivisionError")
    looked = of(broken, "%distributed debug 1")
    assert [prompt.text for prompt in looked.prompts] == ["[1] ipdb> "] * 4
    assert "[1] 0\n" in looked.stdout
    assert "[1] [4, 0, 2, 8]\n" in looked.stdout


def test_ranks_are_come_back_to_with_their_work(broken):
    assert "free; ends in" in of(broken, "%distributed list").stdout
    assert "rank 3" in of(broken, "%distributed attach").stdout
    assert who_said(of(broken, "still here").stdout, "4 of us are still here") == [0, 1, 2, 3]
    firsts = re.findall(r"\[ *(\d+),", of(broken, "ws.pull").text)
    assert firsts == ["1", "1", "3", "4"]
    assert broken[1] == []


# -- 04 seeing it -------------------------------------------------------------------------------


def test_its_pictures_can_be_read_without_a_kernel():
    """`with_outputs.py` writes them; of the words of the cells that run now."""
    cells = [cell for cell in read(FOLDER / "04_seeing_it.ipynb").cells if "outputs" in cell]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    pictured = [cell.source.split()[1] for cell in cells if pictures(cell.outputs)]
    assert pictured == ["topology", "monitor", "bandwidth", "bandwidth"]
    kinds = {kind for cell in cells for output in cell.outputs for kind in output.get("data", ())}
    assert kinds <= {"image/svg+xml", "text/plain"}  # no widget, whose kernel is gone


@deep
def test_the_slow_rank_is_seen(tmp_path):
    seeing = run_all("04_seeing_it.ipynb", tmp_path)
    waited = [float(found) for found in re.findall(r"waited (\S+) s", of(seeing, "waited").stdout)]
    assert len(waited) == 4
    assert waited[3] == min(waited)
    assert len(of(seeing, "measure_links").stdout.splitlines()) == 6
    for words in ("%distributed topology", "%distributed monitor", "--dtype float16"):
        (picture,) = pictures(of(seeing, words).outputs)
        assert picture.startswith("<svg")
    (lanes,) = pictures(of(seeing, "%distributed monitor").outputs)
    assert "rank 3 held the others up for" in lanes
    assert seeing[1] == []
