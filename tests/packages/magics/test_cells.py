"""Run cells on ranks as a notebook runs them; and cells that go wrong, or show too much."""

from __future__ import annotations

import os
import re

import pytest
from support.notebooks.notebook_kernel import NotebookKernel
from support.own_frames import own_frames
from support.patience import TOGETHER, shown_at_once
from support.promise import PATIENCE_S, within

from phalanx.workspace import parse_ranks

pytestmark = pytest.mark.slow

ANSI = re.compile(r"\x1b\[[0-9;]*m")
NOT_THE_RANK = "ends the cell, not the rank; %distributed stop ends the ranks"
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
def kernel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cells")
    (folder / "script.py").write_text("made = 5\nprint('made', made)\n")
    (folder / "fails.py").write_text("print('begun')\nnot_there\n")
    with NotebookKernel(TOGETHER, cwd=folder) as driver:
        yield driver


@pytest.fixture
def ranks(kernel):
    """The kernel with two ranks, which are good again after the test."""
    if kernel.need_ranks("-n 2"):  # what they need not have imported takes its time
        loaded = run(kernel, "import sys; 'matplotlib' in sys.modules")
        assert loaded.text == "[0-1] Out: False\n"
    yield kernel
    kernel.need_ranks("-n 2")  # a test may have ended them
    result = run(kernel, "px.all_sum(1)")
    if said(result) != {(0, "Out: 2"), (1, "Out: 2")}:
        kernel.end_ranks()  # the next test is to have good ones
        pytest.fail(result.text)


def run(ranks, code):
    return ranks.run(f"%%distributed\n{code}")


def said(result):
    """Lines as (rank, text), however they were shown together."""
    found = set()
    for line in result.stdout.splitlines():
        label, _, text = line.partition("] ")
        found |= {(rank, text) for rank in parse_ranks(label[1:], 2)}
    return found


# -- what cells do in a notebook ----------------------------------------------------------------


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
    run(ranks, ASYNC)
    result = run(ranks, f"%cd -q {ranks_folder(ranks)}\n{code}" if "%run" in code else code)
    assert result.status == "ok", result.text
    assert result.text == text


def ranks_folder(ranks):
    return ranks.run("import os; os.getcwd()").text.strip().strip("'")


@pytest.mark.deep
def test_an_async_generator_lives_on_between_cells_and_may_be_left(ranks):
    run(ranks, ASYNC)
    assert run(ranks, "left = numbers(); await left.__anext__()").text == "[0-1] Out: 0\n"
    assert run(ranks, "await left.__anext__()").text == "[0-1] Out: 1\n"
    run(ranks, "left = numbers(); await left.__anext__()")
    result = run(ranks, "del left\nimport gc; gc.collect(); print('gone')")
    assert result.text == "[0-1] gone\n"
    run(ranks, "task = asyncio.create_task(later(1))")
    assert run(ranks, "await task").stdout == "[0] Out: 1\n[1] Out: 2\n"


@pytest.mark.deep
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


@pytest.mark.deep
def test_a_traceback_that_is_shown_without_ending_the_cell_is_shown(ranks):
    result = run(ranks, f"%run {ranks_folder(ranks)}/fails.py\nprint('after')")
    assert result.status == "ok"
    assert result.stdout == "[0-1] begun\n[0-1] after\n"
    assert result.stderr.count("not_there") == 2
    failed = run(ranks, "1 / 0")
    assert failed.stderr == ""


def test_plots_need_no_magic(ranks):
    pytest.importorskip("matplotlib")
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


@pytest.mark.deep
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
    assert result.n_messages < 4 + 2 * 8 + 3 * result.seconds  # status lines


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
    assert all(output["data"] for output in result.outputs if "data" in output)
    assert result.n_messages < 20 + 3 * result.seconds  # status lines


@pytest.mark.parametrize(
    ("who", "shown"),
    [
        ("True", "[0] after 0\n[1] after 1\n"),
        ("rank", "[0-1] before\n[0] after 0\n[1] after 1\n"),
    ],
)
def test_lines_go_when_all_ranks_have_cleared_them(ranks, who, shown):
    code = (
        "import time\n"
        "from IPython.display import clear_output\n"
        "print('before')\n"
        f"if {who}: clear_output()\n"
        "print('after', rank)\n"
        "time.sleep(0.5)\n"
    )
    assert run(ranks, code).stdout == shown


