"""Messages between a notebook and its ranks that are lost: a cell runs, once, and its end is heard."""

from __future__ import annotations

import contextlib
import sys

import psutil
import pytest
from support.hosts.cutting import cut
from support.hosts.hosts_of_one_machine import start
from support.inside import engine_of, replace_step, root_pid, send_again
from support.programs.restarting import Lines
from support.promise import BOUND_S, within
from support.ranks.cells import BackgroundCell
from support.waiting import wait_until

from phalanx.errors import CellError

COUNT = "n_runs = globals().get('n_runs', 0) + 1; n_runs"
MEND_S = 6.0  # 2 s until a request is missed, 2 s more for its second copy, 1 s for lost output


# A cell that is not mended in time is one that hangs: most tests here call `runs`, which asks that.
pytestmark = pytest.mark.promise


@pytest.fixture(scope="module")
def ws():
    with start() as workspace:
        yield workspace


@pytest.fixture
def losing(ws, monkeypatch):
    """Lose messages: of those that go out or come in, the first ``n`` that fit."""

    def lose(where, fits, n=1):
        lost = []

        def is_lost(message):
            if len(lost) < n and fits(message):
                lost.append(message)
            return bool(lost) and lost[-1] is message

        if where == "out":
            replace_step(
                monkeypatch, ws, "send",
                lambda send: lambda sock, frames: is_lost(frames) or send(sock, frames),
            )  # fmt: skip
        else:
            replace_step(
                monkeypatch, ws, "receive",
                lambda take: lambda *message: is_lost(message) or take(*message),
            )  # fmt: skip
        return lost

    return lose


@pytest.fixture
def count_call():
    """A function of ``__main__``, as of a notebook, that counts its calls on a rank."""
    main = vars(sys.modules["__main__"])
    exec("def f():\n    global n_calls\n    n_calls += 1\n    return n_calls", main)
    return main.pop("f")


def of_rank(rank, *kinds):
    def fits(found):
        _, message = found
        asked = message["parent_header"]["msg_id"]
        return asked.endswith(f"#{rank}") and message["header"]["msg_type"] in kinds

    return fits


def request_to(ws, rank):
    engine = engine_of(ws, rank)
    return lambda frames: frames[0] == engine


def runs(ws, code=COUNT, **options):
    """Run a cell, in time; return the values."""
    with within(MEND_S + BOUND_S):
        return [result.value for result in ws.run(code, timeout=MEND_S + BOUND_S, **options)]


def test_a_request_that_is_lost_is_sent_again(ws, losing):
    ws.run("n_runs = 0")
    lost = losing("out", request_to(ws, 3))
    assert runs(ws) == ["1"] * 4
    assert len(lost) == 1
    assert runs(ws) == ["2"] * 4


@pytest.mark.parametrize("kinds", [("status",), ("execute_reply", "status", "execute_result")])
def test_a_cell_ends_though_the_last_messages_of_a_rank_are_lost(ws, losing, kinds):
    ws.run("n_runs = 0")
    lost = losing("in", of_rank(2, *kinds), n=len(kinds) + 1)  # busy, and idle
    runs(ws)
    assert lost
    assert runs(ws) == ["2"] * 4


def test_an_error_comes_whole_though_its_reply_was_lost(ws, losing):
    losing("in", of_rank(1, "execute_reply"))
    with within(BOUND_S), pytest.raises(CellError) as caught:
        ws.run("if rank == 1: 1 / 0")
    name, text, traceback = caught.value.failures[1]
    assert (name, text) == ("ZeroDivisionError", "division by zero")
    assert len(traceback) > 1


def test_copies_of_a_request_are_dropped(ws, monkeypatch):
    ws.run("n_runs = 0")

    def thrice(execute):
        def execute_thrice(cell, rank):
            execute(cell, rank)
            for _ in range(2):
                send_again(ws, cell, rank)

        return execute_thrice

    replace_step(monkeypatch, ws, "execute", thrice)
    for n_runs in range(1, 5):
        assert runs(ws) == [str(n_runs)] * 4


def test_a_cell_that_is_stopped_before_it_came_is_not_run(ws, losing):
    ws.run("n_runs = 0")
    lost = losing("out", request_to(ws, 2))
    code = f"{COUNT}\nif rank != 2:\n    import time\n    time.sleep(60)"
    with BackgroundCell(ws, code) as cell:
        wait_until(lambda: lost, "the request is lost")
        ws.interrupt()
    assert isinstance(cell.error, (CellError, KeyboardInterrupt))
    assert runs(ws)[2] == "1"


