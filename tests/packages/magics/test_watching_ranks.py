"""Watch ranks in a notebook: the status line, a trace, bandwidth sweeps."""

from __future__ import annotations

import json
import re

import pytest
from support.notebooks.kernel_driver import KernelDriver
from support.patience import TOGETHER, shown_at_once

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks():
    """A kernel with three ranks."""
    with KernelDriver() as driver:
        result = driver.run(f"%load_ext phalanx\n{TOGETHER}\n%distributed start -n 3 --linger 0")
        assert result.status == "ok", result.text
        yield driver


# -- the status line of a long cell -------------------------------------------------------------


def status_lines(result):
    displays = (o["data"] for o in result.outputs if o["output_type"] == "display_data")
    return [data.get("text/plain", "") for data in displays]


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