def test_a_call_clears_none_of_the_notebooks_own_lines(ranks):
    code = "from IPython.display import clear_output; print(1); clear_output(); print(2)"
    shown = ranks.run(f"print('own'); _ = ws.run({code!r})").stdout
    assert shown.splitlines()[0] == "own"


@pytest.mark.deep
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


def test_rich_text_comes_as_what_it_is_below_its_rank(ranks):
    result = run(ranks, "from IPython.display import HTML\ndisplay(HTML(f'$x_{rank}$'))")
    assert result.status == "ok", result.text
    seen = [(o.get("text", ""), o.get("data", {}).get("text/html", "")) for o in result.outputs]
    for rank in range(2):
        at = next(i for i, (_, rich) in enumerate(seen) if rich == f"$x_{rank}$")
        assert seen[at - 1][0].endswith(f"[{rank}]\n"), seen


def test_bars_are_text_that_ends_in_a_line_for_each_rank(ranks):
    # Bars that say the same, as two as fast as each other may, would be one line of both ranks.
    code = (
        "from tqdm import tqdm, trange\n"
        "for i in tqdm(trange(9, disable=True), desc=f'on{rank}'): pass"
    )
    result = run(ranks, code)
    assert result.status == "ok", result.text
    lines = [line for line in (result.stdout + result.stderr).splitlines() if line]
    assert sorted(line[:8] for line in lines) == ["[0] on0:", "[1] on1:"]
    assert all("9/9" in line for line in lines)
    # The place of the bars is empty at the end, but no empty bundle, of which nbconvert warns.
    shown = [o["data"] for o in result.outputs if o["output_type"] == "display_data"]
    assert all(data == {"text/plain": ""} for data in shown if "▸" not in data["text/plain"])


def test_what_one_stream_flushes_stands_below_what_the_other_has_written(ranks):
    """As a finished bar of tqdm, which flushes standard error, below the prints of its loop."""
    code = "import sys\nprint('x')\nprint('bar', file=sys.stderr, flush=True)\nprint('y')"
    shown = [(o["name"], o["text"]) for o in run(ranks, code).outputs]
    expected = [("stdout", "x"), ("stderr", "bar"), ("stdout", "y")]
    assert shown == [(name, f"[0-1] {text}\n") for name, text in expected]


def test_a_traceback_names_cells_by_the_notebooks_number(ranks):
    assert run(ranks, "def fails():\n    1 / 0").status == "ok"
    number = ranks.run("0").outputs[0]["execution_count"]
    text = ANSI.sub("", run(ranks, "x = 1\nfails()").text)
    assert f"\nCell In[{number + 1}], line 2\n" in text
    assert f"\nCell In[{number - 1}], line 2, in fails()\n" in text


def test_a_traceback_of_code_in_a_call_names_no_cell(ranks):
    assert run(ranks, "def fails():\n    1 / 0").status == "ok"
    text = ANSI.sub("", ranks.run("ws.run('x = 1\\nfails()')").text)
    assert "\nThis cell, line 2\n" in text
    assert re.search(r"\nCell In\[\d+\], line 2, in fails\(\)\n", text)


def test_errors_that_differ_in_their_texts_have_one_traceback(ranks):
    result = run(ranks, "def fails(x):\n    raise ValueError(f'no {x}\\nmore')\nfails(rank)")
    text = ANSI.sub("", result.text)
    assert text.startswith("rank 0:\n")
    assert text.endswith("\nand 1 more like it:\n  rank 1: ValueError: no 1\n")
    assert len(re.findall(r"Cell In\[\d+\], line 2, in fails\(x\)\n", text)) == 1


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


@pytest.mark.deep
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
    both = ranks.run("%distributed output").text
    assert both.startswith("rank 0:\n")
    assert "line 9" in both.partition("\nrank 1:\n")[0]
    assert "\nrank 1:\n" in both


