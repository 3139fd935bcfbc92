"""What ranks should not do and notebooks should not say: told in a line, and the next cell runs."""

from __future__ import annotations

import re
import time

import pytest
from kernel_driver import KernelDriver
from patience import TOGETHER

from phalanx.workspace import parse_ranks

ANSI = re.compile(r"\x1b\[[0-9;]*m")
NOT_THE_RANK = "ends the cell, not the rank; %distributed stop ends the ranks"


@pytest.fixture(scope="module")
def ranks():
    """A kernel with two ranks."""
    with KernelDriver() as driver:
        assert driver.run(f"%load_ext phalanx\n{TOGETHER}").status == "ok"
        assert driver.run("%distributed start -n 2 --linger 0").status == "ok"
        yield driver


@pytest.fixture(autouse=True)
def _next_cell_runs(request):
    yield
    if "ranks" in request.fixturenames:
        result = request.getfixturevalue("ranks").run("%%distributed\npx.all_sum(1)")
        assert said(result) == {(0, "Out: 2"), (1, "Out: 2")}, result.text


def said(result):
    """Lines as (rank, text), however they were shown together."""
    found = set()
    for line in result.stdout.splitlines():
        label, _, text = line.partition("] ")
        found |= {(rank, text) for rank in parse_ranks(label[1:], 2)}
    return found


# -- cells and words that make no sense ---------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "shown"),
    [
        ("x = 1\nprint((1)\ny = 2", "SyntaxError", "line 2\n    print((1)\n         ^\n"),
        ("if True:\npass", "IndentationError", "line 2\n    pass\n    ^\n"),
        ("if 1:\n\tx = 1\n        y = 2", "TabError", "line 3\n"),
    ],
)
def test_a_cell_that_is_no_python_is_told_once(ranks, code, kind, shown):
    result = ranks.run(f"%%distributed\n{code}")
    assert result.error.startswith(f"{kind}: ranks 0-1: {kind}: ")
    text = ANSI.sub("", result.text)
    assert text.startswith("ranks 0-1:\n  This cell, line ")
    assert shown in text
    assert text.count(f"{kind}: ") == 1
    assert "Traceback" not in text
    assert "phalanx/" not in text


def test_a_syntax_error_can_be_caught(ranks):
    code = "try: ws.run('1 +')\nexcept SyntaxError as error: print('caught', error)"
    assert ranks.run(code).stdout.startswith("caught ranks 0-1: SyntaxError: invalid syntax")


@pytest.mark.slow
def test_a_hook_for_errors_that_the_user_has_is_left_alone():
    code = (
        "def mine(shell, etype, value, tb, tb_offset=None): print('mine', etype.__name__)\n"
        "get_ipython().set_custom_exc((ValueError,), mine)\n"
        "%load_ext phalanx"
    )
    with KernelDriver() as kernel:
        kernel.run(code)
        assert kernel.run("int('x')").stdout == "mine ValueError\n"
        kernel.run("%unload_ext phalanx")
        assert kernel.run("int('x')").stdout == "mine ValueError\n"
        kernel.run("get_ipython().set_custom_exc((), None)\n%load_ext phalanx")
        kernel.run("%unload_ext phalanx")
        assert kernel.run("get_ipython().custom_exceptions").text == "()\n"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("%%distributed --tiemout 3\n1", "%%distributed has no --tiemout; did you mean --timeout?"),
        ("%%distributed --rnaks=0\n1", "%%distributed has no --rnaks; did you mean --ranks?"),
        ("%%distributed --lable none\n1", "did you mean --label?"),
        ("%%distributed --label rnk\n1", "--label is "),
        (
            "%distributed start --silense 3",
            "%distributed start has no --silense; did you mean --silence",
        ),
        ("%distributed outptu 2", "did you mean output?"),
        ("%%distributed --ranks 9\n1", "there is no rank 9: the ranks are 0 to 1"),
        ("%%distributed 'open\n1", "No closing quotation"),
    ],
)
def test_words_that_are_not_known_name_the_nearest(ranks, code, message):
    result = ranks.run(code)
    assert result.status == "error"
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


