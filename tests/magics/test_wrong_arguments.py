"""Every public function and magic, called wrongly in a notebook: one line, and none of our frames.

Wrong types, nothing at all, names that nobody knows, a workspace that is over, and empty things.
"""

from __future__ import annotations

import re

import pytest
from kernel_driver import KernelDriver

ANSI = re.compile(r"\x1b\[[0-9;]*m")
DEAD = "this workspace was stopped; start another with %distributed start -n 4"


@pytest.fixture(scope="module")
def kernel():
    """A kernel with two ranks, ``ws``, and a workspace that is over, ``dead``."""
    with KernelDriver() as driver:
        begin = (
            "%load_ext phalanx\nimport phalanx as px, numpy as np\nfrom phalanx import Workspace\n"
        )
        driver.run(f"{begin}dead = Workspace.start(1, linger=0)\ndead.stop()")
        assert driver.run("%distributed start -n 2 --linger 0").status == "ok"
        yield driver
        assert driver.run("ws.run('px.all_sum(1)')").text.count("value='2'") == 2  # all is well


@pytest.fixture(scope="module")
def bare():
    """A kernel without ranks."""
    with KernelDriver() as driver:
        driver.run("%load_ext phalanx")
        yield driver


def shown(kernel, code):
    """What a reader sees of a call that is refused; the warnings of a world that ends are not."""
    result = kernel.run(code)
    assert result.status == "error", result.text
    return ANSI.sub("", result.text)


