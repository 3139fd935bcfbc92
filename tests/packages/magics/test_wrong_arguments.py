"""Call every public function and magic wrongly in a notebook: one line, and none of our frames.

Wrong types, nothing at all, unknown names, a workspace that is over, and empty things. Then how
errors are shown that have a cause, or frames of the user's own.
"""

from __future__ import annotations

import re

import pytest
from support.notebooks.notebook_kernel import NotebookKernel
from support.own_frames import own_frames

pytestmark = pytest.mark.slow

ANSI = re.compile(r"\x1b\[[0-9;]*m")
DEAD = "this workspace was stopped; start another with %distributed start -n 4"
NOT_STARTED = "there are no ranks yet; start them with %distributed start -n 4"


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A kernel, at first without ranks, that finds no ranks of others."""
    names = "import phalanx as px, numpy as np, pickle, sys\nfrom phalanx import Workspace"
    folder = str(tmp_path_factory.mktemp("runtime"))
    with NotebookKernel(names, XDG_RUNTIME_DIR=folder, TMPDIR=folder) as driver:
        yield driver


@pytest.fixture
def kernel(bare):
    """The kernel with two ranks, ``ws``."""
    bare.need_ranks("-n 2")
    return bare


def shown(kernel, code):
    """What a reader sees of a call that is refused; the warnings of a world that ends are not."""
    result = kernel.run(code)
    assert result.status == "error", result.text
    return ANSI.sub("", result.text)


def shown_of_each(kernel, codes):
    """What a reader sees of each of these cells, all of them run by one: that is much cheaper."""
    mark = "-- the next --\n"
    result = kernel.run(
        f"for code in {codes!r}:\n"
        f"    print({mark!r}, end='', file=sys.stderr, flush=True)\n"
        "    get_ipython().run_cell(code)"
    )
    nothing, *texts = ANSI.sub("", result.text).split(mark)
    assert nothing == ""
    assert len(texts) == len(codes), result.text
    return dict(zip(codes, texts, strict=True))


WRONG_TYPE = [
    ("ws.run(3)", "TypeError: the code of a cell is 3; it must be a str"),
    ("ws.run('1', ranks='0')", "TypeError: ranks are a number or several, like 2 or [0, 2]; '0' is not"),
    ("ws.run('1', ranks=[0.5])", "TypeError: ranks are a number or several"),
    ("ws.run('1', timeout='3')", "ValueError: timeout is '3'; it must be a number of seconds, 0 or more"),
    ("ws.run('1', max_lines=0)", "ValueError: max_lines is 0; it must be a whole number, 1 or more"),
    ("ws.push(3)", "TypeError: push takes values by name, like {'x': x}, not int"),
    ("ws.push({3: 3})", "ValueError: 3 is not the name of a variable"),
    ("ws.push({'x': (i for i in ())})", "TypeError: x (type generator) cannot be sent: "),
    ("ws.push({'x': pickle.PickleBuffer(memoryview(bytearray(8))[::2])})", "TypeError: x (type pickle.PickleBuffer) "),
    ("ws.pull(3)", "ValueError: 3 is not the name of a variable, nor an expression"),
    ("ws.pull('x', ranks=None, rank=0)", "TypeError: Workspace.pull() got an unexpected keyword"),
    ("ws.pull('mine', 0)", "TypeError: Workspace.pull() takes 2 positional arguments but 3"),
    ("ws.output('0')", "TypeError: a rank is a number, like 2; '0' is not"),
    ("ws.trace(3)", "TypeError: path is 3; it must be a path"),
    ("ws.samples('x')", "ValueError: after is 'x'; it must be a whole number, 0 or more"),
    ("ws.restart(0, copy_from='1')", "TypeError: a rank is a number"),
    ("ws.bench(3)", "ValueError: there is no sweep of 3; there are: all_sum, "),
    ("ws.bench(begin='8')", "ValueError: begin is '8'; it must be a whole number, 0 or more"),
    ("ws.bench(iterations='2')", "ValueError: iterations is '2'; it must be a whole number, 0 or more"),
    ("Workspace.start('4')", "ValueError: the number of ranks is '4'; it must be a whole number"),
    ("Workspace.start(1, hosts=3)", "TypeError: hosts is 3; it must be a list of str"),
    ("Workspace.start(1, hostfile=3)", "TypeError: hostfile is 3; it must be a path"),
    ("Workspace.start(1, name=3)", "TypeError: name is 3; it must be a str"),
    ("Workspace.start(1, linger='x')", "ValueError: linger is 'x'; it must be a number of seconds"),
    ("Workspace.start(1, heartbeat_timeout=None)", "ValueError: heartbeat_timeout is None; it must be a"),
    ("Workspace.start(1, transport=3)", "ValueError: transport is 3; it must be 'any' or 'tcp'"),
    ("Workspace.start(1, env='A=1')", "TypeError: env is 'A=1'; it must be a list of str"),
    ("Workspace.start(1, env={3: 4})", "ValueError: --env 3=4: '3' is no name of a variable"),
    ("Workspace.start(1, cwd=3)", "TypeError: cwd is 3; it must be a path"),
    ("Workspace.start(1, python=3)", "TypeError: python is 3; it must be a str"),
    ("Workspace.start(1, hosts='a', ssh_args='-v')", "TypeError: ssh_args is '-v'; it must be a li"),
    ("Workspace.start(1, hosts='a', boot_timeout='x')", "ValueError: the boot timeout is 'x'; it"),
    ("Workspace.start(1, job={'node': 2})", "ValueError: job: Object contains unknown field `node`"),
    ("Workspace.start(1, job={'nodes': '2'})", "ValueError: job: Expected `int`, got `str`"),
    ("Workspace.attach(3)", "TypeError: name is 3; it must be a str"),
    ("px.all_sum('x')", "ValueError: Invalid type str received in array initialization. all_sum takes"),
    ("px.all_to_all(np.array(['a']))", "NotSupported: all_to_all: dtype <U1 is not supported"),
    ("px.all_sum(1, group=3)", "TypeError: group must be a phalanx.Group or None, not int"),
    ("px.all_sum(1, timeout='x')", "ValueError: timeout must be None or at least 0 seconds, not 'x'"),
    ("px.all_sum(1, out=3)", "TypeError: all_sum: out must be"),
    ("px.broadcast(1, root='a')", "TypeError: Invalid root='a'; it must be the number of a rank"),
    ("px.send(1, 'a')", "TypeError: Invalid destination='a'; it must be the number of a rank"),
    ("px.recv(3, 'int8', 1)", "ValueError: Cannot recv from a singleton group"),
    ("px.init(backend=3)", "ValueError: "),
    ("px.recover(timeout='x')", "ValueError: timeout must be None or at least 0 seconds, not 'x'"),
    ("px.all_gather_object(x for x in 'ab')", "TypeError: cannot pickle 'generator' object"),
    ("px.widgets.Topology(3)", "TypeError: Topology shows a Workspace, not int"),
    ("px.widgets.Monitor('ws')", "TypeError: Monitor shows a Workspace, not str"),
    ("px.widgets.Bandwidth(None)", "TypeError: Bandwidth shows a Workspace, not NoneType"),
    ("ws.map(len)", "TypeError: map takes a function and what to call it with"),
    ("ws.map(3, [1])", "TypeError: 3 is not a function"),
]  # fmt: skip
MISSING = [
    (f"{call}()", "TypeError: ")
    for call in (
        "ws.run", "ws.push", "ws.pull", "ws.output", "px.all_sum", "px.all_max", "px.all_min", "px.all_gather",
        "px.sum_scatter", "px.all_to_all", "px.broadcast", "px.send", "px.recv", "px.recv_like",
        "px.all_gather_object", "px.broadcast_object", "px.init().split", "px.widgets.Topology", "px.widgets.Monitor", "px.widgets.Bandwidth",
    )
]  # fmt: skip
UNKNOWN = [
    ("ws.run('1', ranks=[7])", "ValueError: there is no rank 7: the ranks are 0 to 1"),
    ("ws.push({'a b': 1})", "ValueError: 'a b' is not the name of a variable"),
    ("ws.pull('class')", "ValueError: 'class' is not the name of a variable, nor an expression"),
    ("ws.pull('x = 1')", "ValueError: 'x = 1' is not the name of a variable, nor an expression"),
    ("ws.pull('x', ranks=-1)", "ValueError: there is no rank -1: the ranks are 0 to 1"),
    ("ws.output(2)", "ValueError: there is no rank 2: the ranks are 0 to 1"),
    ("ws.stacks([0, 2])", "ValueError: there is no rank 2: the ranks are 0 to 1"),
    ("ws.trace('/nowhere/t.json')", "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/"),
    ("ws.restart(9)", "ValueError: there is no rank 9: the ranks are 0 to 1"),
    ("ws.restart(0)", "DistributedError: rank 0 is alive; --force replaces it"),
    ("ws.restart()", "DistributedError: "),
    ("ws.restart(0, copy_from=0)", "ValueError: rank 0 is to be replaced itself"),
    ("ws.bench('all_summ')", "ValueError: there is no sweep of 'all_summ'; did you mean all_sum?"),
    ("ws.bench(dtype='float99')", "ValueError: "),
    ("Workspace.start(1, name='a b')", "ValueError: 'a b' cannot name a workspace"),
    ("Workspace.start(1, linger=-1)", "ValueError: linger is -1; it must be a number of seconds, 0 or more"),
    ("Workspace.attach('nobody')", "DistributedError: there is no workspace 'nobody'"),
    ("px.all_summ(1)", "AttributeError: module 'phalanx' has no attribute 'all_summ'"),
    ("px.broadcast(1, root=1)", "ValueError: Invalid root=1 for a group of size 1"),
    ("px.init(backend='rings')", "ValueError: "),
    ("ws.map(max, [1], [1, 2])", "different lengths: 1, 2"),
    ("ws.scatter('a b', [1])", "ValueError: 'a b' is not the name of a variable"),
    ("ws.apply(len, 'a', ranks=7)", "ValueError: there is no rank 7"),
]  # fmt: skip
OVER = [
    (f"dead.{call}", f"DistributedError: {DEAD}")
    for call in (
        "run('1')", "push({'x': 1})", "pull('x')", "output(0)", "stacks()", "trace()", "samples()", "topology()",
        "restart()", "interrupt()", "bench()", "measure_links()", "join()",
    )
] + [
    (f"px.widgets.{kind}(dead)", f"DistributedError: {DEAD}")
    for kind in ("Topology", "Monitor")
]  # fmt: skip
EMPTY = [
    ("ws.run('1', ranks=[])", "ValueError: no ranks to run on"),
    ("ws.push({'': 1})", "ValueError: '' is not the name of a variable"),
    ("ws.pull('')", "ValueError: '' is not the name of a variable"),
    ("ws.pull([])", "ValueError: no names to pull"),
    ("ws.trace('')", "ValueError: path is ''; it must be the path of a file"),
    ("ws.bench('')", "ValueError: there is no sweep of ''"),
    ("Workspace.start(0)", "ValueError: the number of ranks is 0; it must be a whole number, 1 or more"),
    ("Workspace.start(1, hosts='')", "HostfileError: "),
    ("Workspace.start(1, hostfile='')", "ValueError: hostfile is ''; it must be the path of a file"),
    ("Workspace.start(1, name='')", "ValueError: '' cannot name a workspace"),
    ("Workspace.start(1, env=[''])", "ValueError: --env : '' is no name of a variable"),
    ("Workspace.start(1, cwd='')", "ValueError: cwd is ''; it must be the path of a"),
]  # fmt: skip


LIVE = [*WRONG_TYPE, *MISSING, *UNKNOWN, *EMPTY]


MAGICS = [
    ("%distributed strat", "%distributed has no 'strat'; did you mean start?"),
    ("%distributed start -n x", "the number of ranks is 'x'; it must be a whole number, 1 or more"),
    ("%distributed start -n", "expected one argument; see %distributed start --help"),
    ("%distributed start --linger soon", "'soon' is not a number of seconds"),
    ("%distributed start", "2 ranks run already in this notebook; end them first"),
    ("%distributed topology --sitll", "did you mean --still?"),
    ("%distributed monitor --still=1", "ignored explicit argument '1'"),
    ("%distributed bandwidth --op nothing --still", "there is no sweep of 'nothing'"),
    ("%distributed bandwidth -b x --still", "'x' is not a size; write bytes as 8, 1K, 64M"),
    ("%distributed bandwidth --dtype x --still", "'x' is no dtype that ranks exchange"),
    ("%distributed bandwidth --iters x", "--iters: invalid int value: 'x'"),
    ("%distributed output --hepl", "output has no --hepl; did you mean --help?"),
    ("%distributed config --hepl", "there is no option '--hepl'; did you mean --help?"),
    ("%distributed output x", "ranks are written like 0,2-3 or ::2; 'x' is not"),
    ("%distributed stacks 5", "there is no rank 5: the ranks are 0 to 1"),
    ("%distributed trace /nowhere/t.json", "'/nowhere/t.json' cannot be written: No such file"),
    ("%distributed trace ''", "path is ''; it must be the path of a file"),
    ("%distributed debug", "nothing to debug: no cell has failed yet"),
    ("%distributed debug 1", "nothing to debug: no cell has failed on rank 1 yet"),
    ("%distributed restart 0 --all", "name ranks, or say --all, not both"),
    ("%distributed restart 0 --from x", "a rank is a number; 'x' is not"),
    ("%distributed restart 0 --force --from 0", "rank 0 is to be replaced itself"),
    ("%distributed attach nobody", "2 ranks run already in this notebook"),
    ("%distributed stop now", "%distributed stop takes no 'now'"),
    ("%distributed config --hosts", "--hosts"),
    ("%autodistributed", "the following arguments are required: on|off"),
    ("%autodistributed maybe", "on or off, not 'maybe'"),
    ("%%local x\n1", "%%local takes no 'x'"),
    ("%%distributed --ranks ''\n1", "ranks are written like 0,2-3 or ::2; '' is not"),
    ("%%distributed --timeout soon\n1", "'soon' is not a number of seconds"),
    ("%%distributed --max-lines 0\n1", "the number of lines is '0'"),
    ("%distributed start --xyz", "has no --xyz; there are: -h, --help, --linger"),
    ("%distributed start --silense 3", "%distributed start has no --silense; did you mean --silence"),
    ("%distributed start --hosts a --luncher ssh", "did you mean --launcher?"),
    ("%distributed bandwidth -b 1 -e 1E", "1 EiB on 2 ranks needs 3 EiB of memory per rank"),
    ("%distributed bandwidth --save here.png", "a sweep is saved as .csv, .json or .svg"),
    ("%distributed bandwidth --save /nowhere/a.csv", "there is no folder '/nowhere'"),
    ("%distributed restart", "no rank is dead; to replace one that is alive, name it with --force"),
    ("%distributed restart 1", "rank 1 is alive; --force replaces it, and its variables are lost"),
    ("%distributed restart --all", "ranks 0-1 are alive; --force replaces them"),
    ("%%distributed --ranks 7\n1", "there is no rank 7: the ranks are 0 to 1"),
    ("%%distributed --rnaks=0\n1", "%%distributed has no --rnaks; did you mean --ranks?"),
    ("%%distributed --label rnk\n1", "--label is "),
    ("%%distributed 'open\n1", "No closing quotation"),
]  # fmt: skip
BEFORE_START = [
    (line, NOT_STARTED)
    for line in (
        *(
            f"%distributed {action}"
            for action in (
                "status", "topology", "monitor", "bandwidth", "output 0", "stacks", "trace", "debug 0", "restart",
                "interrupt", "detach", "stop",
            )
        ),
        "%distributed",
        "%autodistributed on",
        "%%distributed\n1",
    )
] + [
    (f"%distributed {line}", f"UsageError: {says}")
    for line, says in (
        ("start --hosts a,-b", "--hosts: item 2: expected a host's name or address"),
        ("start --python /p", "--python: only with --hosts or --hostfile"),
        ("start --hosts localhost --cwd /nowhere", "--cwd /nowhere: there is no such folder on this"),
        ("topology -n 4", "-n is the number of ranks per host of a plan: name them with"),
        ("topology --hosts a --hostfile b", "give --hosts or --hostfile, not both"),
        ("topology --hostfile /nowhere", "/nowhere: it cannot be read: No such file"),
        ("topology --hosts a,-b", "--hosts: item 2: expected a host's name or address"),
        ("topology --hosts a -n 30000", "30000 ranks are too many for a picture, which shows at most 1024"),
    )
] + [
    ("%distributed topology --hosts a,b -n 513", "with a smaller -n, or some of the hosts with --hosts"),
    ("%distributed topology --hosts a -n 0", "it must be a whole number, 1 or more"),
]  # fmt: skip


# -- without ranks ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_lines_before_start(bare):
    bare.end_ranks()
    return shown_of_each(bare, [line for line, _ in BEFORE_START])


@pytest.mark.parametrize(("line", "says"), BEFORE_START)
def test_a_magic_before_there_are_ranks_is_told_in_a_line(of_lines_before_start, line, says):
    _told_in_a_line(of_lines_before_start[line], says)


def _told_in_a_line(text, says):
    (line,) = text.splitlines()
    assert says in line
    assert not own_frames(line)


OWN_ERRORS = [
    "eval('1 +')",
    "def f():\n    raise KeyError('x')\n\nf()",
    "try:\n    1 / 0\nexcept Exception as error:\n    raise ValueError('b') from error",
    "import asyncio\nawait asyncio.wait_for(asyncio.sleep(9), 0.01)",
    "raise KeyboardInterrupt",
    "class E(Exception):\n    def _render_traceback_(self): return ['mine']\n\nraise E",
]


@pytest.fixture(scope="module")
def own_errors(bare):
    """Errors of the user's own, as shown with the extension and without it."""
    bare.end_ranks()
    numbers = re.compile(r"In\[\d+\]|ipykernel_\d+/\d+")
    shown_by = []
    for change in ("%unload_ext phalanx", "%load_ext phalanx"):
        shown_by.append({code: numbers.sub("", shown(bare, code)) for code in OWN_ERRORS})
        assert bare.run(change).status == "ok"
    return shown_by


