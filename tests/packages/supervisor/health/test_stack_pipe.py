"""A process is asked for its stacks: only if it answers, and with a bound on what it says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys

import pytest
from support.promise import PATIENCE_S, within
from support.waiting import wait_until

from phalanx.distributed.bootstrap.stack_listener import STACK_SIGNAL, STACKS_VARIABLE
from phalanx.supervisor.health import stack_reader as stack_reader_module
from phalanx.supervisor.health.stack_reader import MAX_NBYTES, StackPipe, parse_dump

# Waits in C for a line of the standard input, with Python's lock.
WAIT_IN_C = "ctypes.PyDLL(None).poll((ctypes.c_int * 2)(0, 1), 1, -1)"
READY = "print('up', flush=True); import sys, time\n"
ARMED = (
    "from phalanx.distributed.bootstrap.stack_listener import show_stacks; show_stacks()\n" + READY
)


@contextlib.contextmanager
def child(code, pipe, *, said=None):
    env = {**os.environ, STACKS_VARIABLE: said or ",".join(map(str, pipe.rank_fds))}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=env,
        pass_fds=pipe.rank_fds,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        pipe.child_started()
        try:
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def patient(monkeypatch):
    """Wait longer for an answer that is sure to come: the machine may be busy."""
    for name in ("SLEEPER_S", "RUNNER_S", "ANSWER_S", "DUMP_PAUSE_S"):
        monkeypatch.setattr(stack_reader_module, name, PATIENCE_S)


@pytest.fixture
def pipe():
    pipe = StackPipe()
    yield pipe
    pipe.close()
    pipe.close()


def dump(pipe, process, *, times=1):
    async def ask():
        return [await pipe.dump(process.pid) for _ in range(times)]

    return asyncio.run(ask())


def test_the_stack_of_a_process_that_waits(pipe, patient):
    with child(ARMED + "def f():\n    sys.stdin.read()\nf()", pipe) as process:
        wait_until(lambda: " in f\n" in dump(pipe, process)[0], "the call of f")
        for text in dump(pipe, process, times=5):
            main = parse_dump(text)[-1]
            assert [frame.function for frame in main.frames] == ["f", "<module>"]
        assert process.poll() is None


def test_a_program_that_has_not_joined_is_left_alone(pipe):
    with child(READY + "sys.stdin.read()", pipe) as process:
        assert dump(pipe, process) == [None]
        assert process.poll() is None


@pytest.mark.parametrize("handler", ["lambda *_: os._exit(9)", "signal.SIG_IGN"])
def test_a_program_with_a_handler_of_its_own_keeps_it(pipe, handler):
    code = f"import os, signal; signal.signal({STACK_SIGNAL}, {handler})\n"
    with child(code + ARMED + "sys.stdin.read()", pipe) as process:
        assert dump(pipe, process) == [None]
        assert process.poll() is None


def test_a_program_that_has_become_another_is_not_ended(pipe):
    other = "[sys.executable, '-c', \"print('other', flush=True); input()\"]"
    code = ARMED + f"import os; os.execv(sys.executable, {other})"
    with child(code, pipe) as process:
        assert process.stdout.readline() == "other\n"
        assert dump(pipe, process) == [None]
        assert process.poll() is None


def test_a_descriptor_that_is_none_harms_nobody(pipe):
    with child(ARMED + "sys.stdin.read()", pipe, said="987,988") as process:
        assert dump(pipe, process) == [None]
        process.kill()
        assert f"{STACKS_VARIABLE}='987,988' names no open descriptors" in process.stderr.read()


# Calls of many kinds, so that frames come and go all the time.
BUSY = """
def f(n): return n if n <= 0 else f(n - 1) + g(n - 2)
def g(n): return sorted([3, 2, n], key=lambda x: h(x))[0]
def h(x):
    class A:
        __hash__ = lambda self: x
    return hash(A())
while True: sum(f(5) for _ in range(20)); exec("def q(z): return z\\nq(1)", {})
"""


def writer(text):
    """Return the names of the functions of the thread that wrote a dump."""
    (stack,) = [stack for stack in parse_dump(text) if stack.is_current]
    return [frame.function for frame in stack.frames]


def test_a_process_that_runs_python_code_is_not_read_without_its_lock(pipe, patient):
    with child(ARMED + BUSY, pipe) as process:
        for text in dump(pipe, process, times=10):
            assert writer(text)[0] == "_answer_requests"
            assert parse_dump(text)[-1].frames[-1].function == "<module>"


def test_c_code_that_keeps_the_lock_is_read_by_a_signal_to_the_listener(pipe, monkeypatch):
    monkeypatch.setattr(stack_reader_module, "ANSWER_S", PATIENCE_S)
    in_f = f"def f():\n    print('in f', flush=True)\n    return {WAIT_IN_C}\n"
    with child(f"{ARMED}import ctypes\n{in_f}print(f(), flush=True); input()", pipe) as process:
        assert process.stdout.readline() == "in f\n"
        wait_until(lambda: stack_reader_module._state(process.pid) == "S", "the wait in C")
        for text in dump(pipe, process, times=3):
            assert [frame.function for frame in parse_dump(text)[-1].frames] == ["f", "<module>"]
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "1\n"  # a signal would have made it -1


@pytest.mark.deep
def test_many_looks_end_no_process_that_runs_python_code(pipe, patient, monkeypatch):
    monkeypatch.setattr(stack_reader_module, "SETTLE_S", 0.0)
    monkeypatch.setattr(stack_reader_module, "LOOK_EVERY_S", 0.0)
    with child(ARMED + BUSY, pipe) as process:
        assert all(dump(pipe, process, times=1500))
        assert process.poll() is None


@pytest.mark.promise
def test_one_that_does_not_come_to_answer_is_waited_for_briefly_and_asked_once(pipe, monkeypatch):
    # It keeps Python's lock, and no thread of it takes the signal.
    code = (
        f"import ctypes, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [{STACK_SIGNAL}])\n"
        f"{ARMED}{WAIT_IN_C}\nsys.stdin.readline()\n"
        f"signal.pthread_sigmask(signal.SIG_UNBLOCK, [{STACK_SIGNAL}])\n"
        "print('open', flush=True)\nsys.stdin.read()"
    )
    with child(code, pipe) as process:
        wait_until(lambda: dump(pipe, process) == [""], "the wait in C")
        with within():
            assert dump(pipe, process, times=2) == ["", ""]
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "open\n"
        # The late answers are thrown away: one for each way of asking.
        monkeypatch.setattr(stack_reader_module, "SLEEPER_S", PATIENCE_S)
        wait_until(lambda: " read" not in dump(pipe, process)[0], "an answer of now")
        (text,) = dump(pipe, process)
        assert parse_dump(text)[-1].frames[-1].function == "<module>"


@pytest.mark.promise
def test_what_is_told_is_bounded(pipe):
    code = (
        ARMED + "import os, threading\n"
        f"fd = {pipe.rank_fds[1]}\n"
        "def flood():\n"
        "    while True:\n"
        "        try: os.write(fd, b'x' * 4096 + b'\\n')\n"
        "        except BlockingIOError: time.sleep(0.001)\n"
        "threading.Thread(target=flood, daemon=True).start()\nsys.stdin.read()"
    )
    with child(code, pipe) as process:
        with within():
            (text,) = dump(pipe, process)
        assert len(text) <= MAX_NBYTES


def test_a_process_that_is_gone_is_no_error(pipe):
    with child(ARMED, pipe) as process:
        process.wait(PATIENCE_S)
        assert dump(pipe, process) == [None]
    assert process.returncode in {0, -signal.SIGKILL}
