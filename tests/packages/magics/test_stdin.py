"""Questions and debuggers on ranks, in a real kernel driven as a front end drives it."""

from __future__ import annotations

import os
import signal

import pytest
from support.notebooks.notebook_kernel import NotebookKernel
from support.patience import ASKED_TOGETHER, asked_within
from support.promise import within

from phalanx.workspace import parse_ranks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kernel():
    with NotebookKernel(ASKED_TOGETHER) as driver:
        yield driver


@pytest.fixture
def ranks(kernel):
    """The kernel with three ranks."""
    kernel.need_ranks("-n 3")
    return kernel


@pytest.fixture
def ranks_apart(ranks):
    """The same, where some are asked while others run on: those are not waited for for long."""
    ranks.run(asked_within(1.5))
    yield ranks
    ranks.run(ASKED_TOGETHER)


@pytest.fixture(autouse=True)
def _whole(ranks):
    """After each test: every rank runs cells, none is traced, pdb's names are gone."""
    yield
    code = "%%distributed\nimport sys\n(sys.gettrace(), '__return__' in globals(), px.all_sum(1))"
    result = ranks.run(code)
    if not all_say(result, "Out: (None, False, 3)"):
        ranks.end_ranks()  # the next test is to have good ones
        pytest.fail(result.text)


def shown(result):
    return sorted(result.stdout.splitlines())


def said(result):
    """Lines as (rank, text), however they were shown together."""
    found = []
    for line in result.stdout.splitlines():
        label, _, text = line.partition("] ")
        found += [(rank, text) for rank in parse_ranks(label[1:], 3)]
    return found


def all_say(result, text):
    return {rank for rank, line in said(result) if line == text} == {0, 1, 2}


def prompts(result):
    return [prompt.text for prompt in result.prompts]


def stop(cell, kernel):
    with within():
        kernel.interrupt()
        return cell.result()


# -- sys.stdin ----------------------------------------------------------------------------------


def test_stdin_is_a_file_over_the_typed_lines(ranks):
    code = (
        "%%distributed\nimport sys\na = sys.stdin.readline()\nb = sys.stdin.readline(1)\n"
        "rest = list(sys.stdin)\n(a, b, rest, sys.stdin.read(), sys.stdin.isatty())"
    )
    result = ranks.run(code, stdin=["one", "two", "three", "\x04"])
    value = ("one\n", "t", ["wo\n", "three\n"], "", False)
    assert all_say(result, f"Out: {value}")
    assert prompts(result) == ["[0-2] stdin: "] * 4


def test_a_thread_may_ask_and_output_goes_on_meanwhile(ranks):
    code = (
        "%%distributed\nimport threading, sys\nheard = []\n"
        "asker = threading.Thread(target=lambda: heard.append(input('who? ') + sys.stdin.read()))\n"
        "asker.start()\nprint('meanwhile')\nasker.join()\nheard"
    )
    cell = ranks.submit(code)
    cell.until(lambda result: result.prompts and all_say(result, "meanwhile"))
    ranks.type_line("ann")
    cell.until(lambda result: len(result.prompts) == 2)
    ranks.type_line("\x04")
    assert all_say(cell.result(), "Out: ['ann']")


def test_a_late_rank_hears_what_was_typed(ranks_apart):
    code = (
        # Those that ask do so at the same time.
        "%%distributed\nworld.barrier()\nif rank < 2: print(rank, input('who? '))\n"
        "world.barrier()\nif rank == 2: print(rank, input('who? '))"
    )
    result = ranks_apart.run(code, stdin=["ann"])
    assert shown(result) == [f"[{rank}] {rank} ann" for rank in range(3)]
    assert prompts(result) == ["[0-1] who? "]


# -- debuggers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("enter", "prompt"),
    [
        ("breakpoint()", "ipdb> "),
        ("import pdb; pdb.set_trace()", "(Pdb) "),
        ("from IPython.core.debugger import set_trace; set_trace()", "ipdb> "),
    ],
)
def test_one_command_drives_all_ranks(ranks, enter, prompt):
    code = (
        f"%%distributed\ndef f(x):\n    {enter}\n    y = x + 1\n    return y\nprint('got', f(rank))"
    )
    result = ranks.run(code, stdin=["n", "p y * 100", "c"])
    for rank in range(3):
        assert (rank, str((rank + 1) * 100)) in said(result)
        assert (rank, f"got {rank + 1}") in said(result)
    assert prompts(result) == [f"[0-2] {prompt}"] * 3


