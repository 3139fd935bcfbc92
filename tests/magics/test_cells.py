"""What IPython's cells can do, on the ranks: await, magics, plots, results of one's own."""

from __future__ import annotations

import re

import pytest
from kernel_driver import KernelDriver

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
        result = driver.run("%load_ext phalanx\n%distributed start -n 2")
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
    assert len(pictures(shown)) == 2, shown.text
    assert "[0] Out: [<matplotlib.lines.Line2D" in shown.stdout
    assert len(pictures(run(ranks, "plt.plot([rank, 3]); plt.show()"))) == 2
    assert len(pictures(run(ranks, "%matplotlib inline\nplt.plot([rank, 4]);"))) == 2


def pictures(result):
    return [o["data"]["image/png"] for o in result.outputs if "image/png" in o.get("data", {})]
