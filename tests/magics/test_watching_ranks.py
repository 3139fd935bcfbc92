"""Watch ranks in a notebook: the status line, stacks, a trace, bandwidth sweeps."""

from __future__ import annotations

import json
import os
import re
import select

import pytest
from support.notebooks.kernel_driver import KernelDriver
from support.patience import TOGETHER, shown_at_once
from support.promise import PATIENCE_S
from support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks():
    """A kernel with three ranks."""
    with KernelDriver() as driver:
        result = driver.run(f"%load_ext phalanx\n{TOGETHER}\n%distributed start -n 3 --linger 0")
        assert result.status == "ok", result.text
        yield driver


# -- the status line of a long cell -------------------------------------------------------------


def displays(result):
    return [o for o in result.outputs if o["output_type"] == "display_data"]


def status_lines(result):
    return [output["data"].get("text/plain", "") for output in displays(result)]


def test_a_long_cell_says_how_it_stands_and_leaves_no_empty_output(ranks):
    ends = (" · waiting for input 0", "s · ranks 1-2 in all_sum #")
    seen = []

    def is_seen(result):
        seen[:] = [line for line in status_lines(result) if all(end in line for end in ends)]
        return bool(seen)

    cell = ranks.submit(
        "%%distributed\nif rank == 0: input('go? ')\npx.all_sum(1)", stdin=lambda prompt: None
    )
    cell.until(is_seen)
    ranks.type_line("x")
    result = cell.result()
    assert result.status == "ok", result.text
    assert seen[0].startswith("▸ ")
    assert seen[0].endswith(ends[0])
    (last,) = status_lines(result)
    assert re.fullmatch("▸ took .+", last)
    assert result.n_messages < 20 + 3 * result.seconds  # two lines a second


def test_a_stop_ends_the_line(ranks):
    cell = ranks.submit("%%distributed\nimport time\ntime.sleep(60)")
    cell.until(lambda result: any("running 0-2" in line for line in status_lines(result)))
    ranks.interrupt()
    result = cell.result()
    assert result.error.startswith("KeyboardInterrupt")
    assert [line[:6] for line in status_lines(result)] == ["▸ took"]


def test_a_short_cell_has_no_line(ranks):
    result = ranks.run("%%distributed\npx.all_sum(1)")
    assert displays(result) == [] or result.seconds > 1


# -- stacks -------------------------------------------------------------------------------------


def test_stacks_are_shown_equal_ones_once(ranks):
    result = ranks.run("%distributed stacks")
    assert (result.status, result.stdout) == ("ok", "ranks 0-2: between cells\n")
    result = ranks.run("%distributed stacks 0,2")
    assert result.stdout == "ranks 0,2: between cells\n"
    assert "UsageError: there is no rank 3" in ranks.run("%distributed stacks 3").stderr
    assert "stacks" in ranks.complete("%distributed st")["matches"]


def test_a_time_limit_says_where_the_ranks_were(ranks):
    result = ranks.run(
        "%%distributed --timeout 4\n"
        "def load():\n    import time\n    time.sleep(60)\n"
        "if rank == 1: load()\nelse: px.all_sum(1)"
    )
    assert re.fullmatch(
        r"TimeoutError: the cell ran longer than 4 s; its ranks were stopped: "
        r"ranks 0,2 in all_sum #\d+ at cell line 5; "
        r"rank 1 at cell line 3 in load <- cell line 4",
        result.error,
    )
    assert ranks.run("%%distributed\npx.all_sum(1)").stdout == "[0-2] Out: 3\n"


# -- a trace ------------------------------------------------------------------------------------


def test_the_trace_is_written_where_it_was_asked_for(ranks, tmp_path):
    ranks.run("%%distributed\npx.all_sum(np.ones(1001))")
    path = tmp_path / "what ranks did.json"
    result = ranks.run(f"%distributed trace '{path}'")
    assert result.status == "ok", result.text
    assert result.stdout.startswith(f"{path}: ")
    assert result.stdout.endswith("open it at https://ui.perfetto.dev\n")
    assert result.stdout.count("\n") == 1
    events = json.loads(path.read_bytes())["traceEvents"]
    sums = [event for event in events if event["name"] == "all_sum"]
    assert {event["tid"] for event in sums if event["args"]["nbytes"] == 8008} == {0, 1, 2}

    wrong = ranks.run(f"%distributed trace {tmp_path}/none/t.json")
    assert wrong.status == "error"
    assert "cannot be written: No such file or directory; name another" in wrong.stderr
    assert "trace" in ranks.complete("%distributed tr")["matches"]


# -- bandwidth ----------------------------------------------------------------------------------


def test_a_still_sweep(ranks):
    result = ranks.run("%distributed bandwidth --still -b 8 -e 32K -f 64 --iters 5")
    assert result.status == "ok", result.text
    assert "image/svg+xml" in result.mimes()
    rows = [line for line in result.stdout.splitlines() if line.lstrip()[:1].isdigit()]
    assert len(rows) == 3
    assert "memory copy" in result.text
    assert "# time: " in result.text