def test_what_is_said_stands_in_the_order_of_the_commands(ranks):
    code = "%%distributed\nfor i in range(1):\n    breakpoint()\n    x = 1\nprint('end')"
    cell = ranks.submit(code)
    for number, command in enumerate(["p 11", "p 22", "c"]):
        cell.until(lambda result, n=number: len(result.prompts) > n)
        ranks.type_line(command)
        if command != "c":
            cell.until(lambda result, text=command[2:]: all_say(result, text))
    texts = [text for _, text in said(cell.result()) if text in {"11", "22", "end"}]
    assert texts == ["11"] * 3 + ["22"] * 3 + ["end"] * 3


def test_one_rank_is_answered_alone(ranks):
    code = "%%distributed\nfor x in [rank]:\n    breakpoint()\n    pass"
    typed = ["@2 p x + 10", "@9 p x", "@0-1 c", "@1 p x", "@2 p x + 20", "c"]
    result = ranks.run(code, stdin=typed)
    assert prompts(result) == ["[0-2] ipdb> "] * 3 + ["[2] ipdb> "] * 3
    assert {"[2] 12", "[2] 22"} <= set(shown(result))
    assert result.stderr == (
        "phalanx: @9: there is no rank 9: the ranks are 0 to 2\n"
        "phalanx: @1: rank 1 does not wait for a line; rank 2 does\n"
    )


@pytest.mark.deep
def test_a_rank_that_stops_later_hears_no_old_command(ranks_apart):
    code = (
        "%%distributed\nworld.barrier()\nif rank == 2: world.barrier()\nfor x in [rank]:\n    breakpoint()\n    pass\n"
        "if rank < 2: world.barrier()"
    )
    result = ranks_apart.run(code, stdin=["p x + 10", "c", "p x + 10", "c"])
    assert prompts(result) == ["[0-1] ipdb> "] * 2 + ["[2] ipdb> "] * 2
    assert [line for line in shown(result) if line[-2:-1] == "1"] == ["[0] 10", "[1] 11", "[2] 12"]


def test_ranks_at_different_prompts_are_asked_apart(ranks):
    code = (
        "%%distributed\nif rank == 1: print('name', input('name? '))\n"
        "else:\n    breakpoint()\n    pass"
    )
    cell = ranks.submit(code)
    cell.until(lambda result: result.prompts)
    ranks.type_line("@1 ann")
    cell.until(lambda result: len(result.prompts) == 2 and "[1] name ann" in result.stdout)
    ranks.type_line("c")
    assert prompts(cell.result()) == ["[0,2] ipdb> "] * 2


def test_stepping_goes_from_statement_to_statement(ranks):
    code = "%%distributed --ranks 0\nbreakpoint()\ny = 2\nz = y + 1\nz"
    result = ranks.run(code, stdin=["n", "n", "n", "n"])
    stops = [line for line in result.stdout.splitlines() if line.startswith("[0] > ")]
    assert [line.count("module") for line in stops] == [1] * 4
    assert result.stdout.endswith("[0] Out: 3\n")


@pytest.mark.parametrize("typed", ["q", "\x04"])
def test_quitting(ranks, typed):
    result = ranks.run("%%distributed\nbreakpoint()\nprint('no')", stdin=[typed])
    assert result.error == "CellError: ranks 0-2: BdbQuit: the debugger was quit"
    assert "no\n" not in result.stdout


def test_a_breakpoint_in_a_thread_and_in_a_task(ranks):
    body = "    breakpoint()\n    print('a', 1)\n"
    code = f"import threading\ndef f():\n{body}t = threading.Thread(target=f)\nt.start()\nt.join()"
    assert all_say(ranks.run(f"%%distributed\n{code}", stdin=["c"]), "a 1")
    code = f"import asyncio\nasync def f():\n{body}await asyncio.create_task(f())"
    assert all_say(ranks.run(f"%%distributed\n{code}", stdin=["c"]), "a 1")