WRONG_TYPE = [
    ("ws.run(3)", "TypeError: the code of a cell is 3; it must be a str"),
    (
        "ws.run('1', ranks='0')",
        "TypeError: ranks are a number or several, like 2 or [0, 2]; '0' is not",
    ),
    ("ws.run('1', ranks=[0.5])", "TypeError: ranks are a number or several"),
    (
        "ws.run('1', timeout='3')",
        "ValueError: timeout is '3'; it must be a number of seconds, 0 or more",
    ),
    (
        "ws.run('1', max_lines=0)",
        "ValueError: max_lines is 0; it must be a whole number, 1 or more",
    ),
    ("ws.push(3)", "TypeError: push takes values by name, like {'x': x}, not int"),
    ("ws.push({3: 3})", "ValueError: 3 is not the name of a variable"),
    ("ws.push({'x': (i for i in ())})", "TypeError: x cannot be sent: "),
    ("ws.push({'x': 1}, ranks='all')", "TypeError: ranks are a number or several"),
    ("ws.pull(3)", "ValueError: 3 is not the name of a variable"),
    ("ws.pull('x', ranks=None, rank=0)", "TypeError: CanExchange.pull() got an unexpected keyword"),
    ("ws.output('0')", "TypeError: a rank is a number, like 2; '0' is not"),
    ("ws.output(None)", "TypeError: a rank is a number, like 2; None is not"),
    ("ws.stacks('0')", "TypeError: ranks are a number or several"),
    ("ws.trace(3)", "TypeError: path is 3; it must be a path"),
    ("ws.samples('x')", "ValueError: after is 'x'; it must be a whole number, 0 or more"),
    ("ws.restart('0')", "TypeError: ranks are a number or several"),
    ("ws.restart(0, copy_from='1')", "TypeError: a rank is a number"),
    ("ws.bench(3)", "ValueError: there is no sweep of 3 (there are: all_sum, "),
    ("ws.bench(begin='8')", "ValueError: begin is '8'; it must be a whole number, 0 or more"),
    ("ws.bench(end=2.5)", "ValueError: end is 2.5; it must be a whole number, 0 or more"),
    (
        "ws.bench(iterations='2')",
        "ValueError: iterations is '2'; it must be a whole number, 0 or more",
    ),
    ("Workspace.start('4')", "ValueError: the number of ranks is '4'; it must be a whole number"),
    ("Workspace.start(1, hosts=3)", "TypeError: hosts is 3; it must be a list of str"),
    ("Workspace.start(1, hostfile=3)", "TypeError: hostfile is 3; it must be a path"),
    ("Workspace.start(1, name=3)", "TypeError: name is 3; it must be a str"),
    ("Workspace.start(1, linger='x')", "ValueError: linger is 'x'; it must be a number of seconds"),
    ("Workspace.start(1, silence=None)", "ValueError: silence is None; it must be a number of sec"),
    ("Workspace.start(1, transport=3)", "ValueError: transport is 3; it must be 'any' or 'tcp'"),
    ("Workspace.start(1, env='A=1')", "TypeError: env is 'A=1'; it must be a list of str"),
    ("Workspace.start(1, env={3: 4})", "ValueError: --env 3=4: '3' is no name of a variable"),
    ("Workspace.start(1, cwd=3)", "TypeError: cwd is 3; it must be a path"),
    ("Workspace.start(1, python=3)", "TypeError: python is 3; it must be a str"),
    (
        "Workspace.start(1, hosts='a', ssh_args='-v')",
        "TypeError: ssh_args is '-v'; it must be a li",
    ),
    ("Workspace.start(1, hosts='a', boot_timeout='x')", "ValueError: the boot timeout is 'x'; it"),
    (
        "Workspace.start(1, job={'node': 2})",
        "ValueError: job: Object contains unknown field `node`",
    ),
    ("Workspace.start(1, job={'nodes': '2'})", "ValueError: job: Expected `int`, got `str`"),
    ("Workspace.attach(3)", "TypeError: name is 3; it must be a str"),
    (
        "px.all_sum('x')",
        "ValueError: Invalid type str received in array initialization. all_sum takes",
    ),
    (
        "px.all_max([1])",
        "ValueError: Invalid type list received in array initialization. Pass np.as",
    ),
    ("px.all_min(None)", "ValueError: Invalid type NoneType received"),
    ("px.all_gather(object())", "ValueError: Invalid type object received"),
    ("px.sum_scatter({})", "ValueError: Invalid type dict received"),
    ("px.all_to_all(np.array(['a']))", "NotSupported: all_to_all: dtype <U1 is not supported"),
    ("px.all_sum(1, group=3)", "TypeError: group must be a phalanx.Group or None, not int"),
    (
        "px.all_sum(1, timeout='x')",
        "ValueError: timeout must be None or at least 0 seconds, not 'x'",
    ),
    ("px.all_sum(1, out=3)", "TypeError: all_sum: out must be"),
    ("px.broadcast(1, root='a')", "TypeError: Invalid root='a'; it must be the number of a rank"),
    ("px.send(1, 'a')", "TypeError: Invalid destination='a'; it must be the number of a rank"),
    ("px.recv(3, 'int8', 1)", "ValueError: Cannot recv from a singleton group"),
    (
        "px.recv((3,), 'int8', 'a')",
        "TypeError: Invalid source='a'; it must be the number of a rank",
    ),
    ("px.recv_like('x', 1)", "ValueError: Cannot recv from a singleton group"),
    ("px.init(backend=3)", "ValueError: "),
    ("px.init(timeout='x')", "ValueError: timeout must be None or at least 0 seconds, not 'x'"),
    ("px.recover(timeout='x')", "ValueError: timeout must be None or at least 0 seconds, not 'x'"),
    ("px.init().barrier(timeout='x')", "ValueError: timeout must be None or at least 0 seconds"),
    ("px.widgets.Topology(3)", "TypeError: Topology shows a Workspace, not int"),
    ("px.widgets.Monitor('ws')", "TypeError: Monitor shows a Workspace, not str"),
    ("px.widgets.Bandwidth(None)", "TypeError: Bandwidth shows a Workspace, not NoneType"),
]
MISSING = [
    (f"{call}()", "TypeError: ")
    for call in (
        "ws.run", "ws.push", "ws.pull", "ws.output", "px.all_sum", "px.all_max", "px.all_min", "px.all_gather",
        "px.sum_scatter", "px.all_to_all", "px.broadcast", "px.send", "px.recv", "px.recv_like",
        "px.init().split", "px.widgets.Topology", "px.widgets.Monitor", "px.widgets.Bandwidth",
    )
]  # fmt: skip
UNKNOWN = [
    ("ws.run('1', ranks=[7])", "ValueError: there is no rank 7: the ranks are 0 to 1"),
    ("ws.push({'a b': 1})", "ValueError: 'a b' is not the name of a variable"),
    ("ws.push({'x': 1}, ranks=7)", "ValueError: there is no rank 7: the ranks are 0 to 1"),
    ("ws.pull('class')", "ValueError: 'class' is not the name of a variable"),
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
    ("Workspace.start(1, hostfile='/nowhere')", "HostfileError: /nowhere: it cannot be read: No such"),
    ("Workspace.start(1, hosts='a', launcher='slurmm')", "ValueError: there is no launcher 'slurmm'"),
    ("Workspace.start(1, hosts='a', interface='ethh0')", "ValueError: this machine has no interface"),
    ("Workspace.start(1, name='a b')", "ValueError: 'a b' cannot name a workspace"),
    ("Workspace.start(1, cwd='/nowhere')", "ValueError: --cwd /nowhere: there is no such folder"),
    ("Workspace.start(1, linger=-1)", "ValueError: linger is -1; it must be a number of seconds, 0 or more"),
    ("Workspace.attach('nobody')", "DistributedError: there is no workspace 'nobody'"),
    ("Workspace.attach(take=True, watch=True)", "ValueError: a workspace is taken or watched, not both"),
    ("px.all_summ(1)", "AttributeError: module 'phalanx' has no attribute 'all_summ'"),
    ("px.broadcast(1, root=1)", "ValueError: Invalid root=1 for a group of size 1"),
    ("px.send(1, 0)", "ValueError: Cannot send to a singleton group"),
    ("px.init(backend='rings')", "ValueError: "),
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
    ("ws.push({'x': 1}, ranks=())", "ValueError: no ranks to run on"),
    ("ws.pull('')", "ValueError: '' is not the name of a variable"),
    ("ws.stacks([])", "ValueError: no ranks to run on"),
    ("ws.trace('')", "ValueError: path is ''; it must be the path of a file"),
    ("ws.restart([])", "ValueError: no ranks to run on"),
    ("ws.bench('')", "ValueError: there is no sweep of ''"),
    (
        "Workspace.start(0)",
        "ValueError: the number of ranks is 0; it must be a whole number, 1 or more",
    ),
    ("Workspace.start(1, hosts='')", "HostfileError: "),
    ("Workspace.start(1, hosts=[])", "HostfileError: "),
    (
        "Workspace.start(1, hostfile='')",
        "ValueError: hostfile is ''; it must be the path of a file",
    ),
    ("Workspace.start(1, name='')", "ValueError: '' cannot name a workspace"),
    ("Workspace.start(1, env=[''])", "ValueError: --env : '' is no name of a variable"),
    ("Workspace.start(1, cwd='')", "ValueError: cwd is ''; it must be the path of a"),
    ("Workspace.attach('')", "ValueError: '' cannot name a workspace"),
]


