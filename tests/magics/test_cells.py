"""What IPython's cells can do, on the ranks: await, magics, plots, results of one's own."""

from __future__ import annotations

import re

import pytest
from kernel_driver import KernelDriver
from patience import TOGETHER

pytestmark = pytest.mark.slow

ASYNC = """\
import asyncio, contextlib
async def numbers():
    for number in range(2):
        yield number
@contextlib.asynccontextmanager
async def inside():
    print("in")
    yield rank
    print("out")
async def later(x):
    await asyncio.sleep(0.01)
    return x + rank
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cells")
    (folder / "script.py").write_text("made = 5\nprint('made', made)\n")
    (folder / "fails.py").write_text("print('begun')\nnot_there\n")
    with KernelDriver(cwd=folder) as driver:
        result = driver.run(f"%load_ext phalanx\n{TOGETHER}\n%distributed start -n 2 --linger 0")
        assert result.status == "ok", result.text
        assert driver.run(f"%%distributed\n{ASYNC}").status == "ok"
        yield driver


def run(ranks, code):
    return ranks.run(f"%%distributed\n{code}")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("async for n in numbers(): print(n)", "[0-1] 0\n[0-1] 1\n"),
        ("[n async for n in numbers()]", "[0-1] Out: [0, 1]\n"),
        (
            "async with inside() as mine: print(mine * 0)",
            "[0-1] in\n[0-1] 0\n[0-1] out\n",
        ),
        ("await asyncio.gather(later(1), later(2))", "[0] Out: [1, 2]\n[1] Out: [2, 3]\n"),
        ("await asyncio.to_thread(lambda: 7)", "[0-1] Out: 7\n"),
        ("%run script.py\nmade", "[0-1] made 5\n[0-1] Out: 5\n"),
        ("%cd -q /\n%pwd", "[0-1] Out: '/'\n"),
        ("%%bash\necho from bash", "[0-1] from bash\n"),
        ("lines = !echo a\nlines", "[0-1] Out: ['a']\n"),
    ],
)
def test_cells_do_what_they_do_in_a_notebook(ranks, code, text):
    result = run(ranks, f"%cd -q {ranks_folder(ranks)}\n{code}" if "%run" in code else code)
    assert result.status == "ok", result.text
    assert result.text == text


def ranks_folder(ranks):
    return ranks.run("import os; os.getcwd()").text.strip().strip("'")


def test_an_async_generator_lives_on_between_cells_and_may_be_left(ranks):
    assert run(ranks, "left = numbers(); await left.__anext__()").text == "[0-1] Out: 0\n"
    assert run(ranks, "await left.__anext__()").text == "[0-1] Out: 1\n"
    run(ranks, "left = numbers(); await left.__anext__()")
    result = run(ranks, "del left\nimport gc; gc.collect(); print('gone')")
    assert result.text == "[0-1] gone\n"
    run(ranks, "task = asyncio.create_task(later(1))")
    assert run(ranks, "await task").stdout == "[0] Out: 1\n[1] Out: 2\n"


def test_times_come_from_each_rank(ranks):
    assert "per loop" in run(ranks, "%timeit -n 2 -r 2 px.all_sum(1)").stdout
    assert "per loop" in run(ranks, "%%timeit -n 2 -r 2\npx.all_sum(1)").stdout
    timed = run(ranks, "%%time\npx.all_sum(1)").stdout
    assert "] Wall time: " in timed
    assert timed.endswith("[0-1] Out: 2\n")


def test_the_last_value_is_each_ranks_own(ranks):
    run(ranks, "rank * 10")
    assert run(ranks, "_ + 1").stdout == "[0] Out: 1\n[1] Out: 11\n"
    assert run(ranks, "_, __").stdout == "[0] Out: (1, 0)\n[1] Out: (11, 10)\n"
    assert re.match(r"\[0-1\] .*\brank\b", run(ranks, "%who").stdout, re.DOTALL)


def test_a_traceback_that_is_shown_without_ending_the_cell_is_shown(ranks):
    result = run(ranks, f"%run {ranks_folder(ranks)}/fails.py\nprint('after')")
    assert result.status == "ok"
    assert result.stdout == "[0-1] begun\n[0-1] after\n"
    assert result.stderr.count("not_there") == 2
    failed = run(ranks, "1 / 0")
    assert failed.stderr == ""


def test_plots_need_no_magic_and_matplotlib_is_not_imported_before(ranks):
    pytest.importorskip("matplotlib")
    assert run(ranks, "import sys; 'matplotlib' in sys.modules").text == "[0-1] Out: False\n"
    shown = run(ranks, "import matplotlib.pyplot as plt\nplt.plot([rank, 2])")
    assert len(pictures(shown)) == 1, shown.text
    assert "[0] Out: [<matplotlib.lines.Line2D" in shown.stdout
    for code in ("plt.plot([rank, 3]); plt.show()", "%matplotlib inline\nplt.plot([rank, 4]);"):
        (grid,) = pictures(run(ranks, code))
        assert grid == [("[0]", "image/png"), ("[1]", "image/png")]
    shown = pictures(run(ranks, "figure = plt.figure(); plt.plot([rank, 5]); plt.gcf()"))
    captions = [[caption for caption, _ in grid] for grid in shown]
    assert captions == [["[0]", "[1]"], ["[0] Out:", "[1] Out:"]]


def pictures(result):
    """The ranks and the kind of each picture, grid by grid."""
    found = [
        re.findall(r"<figcaption[^>]*>(.*?)</figcaption><img src=\"data:([^;]+)", text)
        for output in result.outputs
        if (text := output.get("data", {}).get("text/html"))
    ]
    assert not any("image/png" in output.get("data", {}) for output in result.outputs)
    return found


def test_pictures_stand_side_by_side_below_what_their_ranks_printed(ranks):
    pytest.importorskip("matplotlib")
    code = (
        "import matplotlib.pyplot as plt\n"
        "for step in range(2):\n"
        "    print('step', step)\n"
        "    plt.plot([rank, step]); plt.show()"
    )
    result = run(ranks, code)
    both = [("[0]", "image/png"), ("[1]", "image/png")]
    assert pictures(result) == [both, both], result.text
    # Without the place of the status line, which a cell has that took a second.
    first, second, *_ = (o for o in result.outputs if o.get("data") != {})
    assert first["text"].endswith("step 0\n")
    assert "image/png" in second["data"]["text/html"]
    same = run(ranks, "plt.plot([1, 2]);")
    assert pictures(same) == [[("[0-1]", "image/png")]]


def test_a_plot_that_is_redrawn_stays_in_its_place(ranks):
    pytest.importorskip("matplotlib")
    code = (
        "import matplotlib.pyplot as plt\n"
        "from IPython.display import clear_output\n"
        "for step in range(8):\n"
        "    clear_output(wait=True)\n"
        "    plt.plot([rank, step]); plt.show()\n"
    )
    result = run(ranks, code)
    assert pictures(result) == [[("[0]", "image/png"), ("[1]", "image/png")]]
    assert result.n_messages < 4 + 2 * 8


def test_text_after_clear_output_stays_in_its_place(ranks):
    code = (
        "from IPython.display import clear_output\n"
        "for step in range(40):\n"
        "    clear_output(wait=True)\n"
        "    print('step', step)\n"
        "    print('loss', rank / (step + 1))\n"
    )
    result = run(ranks, code)
    assert result.stdout == "[0-1] step 39\n[0] loss 0.0\n[1] loss 0.025\n"
    assert result.n_messages < 20


def test_a_figure_may_be_updated_in_another_cell(ranks):
    shown = ranks.submit(
        "%%distributed\nfrom IPython.display import SVG, display\n"
        "handle = display(SVG('<svg/>'), display_id=True)"
    )
    place = shown.result().outputs[0]["display_id"]
    updates = []
    cell = ranks.submit("%%distributed\nhandle.update(SVG(f'<svg id=\"{rank}\"/>'))")
    take = cell._take_output

    def watch(kind, content):
        if kind == "update_display_data":
            updates.append((content["transient"]["display_id"], content["data"]))
        take(kind, content)

    cell._take_output = watch
    assert cell.result().text == ""
    assert {where for where, _ in updates} == {place}
    assert updates[-1][1]["text/html"].count("<img") == 2


def test_one_rank_shows_its_pictures_as_a_notebook_does(ranks):
    code = "%%distributed --ranks 1\nfrom IPython.display import SVG\nSVG('<svg/>')"
    result = ranks.run(code)
    assert result.stdout == "[1] Out:\n"
    assert "image/svg+xml" in result.mimes()


def test_lines_can_name_the_host(ranks):
    host = ranks.run("import socket; print(socket.gethostname())").stdout.strip()
    result = ranks.run("%%distributed --label host\nprint('here')\nrank")
    assert result.stdout == f"[{host} 0-1] here\n[{host} 0] Out: 0\n[{host} 1] Out: 1\n"
    assert ranks.run("%%distributed --label none\nprint('x')").stdout == "x\n"


@pytest.mark.parametrize(
    ("maker", "mime"),
    [("HTML", "text/html"), ("Markdown", "text/markdown"), ("Latex", "text/latex")],
)
def test_rich_text_comes_as_what_it_is_below_its_rank(ranks, maker, mime):
    code = f"from IPython.display import {maker}, display\ndisplay({maker}(f'$x_{{rank}}$'))"
    result = run(ranks, code)
    assert result.status == "ok", result.text
    seen = [(o.get("text", ""), o.get("data", {}).get(mime, "")) for o in result.outputs]
    for rank in range(2):
        at = next(i for i, (_, rich) in enumerate(seen) if rich == f"$x_{rank}$")
        assert seen[at - 1][0].endswith(f"[{rank}]\n"), seen


@pytest.mark.parametrize("module", ["tqdm", "tqdm.auto", "tqdm.notebook"])
def test_bars_are_text_that_ends_in_a_line_for_each_rank(ranks, module):
    code = f"from {module} import tqdm, trange\nfor i in tqdm(trange(9, disable=True), desc='on'): pass"
    result = run(ranks, code)
    assert result.status == "ok", result.text
    lines = [line for line in (result.stdout + result.stderr).splitlines() if line]
    assert sorted(line[:7] for line in lines) == ["[0] on:", "[1] on:"]
    assert all("9/9" in line for line in lines)
    assert not any(o["data"] for o in result.outputs if o["output_type"] == "display_data")


def test_a_widget_of_a_rank_is_its_text(ranks):
    pytest.importorskip("ipywidgets")
    result = run(ranks, "import ipywidgets\nipywidgets.IntSlider(rank)")
    assert "[1] Out: IntSlider(value=1)\n" in result.stdout
    assert result.mimes() == set()


def test_a_traceback_tells_this_cell_from_an_earlier_one(ranks):
    assert run(ranks, "def fails():\n    1 / 0").status == "ok"
    text = re.sub(r"\x1b\[[0-9;]*m", "", run(ranks, "x = 1\nfails()").text)
    assert "\nThis cell, line 2\n" in text
    assert "\nEarlier cell, line 2, in fails()\n" in text


@pytest.mark.parametrize(
    ("code", "magic"),
    [
        ("%distributed status", "%distributed"),
        ("%%distributed\n1", "%%distributed"),
        ("%%local\n1", "%%local"),
        ("x = 1\n%autodistributed off", "%autodistributed"),
    ],
)
def test_our_magics_are_the_notebooks(ranks, code, magic):
    result = run(ranks, code)
    assert result.error.endswith(
        f": ranks 0-1: UsageError: {magic} is the notebook's, and this cell runs on the ranks: "
        "give it a cell of its own"
    )


@pytest.mark.parametrize("code", ["%nothing", "%%nothing\n1", "%timeit -z 1"])
def test_a_mistake_in_a_magic_is_told_once(ranks, code):
    result = run(ranks, code)
    assert result.status == "error"
    assert result.stderr == ""
    assert result.text.count("Error:") == 1


def test_a_mistake_in_a_magic_that_ends_no_cell_is_shown(ranks):
    result = run(ranks, "get_ipython().run_cell('%nothing'); print('after')")
    assert result.status == "ok"
    assert "[0-1] UsageError: Line magic function `%nothing` not found.\n" in result.stderr
    assert result.stdout == "[0-1] after\n"


def test_runaway_output_is_cut_and_the_rest_is_kept(ranks):
    result = ranks.run(
        "%%distributed --ranks 0 --max-lines 3\nfor i in range(10): print('line', i)"
    )
    assert result.stdout == "[0] line 0\n[0] line 1\n[0] line 2\n"
    assert "7 more lines; %distributed output RANK shows them" in result.stderr
    assert "line 9" in ranks.run("%distributed output 0").text
