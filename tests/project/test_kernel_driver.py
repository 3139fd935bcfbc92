"""The driver does what a front end does: shown on a plain kernel, without any phalanx."""

from __future__ import annotations

import pytest
from support.notebooks.kernel_driver import KernelDriver

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kernel():
    with KernelDriver() as driver:
        yield driver


def test_outputs_are_collected(kernel):
    cell = kernel.run("import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('c')\n40 + 2")
    assert cell.status == "ok"
    assert cell.stdout == "a\nc\n"
    assert cell.stderr == "b\n"
    assert cell.outputs[-1]["output_type"] == "execute_result"
    assert cell.text.endswith("42\n")


def test_typed_lines_answer_prompts(kernel):
    cell = kernel.run("print(input('who? '), input('and? '))", stdin=["Ada", "Bob"])
    assert cell.stdout == "Ada Bob\n"
    assert [p.text for p in cell.prompts] == ["who? ", "and? "]


def test_an_error_ends_the_cell(kernel):
    cell = kernel.run("1 / 0")
    assert cell.status == "error"
    assert cell.error == "ZeroDivisionError: division by zero"


def test_the_stop_button_stops(kernel):
    running = kernel.submit("print('on my way')\nwhile True: pass")
    running.until(lambda so_far: "on my way" in so_far.stdout)
    kernel.interrupt()
    assert running.result().error.startswith("KeyboardInterrupt")


def test_an_open_prompt_can_be_stopped(kernel):
    running = kernel.submit("input('nobody answers ')", stdin=lambda _: None)
    running.until(lambda so_far: bool(so_far.prompts))
    kernel.interrupt()
    assert running.result().status == "error"


def test_what_a_failed_test_leaves_is_stopped(kernel):
    waiting = kernel.submit("input('nobody answers ')")
    queued = kernel.submit("while True: pass")
    waiting.until(lambda so_far: bool(so_far.prompts))
    kernel.stop_cells()
    assert waiting.is_done
    assert queued.is_done
    assert kernel.run("1 + 1").text == "2\n"


def test_a_killed_kernel_is_noticed():
    with KernelDriver() as kernel:
        running = kernel.submit("print(1)\nwhile True: pass")
        running.until(lambda so_far: so_far.stdout == "1\n")
        kernel.kill()
        with pytest.raises(ConnectionError, match="the kernel died"):
            running.result()