@pytest.mark.parametrize("code", OWN_ERRORS)
def test_errors_of_the_users_own_look_as_without_us(own_errors, code):
    with_us, without_us = own_errors
    assert with_us[code] == without_us[code]


def test_a_hook_for_errors_that_the_user_has_is_left_alone(bare):
    bare.end_ranks()
    bare.run("%unload_ext phalanx")
    try:
        bare.run(
            "def mine(shell, etype, value, tb, tb_offset=None): print('mine', etype.__name__)\n"
            "get_ipython().set_custom_exc((ValueError,), mine)\n"
            "%load_ext phalanx"
        )
        assert bare.run("int('x')").stdout == "mine ValueError\n"
        bare.run("%unload_ext phalanx")
        assert bare.run("int('x')").stdout == "mine ValueError\n"
        bare.run("get_ipython().set_custom_exc((), None)\n%load_ext phalanx")
        bare.run("%unload_ext phalanx")
        assert bare.run("get_ipython().custom_exceptions").text == "()\n"
    finally:
        bare.run("get_ipython().set_custom_exc((), None)\n%load_ext phalanx")


# -- with ranks ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_calls(bare):
    bare.need_ranks("-n 2")
    texts = shown_of_each(bare, [code for code, _ in [*LIVE, *MAGICS]])
    assert bare.run("ws.run('px.all_sum(1)')").text.count("value='2'") == 2  # all is well
    return texts


