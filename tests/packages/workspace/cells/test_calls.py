"""Calls of functions on ranks, as who comes from ipyparallel makes them; and its own client.

Values of classes that cells have made, and values whose own code raises something.
"""

from __future__ import annotations

import dataclasses
import linecache
import os
import re
import signal
import sys
import threading

import numpy as np
import pytest
from support.inside import is_closed, registered_engine, unregister_again
from support.programs.restarting import Notices
from support.waiting import wait_until

from phalanx.errors import CellError, DistributedError, RankFailure
from phalanx.rank.values.packed_calls import fetch
from phalanx.workspace import PendingCall, View
from phalanx.workspace.cells.cell import CellRuns

pytestmark = pytest.mark.slow

FILE = "/tmp/ipykernel_0/1.py"  # which is not there, as those of a notebook's cells


@pytest.fixture
def notebook():
    """Define names as a notebook's cell does: in ``__main__``, with a source that only it has."""
    main = vars(sys.modules["__main__"])
    before = set(main)

    def run(source):
        linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
        exec(compile(source, FILE, "exec"), main)
        return main["f"]

    yield run
    for name in set(main) - before:
        del main[name]
    linecache.cache.pop(FILE, None)


@pytest.fixture
def calm(ws):
    """The ranks of this file, which end no call of another test."""
    yield ws
    ws.run("px.all_sum(1)")


class Caller:
    """Makes a call on a thread; what it came to is `value` or `error`."""

    def __init__(self, call):
        self.value = self.error = None

        def run():
            try:
                self.value = call()
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                self.error = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def end(self):
        self.thread.join()
        return self.error or self.value


def n_begun(ws, rank=1):
    return ws.output(rank).count("begun")


def stop_once(condition):
    """Press Ctrl-C as soon as something is seen."""

    def press():
        wait_until(condition, "the call has begun")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


# -- names and values ---------------------------------------------------------------------------


def test_a_function_of_the_notebook_has_the_names_of_its_rank(calm, notebook):
    calm.run("mine = rank * 10")
    f = notebook(
        "scale, mine = 3, -1\ndef f(x, *, y): return g(x) + y\ndef g(x): return mine + scale * x"
    )
    assert calm.apply(f, 1, y=100) == [103, 113, 123]
    # What only the notebook has was there for the call: a next one has what it is by then.
    assert [its.value for its in calm.run("'scale' in globals()")] == ["False"] * 3
    f = notebook("scale = 5\ndef f(x): return mine + scale * x")
    assert calm.apply(f, 1) == [5, 15, 25]


def test_a_function_binds_names_of_its_rank(calm, notebook):
    f = notebook("def f():\n    global counted\n    counted = rank + 1")
    assert calm.apply(f) == [None] * 3
    assert calm.pull("counted") == [1, 2, 3]


def test_a_function_calls_operations_and_arguments_and_values_can_be_written_to(calm, notebook):
    f = notebook("def f(x):\n    x += rank\n    return px.all_sum(x)")
    x = np.ones(3)
    values = calm.apply(f, x)
    assert [value.tolist() for value in values] == [[6.0] * 3] * 3
    values[0] += 1
    assert x.tolist() == [1.0] * 3


def test_ranks_are_named_as_for_a_cell(calm, notebook):
    f = notebook("def f(): return rank")
    assert calm.apply(f, ranks=2) == 2
    assert calm.apply(f, ranks=[2, 0]) == [0, 2]
    assert calm.apply(f, ranks=slice(None, None, 2)) == [0, 2]
    assert [its.rank for its in calm.run("1", ranks=slice(1, None))] == [1, 2]
    assert calm.pull("rank", ranks=slice(-1, None)) == [2]


def test_what_a_function_prints_is_shown(calm, notebook):
    class Lines(View):
        def lines(self, stream, lines):
            shown.extend(lines)

    shown = []
    calm.make_view = Lines
    try:
        calm.apply(notebook("def f(): print('said')"))
    finally:
        calm.make_view = View
    assert {rank for ranks, text in shown for rank in ranks if text == "said"} == {0, 1, 2}


