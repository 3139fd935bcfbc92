"""The magics in a real kernel, driven as a front end drives it."""

from __future__ import annotations

import os
import re
import signal

import psutil
import pytest
from support.notebooks.kernel_driver import KernelDriver
from support.notebooks.notebook_kernel import NotebookKernel
from support.own_frames import own_frames
from support.patience import ASKED_TOGETHER, TOGETHER
from support.programs.processes import wait_gone
from support.promise import BOUND_S, within

from phalanx.workspace import parse_ranks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kernel():
    with NotebookKernel(ASKED_TOGETHER, TOGETHER) as driver:
        yield driver


@pytest.fixture
def ranks(kernel):
    """The kernel with three ranks."""
    kernel.need_ranks("-n 3")
    return kernel


def lines(result):
    return sorted(result.stdout.splitlines())


def who_said(result, text):
    """Ranks that printed a line: equal lines come together, but only within a moment."""
    ranks = set()
    for line in result.stdout.splitlines():
        label, _, said = line.partition("] ")
        if said == text:
            ranks.update(parse_ranks(label[1:], 64))
    return ranks


def test_the_maker_of_views_has_a_name_and_help(ranks):
    said = ranks.run("help(ws.make_view)").stdout
    assert "Help on function make_view" in said
    assert "Make the view of one cell in this notebook." in said


def test_a_cell_of_one_rank(ranks):
    assert ranks.run("%%rank 1 --label host\nrank").stdout.endswith(" 1] Out: 1\n")
    assert "--ranks: expected one argument" in ranks.run("%%rank\nrank").text


def test_lines_and_values_have_their_rank(ranks):
    result = ranks.run(
        "%%distributed --ranks 0,2\nimport sys\nprint('to', end=' ')\nprint('all')\n"
        "print('err', file=sys.stderr)\nrank * 10"
    )
    assert who_said(result, "to all") == {0, 2}
    assert lines(result)[-2:] == ["[0] Out: 0", "[2] Out: 20"]
    assert "] err" in result.stderr


def test_a_page_that_is_loaded_anew_is_told_once_where_the_output_is(ranks):
    """What a cell prints while no page is open is shown by no front end."""
    said = "phalanx: this page is new: %distributed output shows what the ranks have printed so far"
    assert ranks.run("%%distributed --ranks 0\nprint('missed')").stderr == ""
    ranks.reload()
    assert ranks.run("%distributed stacks").stderr == f"{said}\n"
    assert ranks.run("%%distributed\n1").stderr == ""
    ranks.reload()
    result = ranks.run("%distributed output 0")
    assert "missed\n" in result.stdout
    assert result.stderr == ""
    ranks.reload()
    assert ranks.run("%%distributed\nprint('on')").text == f"{said}\n[0-2] on\n"


def test_output_costs_its_length(ranks):
    result = ranks.run(
        "%%distributed --ranks 0-1\nfor i in range(4000): print(f'line {i:018d} {rank}')"
    )
    sent = sum(len(output.get("text", "")) for output in result.outputs)
    assert len(set(result.stdout.splitlines())) == 2 * 4000
    assert sent == 2 * 4000 * len("[0] line 000000000000000000 0\n")


def test_a_rank_that_reads_more_asks_for_more(ranks):
    code = "%%distributed\na = input('a? ')\nb = input('b? ') if rank == 1 else ''\nprint(a, b)"
    result = ranks.run(code, stdin=["x", "y"])
    assert who_said(result, "x ") == {0, 2}
    assert who_said(result, "x y") == {1}
    assert [prompt.text for prompt in result.prompts] == ["[0-2] a? ", "[1] b? "]


def test_getpass_is_hidden(ranks):
    code = "%%distributed\nimport getpass\nif rank == 0: print(len(getpass.getpass('key? ')))"
    result = ranks.run(code, stdin=["secret"])
    assert lines(result) == ["[0] 6"]
    assert result.prompts[0].is_password
    result = ranks.run("%%distributed\nlen(getpass.getpass(echo_char='*'))", stdin=["four"])
    assert [prompt.text for prompt in result.prompts] == ["[0-2] Password: "]
    assert who_said(result, "Out: 4") == {0, 1, 2}


def test_end_of_input(ranks):
    result = ranks.run("%%distributed --ranks 0\ninput('? ')", stdin=["\x04"])
    assert "EOFError" in result.error


def test_an_error_is_shown_once_with_its_ranks_and_ends_the_cell(ranks):
    result = ranks.run("%%distributed\ndef f(x):\n    return 1 / x\nf(0)")
    assert result.status == "error"
    assert result.error == "ZeroDivisionError: ranks 0-2: ZeroDivisionError: division by zero"
    assert result.text.count("Traceback (most recent call last)") == 1
    assert not own_frames(result.text)


def test_ranks_that_only_waited_are_freed_and_told_in_one_line(ranks):
    code = "%%distributed\nif rank == 1: raise KeyError('mine')\npx.all_sum(1)"
    result = ranks.run(code)
    first, *_, last = result.error.splitlines()
    assert first.startswith("KeyError: rank 1: KeyError: 'mine'")
    assert last.startswith("then ranks 0,2: RankFailure: rank 1 on")
    assert result.text.count("Traceback (most recent call last)") == 1
    caught = ranks.run(
        "try:\n    get_ipython().run_cell_magic('distributed', '', '{}[0]')\n"
        "except KeyError as error:\n    print('caught', type(error).__name__)"
    )
    assert caught.stdout == "caught KeyError\n"