@pytest.mark.promise
@pytest.mark.parametrize(
    "body",
    [
        "for i in range(3): breakpoint()",
        "import pdb\nfor i in range(3): pdb.set_trace()",
        "import asyncio\nawait asyncio.sleep(0)\nbreakpoint()",
        "import asyncio\nawait asyncio.sleep(0)\ninput('? ')",
        "import sys\nsys.stdin.read()",
        "while True:\n    try: input('? ')\n    except Exception: pass",
    ],
)
def test_stop_at_a_prompt(ranks, body):
    cell = ranks.submit(f"%%distributed\n{body}\nprint('no')")
    cell.until(lambda result: bool(result.prompts))
    result = stop(cell, ranks)
    assert result.error == "KeyboardInterrupt: "
    assert "no\n" not in result.stdout
    assert len(result.prompts) == 1


@pytest.mark.promise
def test_stop_while_the_program_runs_on_after_pdb(ranks):
    code = "import pdb, time\npdb.set_trace()\nprint('go')\ntime.sleep(60)"
    cell = ranks.submit(f"%%distributed\n{code}", stdin=["c"])
    cell.until(lambda result: all_say(result, "go"))
    assert stop(cell, ranks).error == "KeyboardInterrupt: "


# -- post mortem --------------------------------------------------------------------------------


def test_post_mortem(ranks):
    assert ranks.run("%%distributed\ndef f(x): return x / 0\nf(rank + 7)").status == "error"
    result = ranks.run("%%distributed --ranks 1-2\n%debug", stdin=["p x", "q"])
    assert result.status == "ok"
    assert {"[1] 8", "[2] 9"} <= set(shown(result))
    result = ranks.run("%distributed debug 2", stdin=["p x", "u", "q"])
    assert result.status == "ok", result.text
    assert "[2] 9" in shown(result)
    assert prompts(result) == ["[2] ipdb> "] * 3
    cell = ranks.submit("%distributed debug 0")
    cell.until(lambda result: bool(result.prompts))
    assert stop(cell, ranks).error.startswith("KeyboardInterrupt")
    assert "[0] 7" in shown(ranks.run("%distributed debug 0", stdin=["p x", "q"]))


def test_post_mortem_without_ranks_opens_those_that_failed(ranks):
    code = "%%distributed\nif rank == 1: fails = rank / 0\nworld.barrier()"
    assert ranks.run(code).error.startswith("ZeroDivisionError: rank 1: ")
    for line in ("%distributed debug", "%distributed debug"):  # which is no cell itself
        result = ranks.run(line, stdin=["p rank + 10", "q"])
        assert result.stderr == ""
        assert "[1] 11" in shown(result)
        assert prompts(result) == ["[1] ipdb> "] * 2
    assert ranks.run("%%distributed --ranks 0\n1").status == "ok"
    refused = ranks.run("%distributed debug").text
    assert "nothing to debug: the last cell has failed on no rank; %distributed debug " in refused


def test_post_mortem_of_an_earlier_cell_says_so(ranks):
    ranks.run("%%distributed\nold = rank + 20\n{}['a' * rank]")
    ranks.run("%%distributed --ranks 1\n1 / 0")
    result = ranks.run("%distributed debug 0-2", stdin=["q"])
    assert result.stderr == (
        "phalanx: the last error of rank 0 is of an earlier cell: KeyError: ''\n"
        "phalanx: the last error of rank 2 is of an earlier cell: KeyError: 'aa'\n"
    )
    assert prompts(result) == ["[0-2] ipdb> "]
    assert ranks.run("%distributed debug 1", stdin=["q"]).stderr == ""


def test_post_mortem_after_exit_begins_in_the_cell(ranks):
    ranks.run("%%distributed\nmine = 5\nexit()")
    result = ranks.run("%distributed debug 1", stdin=["p mine + 1", "q"])
    assert "[1] 6" in shown(result)
    assert "rank/cell.py" not in result.stdout