# -- cells that make no sense -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "shown"),
    [
        ("x = 1\nprint((1)\ny = 2", "SyntaxError", "line 2\n    print((1)\n         ^\n"),
        ("if True:\npass", "IndentationError", "line 2\n    pass\n    ^\n"),
        ("if 1:\n\tx = 1\n        y = 2", "TabError", ""),
    ],
)
def test_a_cell_that_is_no_python_is_told_once(ranks, code, kind, shown):
    result = ranks.run(f"%%distributed\n{code}")
    assert result.error.startswith(f"{kind}: ranks 0-1: {kind}: ")
    text = ANSI.sub("", result.text)
    # From Python 3.12 on a TabError is found before the code has its cell's name.
    place = r"Cell In\[\d+\], line " if shown else r"(Cell In\[\d+\], line |File <string>:)3\n"
    assert re.match(rf"ranks 0-1:\n  {place}", text)
    assert shown in text
    assert text.count(f"{kind}: ") == 1
    assert "Traceback" not in text
    assert not own_frames(text)


def test_a_syntax_error_can_be_caught(ranks):
    code = "try: ws.run('1 +')\nexcept SyntaxError as error: print('caught', error)"
    assert ranks.run(code).stdout.startswith("caught ranks 0-1: SyntaxError: invalid syntax")


# -- leaving ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("leave", "said_of_it"),
    [
        ("exit()", f"it {NOT_THE_RANK}"),
        ("exit(keep_kernel=True)", f"it {NOT_THE_RANK}"),
        ("raise SystemExit", f"it {NOT_THE_RANK}"),
        ("import sys; sys.exit(3)", f"3 ({NOT_THE_RANK})"),
        ("import asyncio; await asyncio.sleep(0); exit(1)", f"1 ({NOT_THE_RANK})"),
    ],
)
def test_exit_ends_the_cell_and_not_the_rank(ranks, leave, said_of_it):
    result = ranks.run(f"%%distributed\nkept = rank\n{leave}\nprint('after')")
    assert result.error == f"CellError: ranks 0-1: SystemExit: {said_of_it}"
    assert result.text == f"ranks 0-1:\nSystemExit: {said_of_it}\n"
    # IPython's own `exit` would end the process within a tenth of a second of its loop.
    later = ranks.run("%%distributed\nimport time\ntime.sleep(0.3)\nkept")
    assert said(later) == {(0, "Out: 0"), (1, "Out: 1")}


def test_a_bare_exit_is_a_call_as_in_any_notebook(ranks):
    assert NOT_THE_RANK in ranks.run("%%distributed\nexit").error
    assert ranks.run("%%distributed\n%reset -f").status == "ok"
    assert NOT_THE_RANK in ranks.run("%%distributed\nquit").error


def test_a_cell_that_rebinds_our_names_is_told_once(ranks):
    ranks.end_ranks()  # whose cells may have done so already
    ranks.need_ranks("-n 2")
    told = "phalanx: rank and size and world are not of this world any more, this cell has rebound them"
    first = run(ranks, "size = 100\nworld = 'mine'\nfor rank in range(7): pass")
    assert first.text == f"[0-1] {told}; del rank, size, world brings them back\n"
    assert run(ranks, "size = 101; (rank, size)").text == "[0-1] Out: (6, 101)\n"
    run(ranks, "del rank, size, world")
    code = "rank = rank; (rank, size, world.size())"
    assert said(run(ranks, code)) == {(0, "Out: (0, 2, 2)"), (1, "Out: (1, 2, 2)")}


def test_the_cores_of_a_host_are_divided_among_ranks_and_it_is_said(ranks):
    cores = len(os.sched_getaffinity(0))
    if cores == 1:
        pytest.skip("nothing to divide")
    ranks.end_ranks()
    ranks.run("import os\nkept = os.environ.pop('OMP_NUM_THREADS')")
    try:
        started = ranks.run("%distributed start -n 2 --linger 0")
        threads = run(ranks, "import os; os.environ['OMP_NUM_THREADS']")
    finally:
        ranks.run("os.environ['OMP_NUM_THREADS'] = kept\n%distributed stop")
    line = f"ranks share the cores: OMP_NUM_THREADS={cores // 2} in each (--env changes it)"
    assert line in started.stdout.splitlines()
    assert threads.text == f"[0-1] Out: '{cores // 2}'\n"