@pytest.mark.parametrize(("code", "says"), [*WRONG_TYPE, *MISSING, *UNKNOWN, *OVER, *EMPTY])
def test_a_wrong_call_is_told_without_our_frames(kernel, code, says):
    text = shown(kernel, code)
    assert says in text
    assert "phalanx/" not in text
    assert "widgets/" not in text
    # What Python itself refuses (a parameter is missing) it shows with the line of the call.
    is_pythons = says == "TypeError: " or "unexpected keyword" in says
    assert is_pythons or len(text.splitlines()) == 1, text


MAGICS = [
    ("%distributed", "%distributed needs a word: start, status, "),
    ("%distributed strat", "%distributed has no 'strat'; did you mean start?"),
    ("%distributed start -n x", "the number of ranks is 'x'; it must be a whole number, 1 or more"),
    ("%distributed start -n", "expected one argument; see %distributed start --help"),
    ("%distributed start --linger soon", "'soon' is not a number of seconds"),
    ("%distributed start", "2 ranks run already in this notebook; end them first"),
    ("%distributed status 3", "%distributed status takes no '3'"),
    ("%distributed topology --sitll", "did you mean --still?"),
    ("%distributed monitor --still=1", "ignored explicit argument '1'"),
    ("%distributed bandwidth --op nothing --still", "there is no sweep of 'nothing'"),
    ("%distributed bandwidth -b x --still", "'x' is not a size; write bytes as 8, 1K, 64M"),
    ("%distributed bandwidth --dtype x --still", "'x' is no dtype that ranks exchange"),
    ("%distributed bandwidth --iters x", "--iters: invalid int value: 'x'"),
    ("%distributed output", "the following arguments are required: RANKS"),
    ("%distributed output --hepl", "output has no --hepl; did you mean --help?"),
    ("%distributed restart --alll", "restart has no --alll; did you mean --all?"),
    ("%distributed config --hepl", "there is no option '--hepl'; did you mean '--help'?"),
    ("%distributed output x", "ranks are written like 0,2-3; 'x' is not"),
    ("%distributed output ''", "ranks are written like 0,2-3; '' is not"),
    ("%distributed stacks 5", "there is no rank 5: the ranks are 0 to 1"),
    ("%distributed trace /nowhere/t.json", "'/nowhere/t.json' cannot be written: No such file"),
    ("%distributed trace ''", "path is ''; it must be the path of a file"),
    ("%distributed debug", "the following arguments are required: RANKS"),
    ("%distributed debug 1", "nothing to debug: no cell has failed on rank 1 yet"),
    ("%distributed restart 7", "there is no rank 7"),
    ("%distributed restart 0 --all", "name ranks, or say --all, not both"),
    ("%distributed restart 0 --from x", "a rank is a number; 'x' is not"),
    ("%distributed restart 0 --force --from 0", "rank 0 is to be replaced itself"),
    ("%distributed attach nobody", "2 ranks run already in this notebook"),
    ("%distributed list x", "%distributed list takes no 'x'"),
    ("%distributed interrupt x", "%distributed interrupt takes no 'x'"),
    ("%distributed detach x", "%distributed detach takes no 'x'"),
    ("%distributed stop now", "%distributed stop takes no 'now'"),
    ("%distributed config --hosts", "--hosts"),
    ("%autodistributed", "the following arguments are required: on|off"),
    ("%autodistributed maybe", "on or off, not 'maybe'"),
    ("%%local x\n1", "%%local takes no 'x'"),
    ("%%distributed --ranks ''\n1", "ranks are written like 0,2-3; '' is not"),
    ("%%distributed --timeout soon\n1", "'soon' is not a number of seconds"),
    ("%%distributed --max-lines 0\n1", "the number of lines is '0'"),
]
BEFORE_START = [
    f"%distributed {action}"
    for action in (
        "status", "topology", "monitor", "bandwidth", "output 0", "stacks", "trace", "debug 0", "restart", "interrupt",
        "detach", "stop",
    )
]  # fmt: skip