def test_map_keeps_the_order_of_the_items(calm, notebook):
    f = notebook("def f(*x): return (*x, rank)")
    expected = [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2)]
    assert calm.map(f, range(7)) == expected
    assert calm.map(f, iter(range(7))) == expected
    assert calm.map(f, [1, 2], "ab", ranks=[0, 2]) == [(1, "a", 0), (2, "b", 2)]
    assert calm.map(f, []) == []
    assert calm.map(f, np.arange(1)) == [(0, 0)]


def test_scatter_and_gather_are_each_others_opposites(calm):
    x = np.arange(10).reshape(5, 2)
    calm.scatter("x", x)
    assert [block.shape for block in calm.pull("x")] == [(2, 2), (2, 2), (1, 2)]
    np.testing.assert_array_equal(calm.gather("x"), x)
    calm.scatter("x", "abcd", ranks=[0, 1])
    assert calm.pull("x", ranks=[0, 1]) == ["ab", "cd"]
    calm.scatter("x", iter(range(4)))
    assert calm.gather("x") == [0, 1, 2, 3]
    calm.run("x = [rank] * rank")
    assert calm.gather("x") == [1, 2, 2]
    assert calm.gather("rank") == [0, 1, 2]


# -- values of classes that cells have made -----------------------------------------------------


CONFIG = """from dataclasses import dataclass
@dataclass
class Config:
    lr: float = 0.1
    layers: tuple = ()
    def scaled(self, by): return by * self.lr
"""


def test_values_of_classes_of_the_ranks_come_to_the_notebook(calm):
    calm.run(
        f"{CONFIG}class Q:\n    def twice(self): return 2 * self.x\n"
        "q = Q(); q.x = rank\nconfig = Config(layers=(rank,))"
    )
    values, configs = calm.pull("q"), calm.pull("config")
    assert [(type(value).__name__, value.twice()) for value in values] == [
        ("Q", 0), ("Q", 2), ("Q", 4),
    ]  # fmt: skip
    assert [dataclasses.asdict(config) for config in configs] == [
        {"lr": 0.1, "layers": (rank,)} for rank in range(3)
    ]
    assert dataclasses.replace(configs[0], layers=(2,)) == configs[2]
    assert configs[0].scaled(10) == 1.0
    calm.push({"back": values[1]})
    assert calm.pull("isinstance(back, Q) and back.twice()") == [2] * 3


def test_values_of_classes_of_the_notebook_go_to_the_ranks(calm, notebook):
    calm.run("Config = P = None")
    point, config = notebook(
        f"{CONFIG}class P:\n    def __init__(self, x): self.x = x\n"
        "    def shifted(self): return self.x + rank\nf = P(5), Config(0.5)"
    )
    calm.push({"p": point, "config": config})
    assert calm.pull("p.shifted()") == [5, 6, 7]
    assert calm.pull("type(p)(7).shifted()") == [7, 8, 9]
    assert calm.pull("(config.scaled(4), type(config)())") == [(2.0, type(config)())] * 3
    assert [type(value) for value in calm.pull("p")] == [type(point)] * 3
    assert calm.pull("config") == [config] * 3


# -- mistakes -----------------------------------------------------------------------------------


def test_an_error_shows_the_users_frames_only(calm, notebook):
    f = notebook("def f(x):\n    return g(x)\ndef g(x):\n    return x[rank]\n")
    with pytest.raises(IndexError, match="rank 2: IndexError: list index out of range") as caught:
        calm.apply(f, [1, 2])
    assert isinstance(caught.value, CellError)
    ((ename, _, lines),) = caught.value.failures.values()
    text = re.sub("\x1b\\[[0-9;]*m", "", "\n".join(lines))
    assert ename == "IndexError"
    assert "in f(x)" in text
    assert "return x[rank]" in text
    assert "phalanx" not in text
    assert "pickle" not in text
    # A debugger finds it, as that of a cell.
    assert [(its.rank, its.ename, its.is_of_last_cell) for its in calm.last_errors()] == [
        (2, "IndexError", True)
    ]