@pytest.mark.parametrize("lose", ["%reset -f", "del rank, size, px, np, world"])
def test_a_rank_knows_who_it_is_after(ranks, lose):
    assert ranks.run(f"%%distributed\nmine = 1\nrank = 'mine'\n{lose}").status == "ok"
    result = ranks.run("%%distributed\n(rank, size, int(px.all_sum(np.ones(1))[0]), world.size())")
    assert said(result) == {(0, "Out: (0, 2, 2, 2)"), (1, "Out: (1, 2, 2, 2)")}, result.text


@pytest.mark.parametrize(
    "stream", ["None", "type('Tee', (), {'write': lambda self, text: len(text)})()"]
)
def test_a_cell_that_leaves_no_stdout_ends(ranks, stream):
    code = f"import sys\nsys.stdout = {stream}"
    assert ranks.run(f"%%distributed\n{code}").status == "ok"
    result = ranks.run("%%distributed\nprint('heard', rank)")
    assert said(result) == {(0, "heard 0"), (1, "heard 1")}, result.text


def test_who_waits_for_a_rank_that_left_the_cell_is_freed(ranks):
    with within(PATIENCE_S):  # a message that cannot be sent is waited for 60 s
        result = ranks.run("%%distributed\nif rank == 1: exit()\npx.all_sum(1)")
    first, second = result.error.splitlines()
    assert first == f"CellError: rank 1: SystemExit: it {NOT_THE_RANK}"
    assert second.startswith("then rank 0: ")


def test_exit_in_a_thread_ends_the_thread(ranks):
    code = "import threading\nt = threading.Thread(target=exit)\nt.start()\nt.join()\n'here'"
    assert said(ranks.run(f"%%distributed\n{code}")) == {(0, "Out: 'here'"), (1, "Out: 'here'")}


# -- what cannot be shown -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (r"sys.stdout.buffer.write(b'caf\xc3\xa9 \xff|\n'); None", "café \ufffd|"),
        (r"print('a', end=''); _ = sys.stdout.buffer.write(b'b'); print('c')", "abc"),
        (r"_ = os.write(1, b'\xff\xfe|\n')", "\ufffd\ufffd|"),
        (r"print('half \ud800 of it')", r"half \ud800 of it"),
        (r"print(os.fsdecode(b'caf\xe9'))", r"caf\udce9"),
        (r"'\ud800'", r"Out: '\ud800'"),
    ],
)
def test_text_that_no_message_can_carry(ranks, code, shown):
    with within(PATIENCE_S):  # a message that cannot be sent is waited for 60 s
        result = ranks.run(f"%%distributed\nimport os, sys\n{code}")
    assert result.status == "ok", result.text
    assert said(result) == {(0, shown), (1, shown)}
    assert result.stderr == ""


@pytest.mark.parametrize("code", [r"raise ValueError('\ud800')", r"{}['\ud800']"])
def test_errors_that_no_message_can_carry(ranks, code):
    result = ranks.run(f"%%distributed\n{code}")
    assert r"\ud800" in result.error


@pytest.mark.parametrize(
    "body",
    [
        "def __str__(self): raise RuntimeError('inside')",
        "def __str__(self): return 5",
        "def __str__(self): raise SystemExit(3)",
        "def __str__(self): raise KeyboardInterrupt",
        "def _render_traceback_(self): raise SystemExit(3)",
        "def _render_traceback_(self): return [1, None]",
        "__cause__ = property(lambda self: 1 / 0)",
        "__str__ = lambda self: BadText('its text')",
        "metaclass=Nameless",
    ],
)
def test_an_error_whose_methods_raise_harms_no_later_error(ranks, body):
    odd = (
        f"Exception, {body}): pass" if body.startswith("metaclass") else f"Exception):\n    {body}"
    )
    result = ranks.run(
        "%%distributed\n"
        "class BadText(str):\n    def __len__(self): raise OSError\n    __str__ = __len__\n"
        "class Nameless(type):\n    __name__ = property(lambda kind: 1 / 0)\n"
        f"class Odd({odd}\nraise Odd()"
    )
    assert result.status == "error"
    assert "ranks 0-1: Odd" in result.error
    text = ANSI.sub("", result.text)
    assert not own_frames(text)
    assert "unregistering" not in text
    result = ranks.run("%%distributed\npx.all_sum('x')")
    assert result.error.startswith("ValueError: ")
    assert not own_frames(ANSI.sub("", result.text))