@pytest.mark.parametrize(("line", "says"), MAGICS)
def test_a_wrong_magic_is_told_in_a_line(kernel, line, says):
    _told_in_a_line(kernel.run(line), says)


@pytest.mark.parametrize("line", [*BEFORE_START, "%autodistributed on", "%%distributed\n1"])
def test_a_magic_before_there_are_ranks_is_told_in_a_line(bare, line):
    _told_in_a_line(
        bare.run(line), "there are no ranks yet; start them with %distributed start -n 4"
    )


def _told_in_a_line(result, says):
    assert result.status == "error", result.text
    (line,) = ANSI.sub("", result.text).splitlines()
    assert says in line
    assert "phalanx/" not in line


def test_a_variable_that_ranks_do_not_have_is_told_in_a_line_a_set_of_ranks(kernel):
    assert shown(kernel, "ws.pull('nowhere')") == (
        "ranks 0-1:\nNameError: name 'nowhere' is not defined\n"
    )


@pytest.mark.parametrize(
    "code",
    [
        "eval('1 +')",
        "def f():\n    raise KeyError('x')\n\nf()",
        "try:\n    1 / 0\nexcept Exception as error:\n    raise ValueError('b') from error",
        "import asyncio\nawait asyncio.wait_for(asyncio.sleep(9), 0.01)",
        "raise KeyboardInterrupt",
        "class E(Exception):\n    def _render_traceback_(self): return ['mine']\n\nraise E",
    ],
)
def test_errors_of_the_users_own_look_as_without_us(bare, code):
    with_us = bare.run(code).text
    bare.run("%unload_ext phalanx")
    without_us = bare.run(code).text
    bare.run("%load_ext phalanx")
    numbers = re.compile(r"In\[\d+\]|ipykernel_\d+/\d+")
    assert numbers.sub("", ANSI.sub("", with_us)) == numbers.sub("", ANSI.sub("", without_us))