REDUCED = "class F:\n    def __call__(self): pass\n    def __reduce__(self):"
MUTE = "class Mute(Exception):\n    def __str__(self): raise SystemExit(7)\n"


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("import sys\ndef f(): sys.exit(3)", CellError, "SystemExit: 3 \\(ends the cell"),
        ("f = divmod", TypeError, "ranks 0-2: TypeError: divmod expected 2 arguments"),
        ("def f(): exec('1 +')", CellError, "ranks 0-2: SyntaxError"),
        ("def f(): return (x for x in ())", TypeError, "the value, of type generator, cannot be sent"),
        ("import threading\nlock = threading.Lock()\ndef f(): return lock", TypeError, "^f, or what it "),
        ("f = 3", TypeError, "^3 is not a function$"),
        (f"{REDUCED} return divmod, (1, 0)\nf = F()", ZeroDivisionError, "what was sent cannot be loaded here: "),
        (f"{REDUCED} raise SystemExit(3)\nf = F()", TypeError, "^F, or what it needs, cannot be sent: SystemExit: 3$"),
        (f"{MUTE}def f(): raise Mute", CellError, "^ranks 0-2: Mute: its text cannot be had: SystemExit$"),
        (
            f"{MUTE}class Sealed:\n    def __reduce__(self): raise Mute\ndef f(): return Sealed()",
            TypeError,
            "the value, of type Sealed, cannot be sent: its text cannot be had: SystemExit$",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(calm, notebook, source, error, message):
    f = notebook(source)
    with pytest.raises(error, match=message) as caught:
        calm.apply(f)
    assert "\n" not in str(caught.value)
    assert [its.value for its in calm.run("rank")] == ["0", "1", "2"]


@pytest.mark.parametrize("call", [lambda ws: ws.pull("odd"), lambda ws: ws.apply(fetch, "odd")])
@pytest.mark.parametrize("raised", ["SystemExit(3)", "GeneratorExit()", "ValueError(3)"])
def test_a_value_whose_loading_raises_is_told_and_the_next_ones_come(calm, call, raised):
    calm.run(
        "class Odd:\n    def __reduce__(self): return exec, (f'raise {self.raised}',)\n"
        f"odd = Odd(); odd.raised = {raised!r}"
    )
    name, _, text = raised.rstrip(")").partition("(")
    said = f"{name}: {text}" if text else name
    with pytest.raises(TypeError, match=f"cannot be loaded here: {said}") as caught:
        call(calm)
    assert "\n" not in str(caught.value)
    assert calm.pull("rank") == [0, 1, 2]
    assert [its.value for its in calm.run("rank")] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda ws: ws.pull("odd"), "odd (type __main__.Odd) was not loaded here"),
        (lambda ws: ws.apply(fetch, "odd"), "the value of rank 0 was not loaded here"),
    ],
)
def test_a_value_whose_loading_raises_what_a_stop_does_is_named(calm, call, said):
    calm.run("class Odd:\n    def __reduce__(self): return exec, ('raise KeyboardInterrupt',)")
    calm.run("odd = Odd()")
    with pytest.raises(KeyboardInterrupt, match=f"^{re.escape(said)}$"):
        call(calm)
    assert calm.pull("rank") == [0, 1, 2]
    assert [its.value for its in calm.run("rank")] == ["0", "1", "2"]


def test_a_value_that_cannot_be_shown_comes_all_the_same(calm):
    calm.run(
        "class Mute:\n    def __repr__(self): raise SystemExit(4)\nmute = Mute(); mute.rank = rank"
    )
    values = calm.pull("mute")
    with pytest.raises(SystemExit):
        repr(values[0])
    assert [value.rank for value in values] == [0, 1, 2]
    assert calm.pull("rank") == [0, 1, 2]


