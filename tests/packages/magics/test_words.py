"""What of a cell the ranks run, and the words that come next after a magic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.magics.arguments import auto_parser, cell_parser, line_parser, local_parser, next_words
from phalanx.magics.typing_help import RankText, keep_empty_body, rank_text


def never(cell):
    return False


def always(cell):
    return True


bodies = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
options = st.sampled_from(["", " ", " --ranks 0,2-3", "\t--label none --timeout 3"])
before = st.sampled_from(["", "\n", " \n\n", "  "])


@given(before, options, bodies, st.data())
def test_every_place_in_the_body_is_found_again(before, options, body, data):
    cell = f"{before}%%distributed{options}\n{body}"
    start = len(cell) - len(body)
    cursor = data.draw(st.integers(0, len(cell)))
    found = rank_text(cell, cursor, never)
    if cursor < start:
        assert found is None
    else:
        assert found == RankText(body, start, options)
        assert found.code[: cursor - found.start] == cell[start:cursor]
        assert cell[: found.start] + found.code == cell


@given(bodies, st.data())
def test_other_cells_are_the_notebooks_own(body, data):
    cursor = data.draw(st.integers(0, len(body)))
    for cell in (body.lstrip("%"), f"%%local\n{body}", f"%%distributedly\n{body}"):
        assert rank_text(cell, min(cursor, len(cell)), never) is None


@pytest.mark.parametrize("cell", ["%dist", "%%di", "\n %distributed"])
def test_the_name_of_a_magic_is_the_notebooks(cell):
    assert rank_text(cell, len(cell), always) is None
    whole = f"{cell} x"
    assert rank_text(whole, len(whole), always) == RankText(whole, 0, "")


def test_a_cell_of_one_rank_is_sent_to_it():
    assert rank_text("%%rank 1 --timeout 3\na", 22, never) == RankText(
        "a", 21, "--ranks  1 --timeout 3"
    )


def test_a_cell_that_runs_on_the_ranks_by_itself_is_sent_whole():
    assert rank_text("a\nb", 3, always) == RankText("a\nb", 0, "")


@pytest.mark.parametrize(
    ("make_parser", "typed", "words"),
    [
        (line_parser, "st", {"start", "status", "stop"}),
        (line_parser, "start --s", {"--silence"}),
        (line_parser, "start -n 2 --transport ", {"any", "tcp"}),
        (line_parser, "start --transport t", {"tcp"}),
        (line_parser, "start -n ", set()),
        (line_parser, "bandwidth --op ", {"all_sum", "sendrecv", "barrier"}),
        (line_parser, "bandwidth --still --op all_g", {"all_gather"}),
        (line_parser, "bandwidth --dtype f", {"float16", "float32", "float64"}),
        (line_parser, "bandwidth --iters ", set()),
        (line_parser, "re", {"restart"}),
        (line_parser, "restart 2 --f", {"--force", "--from"}),
        (line_parser, "restart ", {"--all", "--force", "--from", "--no-init", "--help"}),
        (line_parser, "start --a", {"--auto-restart"}),
        (cell_parser, "--ev", {"--every-start"}),
        (line_parser, "nonsense ", set()),
        (line_parser, "status ", {"--help"}),
        (cell_parser, "--label none --", {"--ranks", "--timeout", "--max-lines", "--help"}),
        (auto_parser, "", {"on", "off", "--help"}),
        (auto_parser, "on ", {"--help"}),
        (local_parser, "x --h", {"--help"}),
    ],
)
def test_next_words(make_parser, typed, words):
    fragment, found = next_words(make_parser(), typed)
    assert set(found) >= words
    assert bool(found) == bool(words)
    assert typed.endswith(fragment)
    assert all(word.startswith(fragment) for word in found)


def test_an_option_is_offered_once():
    assert "--label" not in next_words(cell_parser(), "--label none ")[1]


@pytest.mark.parametrize(
    ("lines", "n_lines"),
    [
        (["%%distributed --help\n"], 2),
        (["%%local\n"], 2),
        (["%%distributed\n", "x\n"], 2),
        (["%%time\n"], 1),
        (["%distributed --help\n"], 1),
        ([], 0),
    ],
)
def test_only_our_magics_get_a_body(lines, n_lines):
    assert len(keep_empty_body(lines)) == n_lines
