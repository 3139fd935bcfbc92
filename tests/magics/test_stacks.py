"""Where ranks are, the line of a long wait, and the stop button, in a real kernel."""

from __future__ import annotations

import re

import pytest
from kernel_driver import KernelDriver

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks():
    with KernelDriver() as driver:
        result = driver.run("%load_ext phalanx\n%distributed start -n 3 --linger 0")
        assert result.status == "ok", result.text
        yield driver


def test_stacks_are_shown_equal_ones_once(ranks):
    result = ranks.run("%distributed stacks")
    assert (result.status, result.stdout) == ("ok", "ranks 0-2: between cells\n")
    result = ranks.run("%distributed stacks 0,2")
    assert result.stdout == "ranks 0,2: between cells\n"
    assert "UsageError: there is no rank 3" in ranks.run("%distributed stacks 3").stderr
    assert "RANKS" in ranks.run("%distributed stacks --help").stdout
    assert "stacks" in ranks.complete("%distributed st")["matches"]


def test_a_time_limit_says_where_the_ranks_were(ranks):
    result = ranks.run(
        "%%distributed --timeout 0.5\n"
        "def load():\n    import time\n    time.sleep(60)\n"
        "if rank == 1: load()\nelse: px.all_sum(1)"
    )
    assert re.fullmatch(
        r"TimeoutError: the cell ran longer than 0\.5 s; its ranks were stopped: "
        r"ranks 0,2 in all_sum #\d+ at cell line 5; "
        r"rank 1 at cell line 3 in load <- cell line 4",
        result.error,
    )
    assert ranks.run("%%distributed\npx.all_sum(1)").stdout == "[0-2] Out: 3\n"


def test_the_stop_button_on_a_rank_that_does_not_react(ranks):
    cell = ranks.submit(
        "%%distributed\nimport ctypes, time\nmine, library = rank, ctypes.PyDLL(None)\n"
        "def solve(): library.sleep(9)\n"
        # Others say when: rank 1 has been in there for a while by then, and Python says nothing of it.
        "if rank == 1: solve()\ntime.sleep(0.5)\nprint('go', flush=True)\npx.all_sum(1)"
    )
    cell.until(lambda result: "go" in result.stdout)
    ranks.interrupt()
    result = cell.result(10)
    assert result.error.startswith("KeyboardInterrupt")
    assert (
        "phalanx: rank 1 does not react to the stop: in C code called from "
        "cell line 3 in solve <- cell line 4; wait, use --ranks to run on the others, "
        "or replace it: %distributed restart 1 --force\n"
    ) in result.stderr
    kept = ranks.run("%%distributed --ranks 0,2\nprint(mine)")
    assert kept.status == "ok", kept.text
    assert sorted(kept.stdout.splitlines()) == ["[0] 0", "[2] 2"]
    refused = ranks.run("%%distributed\nprint(mine)")
    assert "rank 1 still runs the cell before (in C code called from" in refused.error
    stacks = ranks.run("%distributed stacks 1")
    assert stacks.stdout == "rank 1: runs\n    cell line 3 in solve\n    cell line 4\n"
    for _ in range(10):  # each looks for 2 s
        result = ranks.run("%%distributed\nprint(px.all_sum(1))")
        if result.status == "ok":
            break
    assert result.stdout == "[0-2] 3\n"
    assert ranks.run("%%distributed\nprint(mine)").stdout.count("\n") == 3


def test_a_wait_of_ten_seconds_is_told_of_in_one_line_that_stays(ranks):
    result = ranks.run(
        "%%distributed\nimport time\nif rank == 1: time.sleep(11.5)\nprint(px.all_sum(1))"
    )
    assert result.status == "ok"
    assert result.stdout == "[0-2] 3\n"
    assert re.fullmatch(
        r"phalanx: ranks 0,2 have waited 10 s in all_sum #\d+; "
        r"missing: rank 1, at cell line 2, (last completed #\d+|has completed none)\n",
        result.stderr,
    )