@pytest.mark.parametrize(
    ("raised", "error", "said"),
    [
        ("SystemExit(3)", TypeError, "cannot be sent: SystemExit: 3; "),
        ("ValueError(3)", TypeError, "cannot be sent: ValueError: 3; "),
        ("KeyboardInterrupt", KeyboardInterrupt, "was not sent$"),
    ],
)
def test_a_value_whose_packing_raises_is_told_on_both_sides(calm, notebook, raised, error, said):
    source = f"class Sealed:\n    def __reduce__(self): raise {raised}\nf = sealed = Sealed()"
    what = r"sealed \(type __main__.Sealed\) "
    with pytest.raises(error, match=f"^{what}{said}"):
        calm.push({"sealed": notebook(source), "half": 1})
    calm.run(source)
    if error is KeyboardInterrupt:
        error = CellError
    with pytest.raises(error, match=f"^ranks 0-2: [A-Za-z]*: {what}{said}") as caught:
        calm.pull("sealed")
    assert "\n" not in str(caught.value)
    with pytest.raises(NameError):
        calm.pull("half")
    assert [its.value for its in calm.run("rank")] == ["0", "1", "2"]


def test_an_operation_that_not_all_can_call_ends(calm, notebook):
    with pytest.raises(CellError, match="can never complete|has ended"):
        calm.apply(notebook("def f():\n    if rank: px.all_sum(1)"))


# -- turns and stops ----------------------------------------------------------------------------


def test_a_call_waits_for_the_cell_that_runs_and_says_so(calm, notebook, gate):
    f, view = notebook("def f(): return after"), Notices()
    running = Caller(lambda: calm.run(f"after = 0; {gate.wait}; after = rank"))
    wait_until(lambda: calm.topology().ranks[1].state == "busy", "the cell runs")
    calm.make_view = lambda: view
    try:
        call = Caller(lambda: calm.apply(f))
        (notice,) = wait_until(lambda: view.texts, "it says that it waits")
        assert notice.startswith("a call waits: a cell runs already on ranks 0-2")
        assert "`after = 0; " in notice
        gate.open()
        assert call.end() == [0, 1, 2]
    finally:
        calm.make_view = View
    running.end()


def test_calls_that_are_not_waited_for_run_in_their_order(calm, notebook, gate):
    f = notebook("order = None\ndef f(what):\n    order.append(what)\n    return list(order)")
    calm.run("order = []")
    held = calm.apply(notebook(f"def f(): return len({gate.wait})"), block=False)
    assert isinstance(held, PendingCall)
    first = calm.apply(f, "a", ranks=0, block=False)
    second = calm.apply(f, "b", ranks=0, block=False)
    # A cell that came between would not see what was asked for before it.
    with pytest.raises(CellRuns, match="a call runs already on ranks 0-2.*: `f`; wait for it"):
        calm.run("1")
    assert not held.done()
    with pytest.raises(TimeoutError, match="the call is not over after 0 s; it goes on"):
        held.result(0)
    gate.open()
    assert second.result() == ["a", "b"]
    assert first.result() == ["a"]
    assert held.done()
    assert held.result() == [1] * 3
    assert calm.apply(f, "c", ranks=0) == ["a", "b", "c"]


@pytest.mark.parametrize("block", [True, False])
def test_a_stop_ends_a_call_on_the_ranks_as_well(calm, notebook, gate, block):
    f = notebook(f"def f():\n    print('begun')\n    return {gate.wait}")
    n_before = n_begun(calm)
    stop_once(lambda: n_begun(calm) > n_before)
    with pytest.raises(KeyboardInterrupt):
        calm.apply(f) if block else calm.apply(f, block=False).result()
    wait_until(lambda: {its.state for its in calm.topology().ranks} == {"idle"}, "no rank runs it")
    assert calm.apply(notebook("def f(): return rank")) == [0, 1, 2]


def test_a_stop_ends_a_call_that_waits_for_its_turn(calm, notebook, gate):
    held = calm.apply(notebook(f"def f(): return len({gate.wait})"), block=False)
    view = Notices()
    calm.make_view = lambda: view
    try:
        stop_once(lambda: view.texts)
        with pytest.raises(KeyboardInterrupt):
            calm.apply(len, "a")
    finally:
        calm.make_view = View
    gate.open()
    assert held.result() == [1] * 3
    assert calm.apply(len, "a") == [1] * 3