def test_a_mistake_in_a_call_shows_the_users_line_only(ranks):
    result = ranks.run("%%distributed\nresult = px.broadcast(1.0, root=7)")
    assert "root" in result.error
    assert "----> " in re.sub(r"\x1b\[[0-9;]*m", "", result.text)
    assert not own_frames(result.text)
    assert lines(ranks.run("%%distributed\npx.all_sum(1)")) == ["[0-2] Out: 3"]


@pytest.mark.promise
@pytest.mark.parametrize(
    "body",
    [
        "while True: time.sleep(0.01)",
        "await asyncio.sleep(60)",
        "px.all_sum(1) if rank else time.sleep(60)",
        "while True: pass",
    ],
)
def test_stop_ends_the_cell_and_the_next_one_runs(ranks, body):
    cell = ranks.submit(f"%%distributed\nimport time, asyncio\nprint('go')\n{body}", stdin=None)
    cell.until(lambda result: who_said(result, "go") == {0, 1, 2})
    with within():
        ranks.interrupt()
        result = cell.result()
    assert result.error.startswith("KeyboardInterrupt")
    again = ranks.run("%%distributed\npx.all_sum(rank)")
    assert lines(again) == ["[0-2] Out: 3"], again.text


def test_text_of_ranks_never_becomes_html(ranks):
    result = ranks.run("%%distributed\nprint('<img src=x onerror=alert(1)>')\n'<b>'")
    assert "text/html" not in result.mimes()


def test_still_pictures(ranks):
    ranks.run("%%distributed\npx.all_sum(rank)")
    for action, words in (("topology", "3 ranks"), ("monitor", "of the time in communication")):
        result = ranks.run(f"%distributed {action} --still")
        assert "image/svg+xml" in result.mimes()
        assert words in result.text


def test_every_cell_runs_on_the_ranks_while_auto_is_on(ranks):
    assert ranks.run("%autodistributed on").status == "ok"
    try:
        assert lines(ranks.run("size * 2")) == ["[0-2] Out: 6"]
        assert "] Wall time:" in ranks.run("\n%%time\nx = 1").stdout
        assert ranks.run("%%local\nhere = 5\nprint('here')").stdout == "here\n"
        assert "NameError" in ranks.run("%%local\nsize").text
        assert lines(ranks.run("%%distributed --ranks 1\nrank")) == ["[1] Out: 1"]
        assert "3 ranks" in ranks.run("%distributed status").stdout
    finally:
        assert ranks.run("%autodistributed off").status == "ok"
    assert ranks.run("print(here)").stdout == "5\n"
    assert "is on or off" in ranks.run("%autodistributed maybe").stderr


def test_functions_of_the_notebook_run_code_on_ranks(ranks):
    result = ranks.run(
        "def f(r):\n    return ws.run('print(rank); rank * 3', ranks=[r])\nf(2)[0].value"
    )
    assert result.stdout.splitlines() == ["[2] 2", "[2] Out: 6"]
    assert "'6'" in result.text


def test_a_dead_rank_is_told_at_once_the_rest_go_on_and_it_is_replaced(ranks):
    ranks.run("%%distributed\nkept = rank")
    (pid,) = (
        int(line.split()[-1])
        for line in lines(ranks.run("%%distributed --ranks 2\nimport os; os.getpid()"))
    )
    cell = ranks.submit(
        "%%distributed\nimport time\nprint('go')\nif rank == 2: time.sleep(60)\npx.all_sum(1)"
    )
    cell.until(lambda result: who_said(result, "go") == {0, 1, 2})
    os.kill(pid, signal.SIGKILL)
    result = cell.result()
    assert result.error.startswith("RankFailure: rank 2")
    said = "rank 2 was killed by signal 9 (SIGKILL); `%distributed restart 2` replaces it"
    assert said in result.stderr
    assert "dead" in ranks.run("%distributed status").stdout
    result = ranks.run("%%distributed\nkept")
    assert lines(result) == ["[0] Out: 0", "[1] Out: 1"]
    without = f"this cell runs without rank 2, which {said.removeprefix('rank 2 ')}"
    assert without in result.stderr
    replaced = ranks.run("%distributed restart 2").stdout
    assert replaced == "rank 2 is new; ranks 0-1 have all they had\n"
    assert ranks.run("%%distributed\npx.all_sum(rank)").stdout == "[0-2] Out: 3\n"
    shown = ranks.run("%%distributed\nprint(globals().get('kept'))").stdout
    assert set(shown.splitlines()) == {"[0] 0", "[1] 1", "[2] None"}


@pytest.mark.promise
def test_a_restarted_and_a_killed_kernel_leave_nothing():
    with KernelDriver() as driver:
        for end in (driver.restart, driver.kill):
            driver.run("%load_ext phalanx")
            assert driver.run("%distributed start -n 1 --linger 0").status == "ok"
            # The supervisor, the controller, the rank.
            started = psutil.Process(driver.pid).children(recursive=True)
            assert len(started) >= 3
            end()
            assert wait_gone(started, BOUND_S) == []