@pytest.mark.parametrize(
    "code",
    [
        "raise GROUP('several', [KeyError(1)])",
        "try: raise GROUP('several', [KeyError(1)])\nexcept Exception as e: raise OSError from e",
        "import asyncio\nasync with asyncio.TaskGroup() as tasks: tasks.create_task(fails())",
        "class Odd(GROUP):\n    def __str__(self): raise OSError\nraise Odd('one', [KeyError(1)])",
        "class Odd(Exception):\n    def _render_traceback_(self): raise OSError\nraise Odd",
    ],
)
def test_an_error_that_ipython_only_prints_is_not_the_one_before(ranks, code):
    run(ranks, "import builtins\nGROUP = getattr(builtins, 'ExceptionGroup', OSError)")
    earlier = run(ranks, "async def fails(): px.all_sum('x')\nlen(earlier)")
    assert earlier.error.startswith("NameError: ")
    result = run(ranks, code)
    text = ANSI.sub("", result.text)
    assert result.status == "error"
    assert "earlier" not in text
    assert not own_frames(text)
    assert re.search(r"Cell In\[\d+\], line ", text)


def test_an_error_that_the_user_handled_is_shown_without_our_frames(ranks):
    code = "try: px.all_sum('x')\nexcept ValueError as e: raise OSError('mine') from e"
    text = ANSI.sub("", run(ranks, code).text)
    assert "ValueError: " in text
    assert "The above exception was the direct cause" in text
    assert "OSError: mine" in text
    assert not own_frames(text)


def test_a_handler_of_errors_that_raises_is_replaced_by_ours(ranks):
    ranks.run(
        "%%distributed\ndef fail(*error): raise OSError\n"
        "get_ipython().set_custom_exc((ValueError,), fail)\nraise ValueError(1)"
    )
    result = ranks.run("%%distributed\npx.all_sum('x')")
    assert result.error.startswith("ValueError: ")
    assert not own_frames(ANSI.sub("", result.text))


FORKS = """\
import multiprocessing, os, sys, time
forks = multiprocessing.get_context("fork")
def run(target, *arguments):
    child = forks.Process(target=target, args=arguments)
    child.start()
    child.join()
    return child.exitcode
"""


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("run(print, 'of a child')", "of a child"),
        ("run(print, 'of', 'a', 'child')", "of a child"),
        ("with forks.Pool(1) as pool: pool.map(print, ['of a pool'])", "of a pool"),
        ("run(lambda: sys.stderr.write('of a child'))", "of a child"),
        ("run(lambda: sys.stdout.buffer.write(b'bytes\\n'))", "bytes"),
        ("run(lambda: run(print, 'of a grandchild'))", "of a grandchild"),
        ("from IPython.display import display\nrun(display, 5)", "5"),
        ("run(lambda: 1 / 0)", "ZeroDivisionError: division by zero"),
        (
            "if not (pid := os.fork()): raise ValueError('in a child')\n_ = os.waitpid(pid, 0)",
            "in a",
        ),
    ],
)
def test_forked_children_show_what_they_print(ranks, code, shown):
    result = ranks.run(f"%%distributed --ranks 1\n{FORKS}print('before')\n{code}\nprint('after')")
    assert result.status == "ok", result.text
    lines = (result.stdout + result.stderr).splitlines()
    assert "[1] before" in lines
    assert "[1] after" in lines
    assert any(line.startswith("[1] ") and shown in line for line in lines)