def _told_without_our_frames(text, says):
    assert says in text
    assert not own_frames(text)
    assert "widgets/" not in text
    # What Python itself refuses (a parameter is missing) it shows with the line of the call.
    is_pythons = says == "TypeError: " or "unexpected keyword" in says or " positional " in says
    assert is_pythons or len(text.splitlines()) == 1, text


@pytest.mark.parametrize(("code", "says"), LIVE)
def test_a_wrong_call_is_told_without_our_frames(of_calls, code, says):
    _told_without_our_frames(of_calls[code], says)


@pytest.mark.parametrize(("line", "says"), MAGICS)
def test_a_wrong_magic_is_told_in_a_line(of_calls, line, says):
    _told_in_a_line(of_calls[line], says)


@pytest.mark.parametrize(("code", "says"), LIVE[::7])
def test_a_wrong_call_in_a_cell_of_its_own_is_told_in_the_same_way(kernel, code, says):
    _told_without_our_frames(shown(kernel, code), says)


@pytest.mark.parametrize(("line", "says"), MAGICS[::6])
def test_a_wrong_magic_in_a_cell_of_its_own_is_told_in_the_same_way(kernel, line, says):
    _told_in_a_line(shown(kernel, line), says)


def test_a_variable_that_ranks_do_not_have_is_told_in_a_line_a_set_of_ranks(kernel):
    said = "ranks 0-1:\nNameError: name 'nowhere' is not defined\n"
    assert shown(kernel, "ws.pull('nowhere')") == said
    assert shown(kernel, "ws.pull('nowhere + 1')") == said


