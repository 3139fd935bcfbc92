"""A workspace of real processes: boot, cells, deaths, and what is left behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
import types

import numpy as np
import psutil
import pytest
from support.inside import break_connection, replace_step, root_pid, shut_down
from support.programs.processes import wait_gone
from support.promise import BOUND_S, within
from support.ranks.cells import BackgroundCell, wait_busy, wait_in
from support.waiting import wait_until

from phalanx.errors import CellError, DistributedError, RankFailure
from phalanx.workspace import Workspace, list_workspaces
from phalanx.workspace import workspace as workspace_module


def processes_of(root: int) -> list[psutil.Process]:
    """Return the root supervisor and all that it started."""
    process = psutil.Process(root)
    return [process, *process.children(recursive=True)]


def n_descriptors() -> int:
    return psutil.Process().num_fds()


def test_every_rank_knows_who_it_is(ws):
    values = [result.value for result in ws.run("(rank, size, world.rank(), px.__name__)")]
    assert values == [f"({rank}, 3, {rank}, 'phalanx')" for rank in range(3)]


def test_values_travel_both_ways(ws):
    array = np.arange(300_000.0).reshape(3, -1)
    ws.push({"given": array, "factor": 2}, ranks=[0, 2])
    assert [r.value for r in ws.run("(factor * given).sum().item()", ranks=[0, 2])] == [
        repr((2 * array).sum().item())
    ] * 2
    assert ws.pull("rank") == [0, 1, 2]
    back = ws.pull("given", ranks=2)
    assert (back == array).all()
    assert ws.pull("size", ranks=[1]) == [3]


def test_several_names_and_expressions_come_together(ws):
    ws.run("import types\nmodel = types.SimpleNamespace(weight=np.arange(3) + rank)\nalias = model")
    assert ws.pull(["rank", "size"], ranks=1) == {"rank": 1, "size": 3}
    assert ws.pull("model.weight.sum().item()") == [3, 6, 9]
    found = ws.pull(("model", "alias", "px.all_sum(rank)"))
    assert [named["px.all_sum(rank)"] for named in found] == [3, 3, 3]
    assert found[0]["model"] is found[0]["alias"]
    found[0]["model"].weight += 1
    (whole,) = ws.pull("np.ones(10_000)", ranks=[2])
    whole += 1
    assert whole.sum() == 20_000


def test_an_expression_that_fails_is_told_and_the_next_one_is_evaluated(ws):
    with pytest.raises(ZeroDivisionError, match=r"^ranks 1-2: ZeroDivisionError: .* by zero$"):
        ws.pull("1 / (rank == 0)")
    ws.run(
        "class Odd(BaseException):\n    def __str__(self): raise ValueError\n"
        "def fail(): raise Odd\n"
    )
    with pytest.raises(CellError, match=r"^ranks 0-2: Odd: its text cannot be had: ValueError$"):
        ws.pull("fail()")
    with pytest.raises(CellError, match="rank 0: .*ranks? 1"):
        ws.pull("px.all_sum(1)", ranks=0)
    assert ws.pull("px.all_sum(1)") == [3, 3, 3]


def test_an_expression_can_be_stopped(ws):
    errors = []

    def pull():
        try:
            ws.pull("__import__('time').sleep(60)")
        except CellError as error:
            errors.append(error)

    thread = threading.Thread(target=pull)
    thread.start()
    wait_busy(ws)
    ws.interrupt()
    thread.join()
    assert {failure[0] for failure in errors[0].failures.values()} == {"KeyboardInterrupt"}
    assert ws.pull("rank + 1") == [1, 2, 3]


def test_a_value_that_cannot_come_or_go_is_told_in_a_line_at_once(ws, monkeypatch):
    ws.run(
        "import sys, types\nonly_there = types.ModuleType('only_there')\n"
        "exec('class Thing: pass', vars(only_there))\nsys.modules['only_there'] = only_there\n"
        "thing, gen = only_there.Thing(), (i for i in range(rank))\n"
        "class Late:\n    def __setstate__(self, state): raise SystemExit(3)\n"
        "late = Late(); late.x = 1"
    )
    said = {
        "thing": r"thing \(type only_there.Thing\) cannot be loaded here: ModuleNotFoundError",
        "gen": r"gen \(type generator\) cannot be sent: TypeError: cannot pickle 'generator'",
        "late": r"late \(type __main__.Late\) cannot be loaded here: SystemExit: 3",
    }
    for name, text in said.items():
        with pytest.raises(TypeError, match=f"^ranks 0-2: TypeError: {text}") as caught:
            ws.pull(name)
        assert "\n" not in str(caught.value)
        assert len(caught.value._render_traceback_()) == 2
    module = types.ModuleType("only_here")
    exec("class Thing: pass", vars(module))
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(
        TypeError, match=r"^ranks 0-2: TypeError: there \(type only_here.Thing\) cannot"
    ):
        ws.push({"half": 1, "there": module.Thing()})
    with pytest.raises(NameError):
        ws.pull("half")
    with pytest.raises(TypeError, match=r"^gen \(type generator\) cannot be sent: "):
        ws.push({"gen": (i for i in range(3))})
    ws.push({"view": memoryview(bytearray(range(6)))[::2]})  # not contiguous
    assert ws.pull("view") == [b"\0\2\4"] * 3
    assert ws.pull("rank") == [0, 1, 2]


def test_a_function_that_is_pushed_uses_the_names_of_its_rank(ws, monkeypatch):
    here = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", here)
    exec("rank, unknown = 7, 1\ndef who(): return rank, px.all_sum(rank)", vars(here))
    ws.push({"who": here.who})
    assert ws.pull("who()") == [(0, 3), (1, 3), (2, 3)]
    assert ws.pull("'unknown' in globals() or not hasattr(__builtins__, 'print')") == [False] * 3


def test_what_a_rank_has_printed_comes_back(ws):
    found = ws.run("print('a', rank)\nimport sys; print('b', file=sys.stderr)\n'value'")
    assert [sorted(result.text.splitlines()) for result in found] == [
        [f"a {r}", "b"] for r in range(3)
    ]
    (long,) = ws.run("for i in range(300): print('x' * 10_000)\nprint('end')", ranks=0)
    assert long.text.endswith("x\nend\n")
    assert 1 << 20 <= len(long.text) < 2 << 20


def test_a_cells_values_come_with_their_texts(ws):
    found = ws.run("{'loss': np.ones(2) * rank}")
    assert [result.value for result in found] == [
        f"{{'loss': array([{r}., {r}.])}}" for r in range(3)
    ]
    assert [result.object["loss"].tolist() for result in found] == [[r, r] for r in range(3)]
    assert [result.object for result in ws.run("x = 1")] == [None] * 3
    assert [result.object for result in ws.run("if rank == 1: x = 2\nrank * 5;")] == [None] * 3
    errors = [result.object for result in ws.run("(i for i in range(3)) if rank else 5")]
    assert errors[0] == 5
    assert isinstance(errors[2], DistributedError)
    assert str(errors[2]).startswith("rank 2: TypeError: the value (type generator) cannot be sent")
    (large,) = ws.run("np.zeros(1 << 22)", ranks=1)
    assert "takes more than 16 MiB; bind it to a name and pull that" in str(large.object)
    assert isinstance(ws.run("rank", values=False)[0].object, DistributedError)


def test_a_cell_that_cannot_be_sent_is_refused_and_the_next_one_runs(ws):
    with pytest.raises(ValueError, match=r"the code of a cell has half a character, '\\ud800'"):
        ws.run('x = "\ud800"')
    assert [result.value for result in ws.run("rank")] == ["0", "1", "2"]


@pytest.mark.parametrize("n_sent", [0, 1])
def test_a_cell_that_fails_on_its_way_out_is_taken_back(ws, monkeypatch, n_sent):
    def fail_at(execute):
        def fail(cell, rank):
            if rank == n_sent:
                raise MemoryError
            execute(cell, rank)

        return fail

    with monkeypatch.context() as patched:
        replace_step(patched, ws, "execute", fail_at)
        with pytest.raises(MemoryError):
            ws.run("import time; time.sleep(60)")
    assert [result.value for result in ws.run("px.all_sum(1)")] == ["3"] * 3


def test_a_cell_whose_leave_was_not_heard_is_taken_back(ws, monkeypatch):
    def fail_after(begin_cell):
        def fail(*arguments):
            begin_cell(*arguments)
            msg = "waited too long"
            raise DistributedError(msg)

        return fail

    with monkeypatch.context() as patched:
        replace_step(patched, ws, "begin_cell", fail_after)
        with pytest.raises(DistributedError, match="waited too long"):
            ws.run("1")
    assert [result.value for result in ws.run("rank")] == ["0", "1", "2"]


def test_a_mismatch_raises_on_all_ranks_and_the_next_cell_runs(ws):
    with pytest.raises(CellError) as caught:
        ws.run("px.all_sum(np.ones(3 if rank else 4))")
    assert {failure[0] for failure in caught.value.failures.values()} == {"CollectiveMismatch"}
    assert set(caught.value.failures) == {0, 1, 2}
    assert "rank 1: all_sum" in str(caught.value)
    assert "(float64, shape (3,)) at cell line 1 met rank 0: all_sum" in str(caught.value)
    before = ws.topology().epoch
    assert [result.value for result in ws.run("px.all_sum(1)")] == ["3"] * 3
    assert ws.topology().epoch == before + 1


def test_a_connection_that_breaks_is_told_at_once_and_attached_to_anew(own):
    own.run("kept = rank")
    cell = BackgroundCell(own, "import time; px.all_sum(1) if rank == 0 else time.sleep(60)")
    wait_in(own, "all_sum", 0)  # the cell was sent, not only announced
    break_connection(own, RuntimeError("no more"))
    said = rf"broke \(RuntimeError: no more\).* %distributed attach {own.name} --take"
    with pytest.raises(DistributedError, match=said):
        cell.values()
    for call in (lambda: own.run("1"), lambda: own.pull("kept"), own.topology, own.stacks):
        with pytest.raises(DistributedError, match=said):
            call()
    shut_down(own)  # as the kernel's thread calls it, which must go on
    own.detach()
    with Workspace.attach(own.name, take=True) as again:
        again.interrupt()
        with pytest.raises(CellError):
            again.join()
        assert again.pull("kept") == [0, 1]
        again.stop()


@pytest.mark.promise
def test_a_killed_rank_is_named_and_frees_the_others(breakable):
    ws = breakable
    code = "import time\nif rank == 1: time.sleep(60)\npx.all_sum(1)"
    with BackgroundCell(ws, code) as cell:
        wait_in(ws, "all_sum", 0, 2)
        with within():
            os.kill(ws.topology().ranks[1].pid, signal.SIGKILL)
            cell.wait()
    assert isinstance(cell.error, RankFailure)
    assert cell.error.rank == 1
    assert "SIGKILL" in cell.error.reason
    # In every later operation, too, until the rank is replaced.
    with pytest.raises(CellError, match="RankFailure: rank 1 .*SIGKILL"):
        ws.run("px.all_sum(1)")
    assert [result.value for result in ws.run("rank")] == ["0", "2"]
    assert ws.pull("rank") == [0, 2]
    for names in ("rank", "rank + 0"):
        with pytest.raises(RankFailure, match="rank 1 .*SIGKILL"):
            ws.pull(names, ranks=[0, 1])


@pytest.mark.promise
def test_stop_leaves_nothing(own):
    processes = processes_of(root_pid(own))
    before = n_descriptors()
    assert len(processes) == 6  # root, controller, sweeper, fork server, two ranks
    own.stop()
    own.stop()
    assert wait_gone(processes, BOUND_S) == []
    assert n_descriptors() < before
    with pytest.raises(DistributedError, match="was stopped"):
        own.run("1")
    with pytest.raises(DistributedError, match="was stopped"):
        own.restart(0, force=True)


def test_a_rank_that_is_told_to_end_ends_by_itself_and_a_start_leaks_nothing(ws, tmp_path):
    """In time, and with what it has registered for its end: nobody has to kill it."""
    ws.run("pass")  # one workspace has been started before: what is made once is there

    def held():
        return n_descriptors(), threading.active_count()

    before = held()
    code = (
        "import atexit, os, sys\n"
        f"def note(what, folder={str(tmp_path)!r}): open(f'{{folder}}/{{what}}', 'w').close()\n"
        "atexit.register(note, 'atexit')\n"
        "sys.excepthook = lambda *error, note=note: note('error')\n"
        "os._exit = lambda code, leave=os._exit, note=note: (note('left'), leave(code))\n"
        f"kept = open({str(tmp_path / 'kept')!r}, 'w'); kept.write('text'); None"
    )
    with Workspace.start(n=1, linger=0) as alone:
        alone.run(code)
    assert {path.name for path in tmp_path.iterdir()} == {"atexit", "kept", "left"}
    assert (tmp_path / "kept").read_text() == "text"
    wait_until(lambda: held() == before, f"{before} descriptors and threads")


def test_a_root_that_is_killed_as_it_starts_is_told_of_and_leaves_its_name_free(
    tmp_path, monkeypatch
):
    launch = workspace_module.launch_root

    def launch_and_kill(*arguments, **options):
        root = launch(*arguments, **options)
        os.kill(root.pid, signal.SIGKILL)
        return root

    monkeypatch.setattr(workspace_module, "launch_root", launch_and_kill)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for _ in range(2):
        with pytest.raises(
            DistributedError, match=r"the supervisor is gone: killed by signal 9 \(SIGKILL\)"
        ):
            Workspace.start(n=1, name="a")
    assert "a" not in {its.name for its in list_workspaces()}  # other tests may have theirs


def test_output_says_how_much_is_left_out_before_its_last_mib(own):
    own.run("print('first')\nprint('x' * (2 << 20))\nprint('last')", ranks=[0])
    left_out = len("first\n") + (2 << 20) + 1  # the long line is left out as a whole
    assert own.output(0).startswith(f"… {left_out:,} bytes before this are left out\nlast\n")