def test_lines_of_forked_children_are_whole(ranks):
    code = (
        f"{FORKS}def say(name):\n    for _ in range(50): print(name, name, name)\n"
        "children = [forks.Process(target=say, args=(name,)) for name in 'ab']\n"
        "for child in children: child.start()\n"
        "for child in children: child.join()"
    )
    lines = ranks.run(f"%%distributed --ranks 1\n{code}").stdout.splitlines()
    assert sorted(lines) == ["[1] a a a"] * 50 + ["[1] b b b"] * 50


def test_forked_children_end_by_sigterm(ranks):
    code = (
        f"{FORKS}child = forks.Process(target=time.sleep, args=(600,))\nchild.start()\n"
        "child.terminate()\nchild.join()\nprint(child.exitcode)\n"
        "with forks.Pool(2) as pool: _ = pool.map_async(time.sleep, [600, 600])\nprint('over')"
    )
    with within(PATIENCE_S):
        result = ranks.run(f"%%distributed\n{code}")
    assert result.stdout.splitlines() == ["[0-1] -15", "[0-1] over"]


def test_a_stop_interrupts_what_the_cell_has_started(ranks):
    # It stays until it is told: if it ended while the interrupt is on its way to Python, Python would
    # have its status and lose it.
    shell = "trap 'echo trapped; read line; exit 7' INT; echo go; while :; do sleep 0.01; done"
    code = (
        f"{FORKS}import subprocess\n"
        "def wait_long():\n"
        "    try:\n        print('go', flush=True)\n        time.sleep(600)\n"
        "    except KeyboardInterrupt: sys.exit(8)\n"
        "child = forks.Process(target=wait_long)\nchild.start()\n"
        f'shell = subprocess.Popen(["sh", "-c", "{shell}"], stdin=subprocess.PIPE)\n'
        "try: shell.wait()\n"
        "except KeyboardInterrupt:\n"
        "    child.join()\n    shell.stdin.close()\n"
        "    print(shell.wait(), child.exitcode)\n    raise\n"
    )
    cell = ranks.submit(f"%%distributed --ranks 1\n{code}")
    cell.until(lambda result: result.stdout.count("go") == 2)
    with within(PATIENCE_S):
        ranks.interrupt()
        result = cell.result()
    assert result.error.startswith("KeyboardInterrupt")
    assert result.stdout.splitlines() == ["[1] go", "[1] go", "[1] trapped", "[1] 7 8"]


def test_a_forked_child_that_reaches_the_end_of_its_cell_ends(ranks):
    result = ranks.run("%%distributed --ranks 1\nimport os\npid = os.fork()")
    assert result.status == "ok"
    with within(PATIENCE_S):
        result = ranks.run("%%distributed --ranks 1\nos.waitpid(pid, 0)[1]")
    assert result.stdout == "[1] Out: 0\n"


@pytest.mark.parametrize(
    ("write", "n"), [("os.write(1, b'raw %d\\n' % i)", 200), ("os.system(f'echo raw {i}')", 20)]
)
def test_what_is_written_to_a_descriptor_stands_where_it_was_written(ranks, write, n):
    # A print comes right behind: the thread that reads the descriptor is not there yet.
    code = f"import os\nfor i in range({n}):\n    {write}\n    print(i)"
    result = ranks.run(f"%%distributed --ranks 1\n{code}")
    wanted = [f"[1] {text}" for i in range(n) for text in (f"raw {i}", str(i))]
    assert result.stdout.splitlines() == wanted


# -- too much -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "print('x' * 20_000_000)",
        pytest.param(
            "import os\nn = 0\n"
            "while n < 20_000_000: n += os.write(1, b'x' * (20_000_000 - n))\nprint()",
            marks=pytest.mark.deep,
        ),
    ],
)
def test_a_line_of_twenty_megabytes(ranks, code):
    result = ranks.run(f"%%distributed\n{code}")
    assert result.status == "ok"
    assert result.stdout == "[0-1] " + "x" * 100_000 + " … and 19,900,000 more characters\n"
    kept = ranks.run("%distributed output 0").stdout
    assert "bytes before this are left out" in kept[:100]
    assert kept.rstrip().endswith("x" * 100_000)


