"""Widgets of ranks: live in the notebook, in the order of ranks, and gone with their rank."""

from __future__ import annotations

import re

import pytest
from support.inside import lose_callback_ends_code
from support.notebooks.notebook_kernel import NotebookKernel
from support.own_frames import own_frames
from support.patience import TOGETHER
from support.waiting import wait_until

pytestmark = pytest.mark.slow
ANSI = re.compile(r"\x1b\[[0-9;]*m")
VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    with NotebookKernel(TOGETHER, cwd=tmp_path_factory.mktemp("here")) as driver:
        yield driver


@pytest.fixture
def ranks(kernel):
    kernel.need_ranks("-n 2")
    yield kernel
    kernel.need_ranks("-n 2")


def run(ranks, code, first=""):
    result = ranks.run(f"%%distributed {first}\n{code}")
    assert result.status == "ok", result.text
    return result


def lines(result):
    return sorted(result.stdout.splitlines())


def views(result):
    """The ids of the widgets that a cell shows, from the top."""
    return [o["data"][VIEW]["model_id"] for o in result.outputs if VIEW in o.get("data", {})]


def wait_for(ranks, is_so, what):
    def look():
        ranks.take(0.05)
        return is_so()

    wait_until(look, what)


# A name makes another host of this machine, with a supervisor of its own.
@pytest.mark.parametrize("options", ["-n 2", "-n 1 --hosts localhost,b --launcher local"])
def test_a_slider_moves_both_ways_on_its_rank_only(ranks, options):
    ranks.need_ranks(options)
    shown = run(
        ranks,
        "import ipywidgets as w\n"
        "slider, heard = w.IntSlider(value=3 + rank), []\n"
        "slider.observe(lambda change: heard.append(change.new), 'value')\n"
        "slider",
    )
    first, second = views(shown)
    assert [ranks.models[its]["value"] for its in (first, second)] == [3, 4]
    moved = ranks.move(second, value=50)
    wait_for(ranks, lambda: any(its == moved for its, _ in ranks.echoes), "the echo of the move")
    assert lines(run(ranks, "slider.value, heard")) == ["[0] Out: (3, [])", "[1] Out: (50, [50])"]
    run(ranks, "slider.value = 60 + rank")
    assert [ranks.models[its]["value"] for its in (first, second)] == [60, 61]


def test_widgets_stand_in_the_order_of_ranks_however_they_come(ranks):
    result = run(
        ranks,
        "import ipywidgets as w\n"
        "if rank == 0: px.recv((), int, 1)\n"
        "display(w.Label(f'first {rank}'))\n"
        "if rank == 1: px.send(1, 0)\n"
        "display(w.Label(f'second {rank}'))",
    )
    texts = [ranks.models[its]["value"] for its in views(result)]
    assert texts == ["first 0", "first 1", "second 0", "second 1"]


def test_output_widgets_capture_and_callbacks_print_below_their_cell(ranks):
    cell = ranks.submit(
        "%%distributed\n"
        "import ipywidgets as w\n"
        "out, box = w.Output(), w.Checkbox()\n"
        "with out:\n"
        "    print('caught'); display(1); 1 / 0\n"
        "@box.observe\n"
        "def heard(change):\n"
        "    if change.name == 'value': print('heard', change.new)\n"
        "display(out, box)"
    )
    result = cell.result()
    assert result.status == "ok", result.text
    assert "caught" not in result.stdout
    out, _, _, box = views(result)
    kinds = [its["output_type"] for its in ranks.models[out]["outputs"]]
    assert kinds == ["stream", "display_data", "error"]
    assert ranks.models[out]["outputs"][0]["text"] == "caught\n"
    run(ranks, "out.clear_output()")
    assert ranks.models[out]["outputs"] == []
    ranks.move(box, value=True)
    cell.until_late(lambda its: "[1] heard True" in its.text)


def test_bars_of_notebooks_and_of_rich_are_live(ranks):
    code = "for _ in bar(range(5), {}='on'): pass"
    shown = run(ranks, "from tqdm.auto import tqdm as bar\n" + code.format("desc"))
    assert len(views(shown)) == 2
    bars = [its for its in ranks.models.values() if its.get("_model_name") == "FloatProgressModel"]
    assert [(its["value"], its["max"]) for its in bars] == [(5, 5), (5, 5)]
    shown = run(ranks, "from rich.progress import track as bar\n" + code.format("description"))
    for its in views(shown):
        (output,) = ranks.models[its]["outputs"]
        assert "100%" in output["data"]["text/html"]