def test_exit_in_a_console_goes_back_to_where_it_was_opened(ranks):
    ranks.run("%%distributed\ndef f(x): return x / 0\nf(rank + 7)")
    result = ranks.run("%distributed debug 1", stdin=["interact", "x + 1", "quit()", "p x", "q"])
    assert result.error == ""
    assert {"[1] 9", "[1] 8"} <= set(shown(result))
    result = ranks.run(
        "%%distributed\nimport builtins, code\ncode.interact('', local={'y': rank}, exitmsg='left')\n"
        "hasattr(builtins, 'exit')",
        stdin=["y + 30", "_ + 30", "exit()"],
    )
    assert result.error == ""
    assert result.stderr == "[0-2] left\n"
    assert {(2, "32"), (2, "62"), (0, "Out: False")} <= set(said(result))


def test_the_notebooks_own_debugger_opens_the_failed_rank(ranks):
    code = "%%distributed\nif rank == 1: mine = rank / 0\nworld.barrier()"
    ranks.run(code)
    result = ranks.run("%debug", stdin=["p rank + 10", "q"])
    assert result.status == "ok", result.text
    assert result.stderr == "phalanx: the debugger is on rank 1, where the cell has failed\n"
    assert "[1] 11" in shown(result)
    assert prompts(result) == ["[1] ipdb> "] * 2
    failed = ranks.run(f"%pdb on\nws.run({code.partition(chr(10))[2]!r})", stdin=["p rank", "q"])
    ranks.run("%pdb off")
    assert prompts(failed) == ["[1] ipdb> "] * 2
    assert ranks.run("%%distributed\n{}['new']").status == "error"
    older = ranks.run("import sys\nolder = sys.last_value; ws.run('1 / 0')")
    assert older.error.startswith("ZeroDivisionError")
    refused = ranks.run("sys.last_value = older\n%debug")
    assert "phalanx: nothing to debug here: the error is of ranks, which do not " in refused.stderr
    assert refused.prompts == []


def test_the_notebooks_own_debugger_is_as_before_otherwise(ranks):
    ranks.run("%%distributed\n1 / 0")
    assert ranks.run("mine = 7\nmine / 0").error.startswith("ZeroDivisionError")
    result = ranks.run("%debug", stdin=["p mine + 1", "q"])
    assert "8\n" in result.stdout
    assert prompts(result) == ["ipdb> "] * 2


def test_post_mortem_of_a_wrong_call_begins_in_the_cell(ranks):
    code = "%%distributed\ndef f(words): return px.all_sum(words)\nf(object)"
    assert "all_sum takes arrays" in ranks.run(code).error
    result = ranks.run("%distributed debug 1", stdin=["p words", "w", "q"])
    assert "[1] <class 'object'>" in shown(result)
    assert "/arrays/" not in result.stdout


def test_pdb_at_every_error(ranks):
    code = "%%distributed --ranks 0\n%pdb on\nx = 5\n1 / 0"
    result = ranks.run(code, stdin=["p x + 1", "q"])
    assert "[0] 6" in shown(result)
    assert result.error.startswith("ZeroDivisionError")
    ranks.run("%%distributed --ranks 0\n%pdb off")


# -- front ends and ends ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", ["input('who? ')", "breakpoint()", "import sys; sys.stdin.readline()"]
)
def test_a_front_end_without_input_is_named(ranks, body):
    result = ranks.submit(f"%%distributed\n{body}", has_stdin=False).result()
    assert result.error.startswith("RuntimeError: ranks 0-2: RuntimeError: nobody can answer")
    assert "this front end has no input" in result.error


def test_the_last_reader_dies_and_what_is_typed_then_is_for_nobody(ranks):
    pid = int(ranks.run("%%distributed --ranks 1\nimport os; os.getpid()").stdout.split()[-1])
    cell = ranks.submit("%%distributed\nif rank == 1: input('never? ')")
    cell.until(lambda result: bool(result.prompts))
    os.kill(pid, signal.SIGKILL)
    assert cell.result().error.startswith("RankFailure: rank 1")
    ranks.type_line("too late")
    cell = ranks.submit("%%distributed\nprint('hello', input('who? '))")
    cell.until(lambda result: bool(result.prompts))
    older = {"msg_id": "of the question before", "msg_type": "input_request"}
    client = ranks._client
    client.stdin_channel.send(client.session.msg("input_reply", {"value": "late"}, parent=older))
    ranks.type_line("ann")
    assert sorted(said(cell.result())) == [(0, "hello ann"), (2, "hello ann")]
    assert ranks.run("%distributed restart 1").status == "ok"