def test_a_long_value_and_a_long_error_are_cut(ranks):
    result = ranks.run("%%distributed\n'v' * 300_000")
    assert result.stdout == "[0-1] Out: '" + "v" * 99_999 + " … and 200,002 more characters\n"
    result = ranks.run("%%distributed\nraise ValueError('e' * 300_000)")
    assert result.error.endswith("e … and 200,000 more characters")
    assert len(result.text) < 300_000


LATE = """\
import os, subprocess, threading, time
from concurrent.futures import ThreadPoolExecutor
def work():
    while not os.path.exists({go!r}): time.sleep(0.01)
    print('late')
    {more}
"""


@pytest.fixture
def at_once(ranks):
    with shown_at_once(ranks):
        yield ranks


def test_what_a_thread_shows_after_its_cell_stands_below_that_cell(at_once, tmp_path):
    """Also while another cell runs."""
    ranks = at_once
    more = "display({'text/html': '<b>late</b>'}, raw=True)\n    1 / rank"
    begin = f"{LATE.format(go=str(tmp_path / 'go'), more=more)}print('begun')\n"
    start = "thread = threading.Thread(target=work)\nthread.start()"
    first = ranks.submit(f"%%distributed\n{begin}{start}")
    assert said(first.result()) == {(0, "begun"), (1, "begun")}
    (tmp_path / "go").touch()
    joined = run(ranks, "thread.join()\nprint('joined')")
    assert said(joined) == {(0, "joined"), (1, "joined")}

    def has_all(its):
        lines = {line for line in its.stdout.splitlines() if line.endswith("late")}
        return (
            lines in ({"[0-1] late"}, {"[0] late", "[1] late"})
            and {"text/html": "<b>late</b>"} in [o.get("data") for o in its.outputs]
            and "[0] ZeroDivisionError: division by zero\n" in its.stderr
        )

    assert first.until_late(has_all).status == "ok"


def test_what_a_pool_or_a_process_prints_later_stands_below_the_last_cell(at_once, tmp_path):
    """A call is no cell."""
    ranks = at_once
    go = str(tmp_path / "go")
    until_go = f"while [ ! -e {go} ]; do sleep 0.01; done"
    run(ranks, "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)")
    run(ranks, "pool.submit(int).result()")  # its thread is of this cell
    last = ranks.submit(
        f"%%distributed\n{LATE.format(go=go, more='')}"
        f"pool.submit(work)\nout = subprocess.Popen(['sh', '-c', '{until_go}; echo out'])\n"
        "print('begun')"
    )
    assert said(last.result()) == {(0, "begun"), (1, "begun")}
    assert ranks.run("ws.pull('rank')").text == "[0, 1]\n"
    (tmp_path / "go").touch()
    late = {(rank, text) for rank in (0, 1) for text in ("begun", "late", "out")}
    assert said(last.until_late(lambda its: said(its) >= late)) == late
    run(ranks, "out.wait()\npool.shutdown()")


def test_output_comes_where_no_descriptor_is_left(ranks):
    # New ranks: the first output of a thread, and the first long one, are what opened descriptors.
    ranks.end_ranks()
    ranks.need_ranks("-n 2")
    take_all = """\
import os, resource, threading
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
held = []
try:
    while True: held.append(os.dup(1))
except OSError: pass
"""
    # More than a pipe holds, and than a message that is copied; then from a thread that is new.
    say = """\
n = 0
while n < 300_000: n += os.write(1, b'x' * 99 + b'\\n')
from threading import Thread
thread = Thread(target=print, args=('from a thread',))
thread.start(); thread.join()
print('and the rest')
"""
    result = ranks.run(f"%%distributed\n{take_all}{say}", timeout=PATIENCE_S)
    *many, thread, rest = result.stdout.splitlines()
    assert many == ["[0-1] " + "x" * 99] * 3000
    assert [thread, rest] == ["[0-1] from a thread", "[0-1] and the rest"]
    assert result.stderr == ""
    ranks.run(
        "%%distributed\nfor fd in held: os.close(fd)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, limits)"
    )