def test_moves_for_a_busy_rank_are_merged_and_the_last_one_holds(ranks):
    """A thread runs a cell, so that the notebook is free while the ranks are not."""
    shown = run(ranks, "import ipywidgets as w\nslider, heard = w.IntSlider(max=10**6), []\nslider")
    run(ranks, "slider.observe(lambda change: heard.append(change.new), 'value')")
    ranks.run(
        "import threading, time\n"
        "code = 'import os, time\\nwhile not os.path.exists(\"go\"): time.sleep(0.01)'\n"
        "busy = threading.Thread(target=ws.run, args=(code,))\nbusy.start()\n"
        "while not any(r.state != 'idle' for r in ws.topology().ranks): time.sleep(0.01)"
    )
    for value in range(1, 1001):
        moved = ranks.move(views(shown)[1], value=value)
    assert ranks.run("open('go', 'w').close()\nbusy.join()").status == "ok"
    wait_for(ranks, lambda: any(its == moved for its, _ in ranks.echoes), "the echo of the last")
    heard = lines(run(ranks, "heard[-1:], len(heard) < 20"))
    assert heard == ["[0] Out: ([], True)", "[1] Out: ([1000], True)"]


def test_a_tab_for_each_rank(ranks):
    code = "print('here is', rank)\nimport sys; print('and', file=sys.stderr)\nrank + 10"
    (tab,) = views(run(ranks, code, "--view tabs"))
    its = ranks.models[tab]
    assert its["titles"] == ["rank 0", "rank 1"]
    for rank, child in enumerate(its["children"]):
        outputs = ranks.models[child.removeprefix("IPY_MODEL_")]["outputs"]
        text = "".join(o.get("text", o.get("data", {}).get("text/plain", "")) for o in outputs)
        assert f"here is {rank}" in text
        assert f"{rank + 10}" in text


FOREVER = (
    "import ipywidgets as w, time\n"
    "box = w.Checkbox()\n"
    "def heard(change):\n"
    "    print('begun', flush=True)\n"
    "    while True: time.sleep(0.01)\n"
    "box.observe(heard, 'value')\n"
    "box"
)


@pytest.mark.parametrize("how", ["magic", "button", "a cell behind it"])
def test_a_callback_that_does_not_end_is_stopped(ranks, how):
    cell = ranks.submit(f"%%distributed --ranks 1\n{FOREVER}")
    (box,) = views(cell.result())
    ranks.move(box, value=True)
    cell.until_late(lambda its: "[1] begun" in its.text)
    if how == "magic":
        assert ranks.run("%distributed interrupt").stdout == "asked rank 1 to stop\n"
    elif how == "button":
        ranks.interrupt()
    else:
        behind = ranks.submit("%%distributed\nprint('runs on', rank)")
        behind.until(lambda its: "▸" in its.text)
        ranks.interrupt()
        assert behind.result().error.startswith("KeyboardInterrupt")
    cell.until_late(lambda its: "KeyboardInterrupt" in its.text)
    text = ANSI.sub("", cell.result_so_far.text)
    assert "in heard(change)" in text
    assert not own_frames(text)
    assert lines(run(ranks, "box.value", "--ranks 1")) == ["[1] Out: True"]


def test_what_a_callback_raises_or_its_thread_prints_is_shown_below_its_cell(ranks):
    cell = ranks.submit(
        "%%distributed --ranks 1\n"
        "import ipywidgets as w, threading\n"
        "box, goes = w.Checkbox(), threading.Event()\n"
        "def later():\n"
        "    goes.wait(); print('printed later')\n"
        "def heard(change):\n"
        "    threading.Thread(target=later).start(); 1 / 0\n"
        "box.observe(heard, 'value')\n"
        "box"
    )
    (box,) = views(cell.result())
    ranks.move(box, value=True)
    cell.until_late(lambda its: "ZeroDivisionError" in its.text)
    run(ranks, "goes.set()", "--ranks 1")
    cell.until_late(lambda its: "[1] printed later" in its.text)


def test_the_end_of_a_cell_frees_a_widget_whose_end_was_lost(ranks):
    """The rank tells the end of a callback once, and a broken connection may lose it."""
    box = views(run(ranks, "import ipywidgets as w\nbox = w.Checkbox()\nbox"))[1]
    assert ranks.run(lose_callback_ends_code("ws")).status == "ok"
    ranks.move(box, value=True)
    moved = ranks.move(box, value=False)
    run(ranks, "pass")
    wait_for(ranks, lambda: any(its == moved for its, _ in ranks.echoes), "the echo of the last")
    ranks.end_ranks()


def test_widgets_of_a_rank_that_is_replaced_or_stopped_stay_disabled_and_no_comm_is_left(ranks):
    first, second = views(run(ranks, "import ipywidgets as w\nw.IntSlider(value=7 + rank)"))
    ranks.run("%distributed restart 1 --force")
    wait_for(ranks, lambda: ranks.models[second]["disabled"], "the slider of rank 1 is disabled")
    assert not ranks.models[first]["disabled"]
    ranks.run("%distributed stop")
    wait_for(ranks, lambda: ranks.models[first]["disabled"], "the slider of rank 0 is disabled")
    assert [ranks.models[its]["value"] for its in (first, second)] == [7, 8]
    ranks.move(first, value=50)
    comms = "get_ipython().kernel.comm_manager.comms.values()"
    assert ranks.run(f"[its for its in {comms} if hasattr(its, 'rank')]").text.strip() == "[]"