def test_an_interrupt_ends_a_call_that_nobody_waits_for(calm, notebook, gate):
    n_before = n_begun(calm)
    call = calm.apply(notebook(f"def f():\n    print('begun')\n    {gate.wait}"), block=False)
    wait_until(lambda: n_begun(calm) > n_before, "it runs")
    assert calm.interrupt() == (0, 1, 2)
    with pytest.raises(CellError, match="KeyboardInterrupt"):
        call.result()


def test_a_call_ends_with_its_rank_and_with_its_workspace(own, notebook):
    ended = own.apply(
        notebook("import os\ndef f():\n    if rank: os._exit(3)\n    px.barrier()"), block=False
    )
    with pytest.raises(RankFailure, match="rank 1 .*exited with status 3") as caught:
        ended.result()
    assert caught.value.rank == 1
    with pytest.raises(RankFailure, match="rank 1 "):
        own.apply(len, "a", ranks=[0, 1])
    assert own.apply(len, "a") == [1]
    assert own.map(str, range(3)) == ["0", "1", "2"]
    waits = notebook("import time\ndef f():\n    print('begun')\n    time.sleep(600)")
    running, behind = own.apply(waits, block=False), own.apply(len, "a", block=False)
    wait_until(lambda: n_begun(own, 0), "it runs")
    own.stop()
    for call in (running, behind):
        with pytest.raises(DistributedError, match="this workspace was stopped"):
            call.result()


# -- ipyparallel's client -----------------------------------------------------------------------


def test_the_client_is_ipyparallels_with_an_engine_for_each_rank(calm, notebook):
    import ipyparallel

    client = calm.client()
    assert isinstance(client, ipyparallel.Client)
    assert client is calm.client()
    assert client.ids == [0, 1, 2]
    f = notebook("def f(x=0): return rank + x")
    assert client[:].apply_sync(f) == [0, 1, 2]
    assert client[::2].apply_sync(f, 1) == [1, 3]
    client[:].push({"y": 5}, block=True)
    assert calm.pull("y") == [5] * 3
    where = client.load_balanced_view().map_sync(f, range(0, 100, 10), chunksize=1)
    assert [value - value % 10 for value in where] == list(range(0, 100, 10))


def test_a_task_goes_to_the_rank_that_is_free(calm, notebook, gate):
    view = calm.client().load_balanced_view()
    held = view.apply_async(notebook(f"def f():\n    {gate.wait}\n    return rank"))
    others = set(view.map_sync(notebook("def f(x): return rank"), range(8), chunksize=1))
    gate.open()
    assert held.get() not in others


def test_a_rank_that_dies_leaves_the_client_and_comes_back(own, notebook):
    import ipyparallel

    client = own.client()
    own.run("import time")
    waits = notebook("def f():\n    print('begun')\n    time.sleep(600)")
    call = client[1].apply_async(waits)
    engine = registered_engine(client, 1)
    wait_until(lambda: n_begun(own), "it runs")
    os.kill(own.topology().ranks[1].pid, signal.SIGKILL)
    with pytest.raises(ipyparallel.RemoteError, match="EngineError: Engine 1 died while running"):
        call.get()
    assert client.ids == [0]
    own.restart()
    wait_until(lambda: client.ids == [0, 1], "the new engine is known")
    # A late word on the engine before is not one on this one.
    unregister_again(client, 1, engine)
    f = notebook("def f(): return rank")
    assert client[:].apply_sync(f) == [0, 1]
    assert {0, 1} <= set(client.queue_status())
    assert set(client.load_balanced_view().map_sync(str, range(4))) == set("0123")
    own.stop()
    assert is_closed(client)


def test_a_call_that_leaves_no_memory_ends_with_its_error(own, notebook):
    f = notebook(
        "def f():\n"
        "    import resource\n"
        "    now = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (now + (64 << 20), resource.RLIM_INFINITY))\n"
        "    held = []\n"
        "    while True: held.append(bytearray(100))\n"
    )
    with pytest.raises(MemoryError):
        own.apply(f, ranks=[1])
    assert [result.value for result in own.run("rank")] == ["0", "1"]