def test_a_sweep_is_live_and_ends_as_a_picture(ranks):
    result = ranks.run("%distributed bandwidth -b 8 -e 32K -f 64 --iters 5")
    assert result.status == "ok", result.text
    assert {"application/vnd.jupyter.widget-view+json", "image/svg+xml"} <= result.mimes()
    rows = [line for line in result.text.splitlines() if " all_sum " in line and line[:1] == " "]
    assert len(rows) == 3
    assert all(row.split()[-1] == "0" for row in rows)


@pytest.fixture
def at_once(ranks):
    """Ranks with displays that do not wait for equal ones of other ranks."""
    with shown_at_once(ranks):
        yield ranks


def test_a_sweep_that_is_stopped_keeps_what_it_has(at_once, tmp_path):
    # All of it takes half a minute on an idle machine: it does not end before it is stopped.
    cell = at_once.submit(
        f"%distributed bandwidth --still -b 8 -e 8M -f 2 --iters 2000 --save {tmp_path}/kept.json"
    )
    cell.until(lambda result: "\n          16 " in result.stdout)
    at_once.interrupt()
    result = cell.result()
    assert result.error.startswith("KeyboardInterrupt")
    assert re.search(r"# stopped after \d+ of 21 sizes", result.stdout)
    assert "image/svg+xml" in result.mimes()
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["state"] == "stopped"
    assert 2 <= len(kept["points"]) < 21
    assert kept["model"]["limits"][0]["name"] == "memory copy"
    assert "[0-2] Out: 3" in at_once.run("%%distributed\npx.all_sum(1)").stdout


def test_earlier_sweeps_are_laid_over_one_of_the_same_operation(ranks):
    for op in ("all_max", "all_min", "all_max"):
        result = ranks.run(f"%distributed bandwidth --op {op} -b 8 -e 512 -f 64 --iters 2")
    (svg,) = (
        o["data"]["image/svg+xml"] for o in result.outputs if "image/svg+xml" in o.get("data", {})
    )
    assert len(re.findall(r"all_max · arena · float32 · 3 ranks · \d\d:\d\d:\d\d</text>", svg)) == 1
    assert "all_min" not in svg


# -- a stop that a rank does not react to -------------------------------------------------------


class CallInC:
    """A call of C code that keeps Python's lock until the test lets it return.

    It writes more to a FIFO than that holds: what has arrived shows that the call has begun, and
    it returns when all is read.
    """

    n_bytes = 1 << 20

    def __init__(self, path) -> None:
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.preparation = (
            f"import ctypes, os\nfifo = os.open({str(path)!r}, os.O_WRONLY)\n"
            f"much = bytes({self.n_bytes})\nwrite = ctypes.PyDLL(None).write"
        )
        self.call = "write(fifo, much, len(much))"

    def wait_begun(self) -> None:
        assert select.select([self._fd], [], [], PATIENCE_S)[0], "the call has not begun"

    def end(self) -> None:
        left = self.n_bytes
        while left:
            assert select.select([self._fd], [], [], PATIENCE_S)[0], f"{left} bytes are missing"
            read = len(os.read(self._fd, left))
            assert read, f"the call ended early: {left} bytes are missing"
            left -= read
        os.close(self._fd)


def test_the_stop_button_on_a_rank_that_does_not_react(ranks, tmp_path):
    held = CallInC(tmp_path / "fifo")
    prepared = ranks.run(f"%%distributed --ranks 1\n{held.preparation}")
    assert prepared.status == "ok", prepared.text
    cell = ranks.submit(
        f"%%distributed\nmine = rank\ndef solve(): {held.call}\nif rank == 1: solve()\npx.all_sum(1)"
    )
    held.wait_begun()
    # The others have what the cell defines before its last line.
    cell.until(lambda result: any("0,2 in all_sum #" in line for line in status_lines(result)))
    ranks.interrupt()
    result = cell.result()
    assert result.error.startswith("KeyboardInterrupt")
    assert (
        "phalanx: rank 1 does not react to the stop: in C code called from "
        "cell line 2 in solve <- cell line 3; wait, use --ranks to run on the others, "
        "or replace it: %distributed restart 1 --force\n"
    ) in result.stderr
    kept = ranks.run("%%distributed --ranks 0,2\nprint(mine)")
    assert kept.status == "ok", kept.text
    assert sorted(kept.stdout.splitlines()) == ["[0] 0", "[2] 2"]
    refused = ranks.run("%%distributed\nprint(mine)")
    assert "rank 1 still runs the cell before (in C code called from" in refused.error
    stacks = ranks.run("%distributed stacks 1")
    assert stacks.stdout == "rank 1: runs\n    cell line 2 in solve\n    cell line 3\n"
    held.end()
    wait_until(
        lambda: ranks.run("%distributed stacks 1").stdout == "rank 1: between cells\n",
        "rank 1 is stopped",
    )
    assert ranks.run("%%distributed\nprint(px.all_sum(1))").stdout == "[0-2] 3\n"
    assert ranks.run("%%distributed\nprint(mine)").stdout.count("\n") == 3
