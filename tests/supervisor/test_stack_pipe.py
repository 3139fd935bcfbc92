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

from phalanx.distributed import STACK_SIGNAL, STACKS_VARIABLE
from phalanx.supervisor import _stack_pipe
from phalanx.supervisor._dumps import parse_dump
from phalanx.supervisor._stack_pipe import MAX_NBYTES, StackPipe

READY = "print('up', flush=True); import sys, time\n"
ARMED = "from phalanx.distributed._stacks import show_stacks; show_stacks()\n" + READY


@contextlib.contextmanager
def child(code, pipe, *, said=None):
    env = {**os.environ, STACKS_VARIABLE: said or str(pipe.write_fd)}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=env,
        pass_fds=[pipe.write_fd],
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
    monkeypatch.setattr(_stack_pipe, "ANSWER_S", PATIENCE_S)
    monkeypatch.setattr(_stack_pipe, "QUIET_S", PATIENCE_S)


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
    with child(ARMED + "sys.stdin.read()", pipe, said="987") as process:
        assert dump(pipe, process) == [None]
        process.kill()
        assert f"{STACKS_VARIABLE}='987' names no open descriptor" in process.stderr.read()


@pytest.mark.promise
def test_one_that_does_not_come_to_answer_is_waited_for_briefly_and_asked_once(pipe, monkeypatch):
    code = (
        ARMED + f"import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [{STACK_SIGNAL}])\n"
        "print('blocked', flush=True)\nsys.stdin.readline()\n"
        f"signal.pthread_sigmask(signal.SIG_UNBLOCK, [{STACK_SIGNAL}])\n"
        "print('open', flush=True)\nsys.stdin.read()"
    )
    with child(code, pipe) as process:
        assert process.stdout.readline() == "blocked\n"
        with within():
            assert dump(pipe, process, times=2) == ["", ""]
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "open\n"
        # The answer to the first two, one of them, is thrown away.
        monkeypatch.setattr(_stack_pipe, "ANSWER_S", PATIENCE_S)
        (text,) = dump(pipe, process)
        assert text.count("most recent call first") == 1


@pytest.mark.promise
def test_what_is_told_is_bounded(pipe):
    code = (
        ARMED + "import os, threading\n"
        f"fd = {pipe.write_fd}\n"
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