# -- frames and causes --------------------------------------------------------------------------


def test_the_users_own_frames_are_shown_and_tb_shows_all(kernel):
    text = shown(kernel, "def mine():\n    ws.push({'a b': 1})\n\nmine()")
    assert "line 4" in text
    assert "----> 4 mine()" in text
    assert "----> 2     ws.push({'a b': 1})" in text
    assert text.endswith("ValueError: 'a b' is not the name of a variable\n")
    assert not own_frames(text)
    everything = ANSI.sub("", kernel.run("%tb").text)
    assert "phalanx/workspace/options.py" in everything


@pytest.mark.parametrize("call", ["ws.push(5)", "ws.push({'x': (i for i in ())})"])
def test_an_error_of_the_users_that_was_handled_is_shown_as_well(kernel, call):
    mine = "def mine():\n    return {}['nobody']\n"
    text = shown(kernel, f"{mine}try:\n    mine()\nexcept Exception:\n    {call}")
    assert "----> 2     return {}['nobody']" in text
    assert "KeyError: 'nobody'\n\nDuring handling of the above" in text
    assert f"----> 6     {call}" in text
    assert not own_frames(text)
    assert "phalanx/workspace/" in ANSI.sub("", kernel.run("%tb").text)  # it is whole again


def test_one_more_of_our_errors_that_was_handled_is_shown_without_our_frames(kernel):
    text = shown(kernel, "try:\n    ws.push({3: 3})\nexcept Exception:\n    ws.push(5)")
    assert "ValueError: 3 is not the name of a variable\n\nDuring handling" in text
    assert "----> 4     ws.push(5)" in text
    assert not own_frames(text)


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("OSError", "TypeError: x (type __main__.Sealed) cannot be sent: OSError: sealed; send"),
        ("SystemExit", "TypeError: x (type __main__.Sealed) cannot be sent: SystemExit: sealed;"),
        ("KeyboardInterrupt", "KeyboardInterrupt: x (type __main__.Sealed) was not sent"),
    ],
)
def test_a_cause_in_the_users_own_pickling_is_shown(kernel, raised, said):
    kernel.run(f"class Sealed:\n    def __getstate__(self):\n        raise {raised}('sealed')\n")
    text = shown(kernel, "ws.push({'x': Sealed()})")
    assert f"----> 3         raise {raised}('sealed')" in text
    assert f"{raised}: sealed\n\nThe above exception was the direct cause" in text
    assert said in text
    assert not own_frames(text)