def test_a_copy_of_a_stopped_cell_ends_as_one_though_no_stop_came(ws, losing, monkeypatch):
    """The stop takes another way, and may be the later."""
    ws.run("n_runs = 0")
    losing("out", request_to(ws, 2))
    replace_step(
        monkeypatch, ws, "resend",
        lambda again: lambda *said, **named: again(*said, **{**named, "is_stopped": True}),
    )  # fmt: skip
    with pytest.raises(CellError) as caught:
        ws.run(COUNT)
    assert [failure[0] for failure in caught.value.failures.values()] == ["KeyboardInterrupt"]
    assert runs(ws) == ["2", "2", "1", "2"]


def test_lost_output_is_told_of_in_one_line(ws, losing):
    view = Lines()
    losing("in", of_rank(3, "stream"))
    ws.run("if rank == 3: print('gone', flush=True); print('here', flush=True)", view=view)
    assert view.texts == [
        "some output of rank 3 was lost on its way; %distributed output 3 shows it all"
    ]
    assert "gone" in ws.output(3)
    ws.run("print('all', flush=True); print('is here')", view=view)
    assert len(view.texts) == 1


def test_a_function_is_called_once_though_its_request_was_lost(ws, losing, count_call):
    ws.run("n_calls = 0")
    losing("out", request_to(ws, 3))
    with within(MEND_S + BOUND_S):
        assert ws.apply(count_call, block=True) == [1] * 4
    assert runs(ws, "n_calls") == ["1"] * 4


def test_a_function_whose_value_was_lost_ends_in_an_error_that_says_so(ws, losing, count_call):
    ws.run("n_calls = 0")
    losing("in", of_rank(2, "apply_reply"))
    lost = pytest.raises(CellError, match="its values were lost on their way: ask again")
    with within(MEND_S + BOUND_S), lost:
        ws.apply(count_call, block=True)
    assert runs(ws, "n_calls") == ["1"] * 4


def test_a_value_arrives_though_its_request_was_lost(ws, losing):
    losing("out", request_to(ws, 3))
    ws.push({"here": 42})
    assert runs(ws, "here") == ["42"] * 4


def test_a_value_whose_reply_was_lost_ends_in_an_error_that_says_so(ws, losing):
    ws.run("there = rank * 10")
    losing("in", lambda found: found[1]["header"]["msg_type"] == "apply_reply")
    lost = pytest.raises(CellError, match="its values were lost on their way: ask again")
    with within(MEND_S + BOUND_S), lost:
        ws.pull("there")
    assert ws.pull("there") == [0, 10, 20, 30]


class Typing(Lines):
    """Keeps what is shown above each question, and answers it."""

    def ask(self, question):
        self.texts.append((question.prompt, list(self.shown)))
        return Answered()


class Answered:
    def poll(self, timeout_s):
        return ("a",)

    def close(self):
        pass


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_question_stands_below_the_output_before_it_or_does_without(ws, losing, is_lost):
    """The output takes another way than the question, and may be lost."""
    if is_lost:
        losing("in", of_rank(2, "stream"))
    view = Typing()
    code = "if rank == 2:\n    print('above', flush=True)\n    input('? ')"
    runs(ws, code, view=view)
    assert view.texts[0] == ("? ", [] if is_lost else ["above"])


def controller_of(ws):
    root = psutil.Process(root_pid(ws))
    return next(c for c in root.children() if "controller" in " ".join(c.cmdline()))


def cut_rank(ws, rank):
    """Break all connections of a far rank with the notebook's side; it makes them anew."""
    return cut(controller_of(ws).pid, ws.topology().ranks[rank].pid)


@pytest.mark.slow
def test_no_cell_is_lost_or_runs_twice_over_connections_that_break(ws):
    ws.run("n_runs = 0")
    for n_runs in range(1, 9):
        code = f"import time; time.sleep(0.01 * {n_runs}); print('x' * 1000)\n{COUNT}"
        with BackgroundCell(ws, code) as cell:
            for _ in range(n_runs % 3 + 1):
                with contextlib.suppress(OSError):
                    cut_rank(ws, 2 + n_runs % 2)
        assert cell.error is None
    assert runs(ws) == ["9"] * 4