# -- leaving ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("leave", "said_of_it"),
    [
        ("exit()", f"it {NOT_THE_RANK}"),
        ("quit()", f"it {NOT_THE_RANK}"),
        ("exit(keep_kernel=True)", f"it {NOT_THE_RANK}"),
        ("raise SystemExit", f"it {NOT_THE_RANK}"),
        ("import sys; sys.exit(3)", f"3 ({NOT_THE_RANK})"),
        ("import sys; sys.exit('no data')", f"no data ({NOT_THE_RANK})"),
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
    begin_s = time.monotonic()
    result = ranks.run("%%distributed\nif rank == 1: exit()\npx.all_sum(1)")
    assert time.monotonic() - begin_s < 20  # a message that cannot be sent is waited for 60 s
    first, second = result.error.splitlines()
    assert first == f"CellError: rank 1: SystemExit: it {NOT_THE_RANK}"
    assert second.startswith("then rank 0: ")


def test_exit_in_a_thread_ends_the_thread(ranks):
    code = "import threading\nt = threading.Thread(target=exit)\nt.start()\nt.join()\n'here'"
    assert said(ranks.run(f"%%distributed\n{code}")) == {(0, "Out: 'here'"), (1, "Out: 'here'")}


@pytest.mark.slow
def test_a_rank_that_ends_itself_is_named_with_its_status():
    with KernelDriver() as kernel:
        kernel.run("%load_ext phalanx")
        kernel.run("%distributed start -n 2 --linger 0")
        result = kernel.run("%%distributed\nimport os\nif rank == 1: os._exit(3)\npx.all_sum(1)")
        assert re.fullmatch(r"RankFailure: rank 1 on \S+: exited with status 3", result.error)
        assert (
            "phalanx: rank 1 exited with status 3; `%distributed restart 1` replaces it\n"
            in result.stderr
        )
        result = kernel.run("%%distributed\nrank")
        assert result.stdout == "[0] Out: 0\n"
        assert "without rank 1, which exited with status 3;" in result.stderr


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
    begin_s = time.monotonic()
    result = ranks.run(f"%%distributed\nimport os, sys\n{code}")
    assert time.monotonic() - begin_s < 20  # a message that cannot be sent is waited for 60 s
    assert result.status == "ok", result.text
    assert said(result) == {(0, shown), (1, shown)}
    assert result.stderr == ""


@pytest.mark.parametrize("code", [r"raise ValueError('\ud800')", r"{}['\ud800']"])
def test_errors_that_no_message_can_carry(ranks, code):
    result = ranks.run(f"%%distributed\n{code}")
    assert r"\ud800" in result.error


def test_random_bytes_lose_nothing_else(ranks):
    code = (
        "import os, sys\nnoise = os.urandom(100_000).replace(b'\\n', b'') + b'\\n'\n"
        "print('before')\n_ = sys.stdout.buffer.write(noise)\nprint('between')\n"
        "os.write(1, noise)\nprint('after')"
    )
    result = ranks.run(f"%%distributed --ranks 0\n{code}")
    lines = result.stdout.split("\n")
    assert (lines[0], lines[2], lines[4]) == ("[0] before", "[0] between", "[0] after")


def test_what_subprocesses_say_stands_where_they_ran(ranks):
    code = "import os\nfor i in range(20):\n    print(i)\n    os.system(f'echo sub {i}')"
    result = ranks.run(f"%%distributed --ranks 1\n{code}")
    wanted = [f"[1] {text}" for i in range(20) for text in (str(i), f"sub {i}")]
    assert result.stdout.splitlines() == wanted


# -- too much -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "print('x' * 20_000_000)",
        "import os\nn = 0\nwhile n < 20_000_000: n += os.write(1, b'x' * (20_000_000 - n))\nprint()",
    ],
)
def test_a_line_of_twenty_megabytes(ranks, code):
    result = ranks.run(f"%%distributed\n{code}")
    assert result.status == "ok"
    assert result.stdout == "[0-1] " + "x" * 100_000 + " … and 19,900,000 more characters\n"
    kept = ranks.run("%distributed output 0").stdout
    assert "bytes before this are left out" in kept[:100]
    assert kept.rstrip().endswith("x" * 100_000)


@pytest.mark.slow
def test_output_comes_where_no_descriptor_is_left():
    take_all = """\
import os, resource, threading
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (200, limit))
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
    with KernelDriver() as kernel:
        kernel.run(f"%load_ext phalanx\n{TOGETHER}\n%distributed start -n 2 --linger 0")
        result = kernel.run(f"%%distributed\n{take_all}{say}", timeout=20)
        *many, thread, rest = result.stdout.splitlines()
        assert many == ["[0-1] " + "x" * 99] * 3000
        assert [thread, rest] == ["[0-1] from a thread", "[0-1] and the rest"]
        assert result.stderr == ""
        kernel.run("%%distributed\nfor fd in held: os.close(fd)")
        assert said(kernel.run("%%distributed\npx.all_sum(1)")) == {(0, "Out: 2"), (1, "Out: 2")}


def test_a_long_value_and_a_long_error_are_cut(ranks):
    result = ranks.run("%%distributed\n'v' * 300_000")
    assert result.stdout == "[0-1] Out: '" + "v" * 99_999 + " … and 200,002 more characters\n"
    result = ranks.run("%%distributed\nraise ValueError('e' * 300_000)")
    assert result.error.endswith("e … and 200,000 more characters")
    assert len(result.text) < 300_000