def test_a_buffer_that_cannot_be_sent_does_not_end_the_kernel(kernel):
    """Once the garbage collector of CPython before 3.12.7 finds it in a reference cycle."""
    result = kernel.run(
        "import gc\n"
        "try:\n    ws.push({'x': pickle.PickleBuffer(memoryview(bytearray(8))[::2])})\n"
        "except TypeError as error:\n    error.itself = error\n"
        "print(gc.collect() > 0, ws.pull('rank'))"
    )
    assert result.stdout == "True [0, 1]\n"


def test_a_call_in_another_cell_is_shown_where_it_was_made(kernel):
    kernel.run("push = lambda: ws.push(5)")
    text = shown(kernel, "x = 1\npush()")
    assert "----> 2 push()" in text
    assert "----> 1 push = lambda: ws.push(5)" in text


def test_the_debugger_opens_at_a_wrong_call_if_the_user_wants_it(kernel):
    kernel.run("%pdb on")
    try:
        result = kernel.run("ws.push(5)", stdin=lambda _prompt: "q")
    finally:
        kernel.run("%pdb off")
    assert [prompt.text for prompt in result.prompts] == ["ipdb> "]


def test_what_is_no_mistake_of_a_caller_keeps_its_frames(kernel):
    assert "phalanx/workspace/workspace.py" in shown(kernel, "Workspace.output(None, 0)")


# -- a workspace that is over, which ends the ranks of this file ---------------------------------


@pytest.fixture(scope="module")
def of_calls_on_the_dead(bare):
    bare.need_ranks("-n 2")
    bare.run("dead = ws")
    bare.end_ranks()
    return shown_of_each(bare, [code for code, _ in OVER])


@pytest.mark.parametrize(("code", "says"), OVER)
def test_a_call_on_a_workspace_that_is_over_is_told_in_a_line(of_calls_on_the_dead, code, says):
    _told_without_our_frames(of_calls_on_the_dead[code], says)
