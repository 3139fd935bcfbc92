"""How a notebook shows errors of our functions: with the user's frames, and what came before them.

How each wrong call is told is in test_wrong_arguments.py.
"""

from __future__ import annotations

import re

import pytest
from kernel_driver import KernelDriver

ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def kernel():
    """A kernel with a rank, ``ws``."""
    with KernelDriver() as driver:
        driver.run("%load_ext phalanx\nfrom phalanx import Workspace")
        assert driver.run("%distributed start -n 1 --linger 0").status == "ok"
        yield driver


def shown(kernel, code):
    """What a reader sees of a cell that fails."""
    result = kernel.run(code)
    assert result.status == "error", result.text
    return ANSI.sub("", result.text)


def test_the_users_own_frames_are_shown_and_tb_shows_all(kernel):
    text = shown(kernel, "def mine():\n    ws.push({'a b': 1})\n\nmine()")
    assert "line 4" in text
    assert "----> 4 mine()" in text
    assert "----> 2     ws.push({'a b': 1})" in text
    assert text.endswith("ValueError: 'a b' is not the name of a variable\n")
    assert "phalanx/" not in text
    everything = ANSI.sub("", kernel.run("%tb").text)
    assert "phalanx/workspace/_values.py" in everything


@pytest.mark.parametrize("call", ["ws.push(5)", "ws.push({'x': (i for i in ())})"])
def test_an_error_of_the_users_that_was_handled_is_shown_as_well(kernel, call):
    mine = "def mine():\n    return {}['nobody']\n"
    text = shown(kernel, f"{mine}try:\n    mine()\nexcept Exception:\n    {call}")
    assert "----> 2     return {}['nobody']" in text
    assert "KeyError: 'nobody'\n\nDuring handling of the above" in text
    assert f"----> 6     {call}" in text
    assert "phalanx/" not in text
    assert "phalanx/workspace/" in ANSI.sub("", kernel.run("%tb").text)  # it is whole again


def test_one_more_of_our_errors_that_was_handled_is_shown_without_our_frames(kernel):
    text = shown(kernel, "try:\n    ws.push({3: 3})\nexcept Exception:\n    ws.push(5)")
    assert "ValueError: 3 is not the name of a variable\n\nDuring handling" in text
    assert "----> 4     ws.push(5)" in text
    assert "phalanx/" not in text


def test_a_cause_in_the_users_own_pickling_is_shown(kernel):
    kernel.run("class Sealed:\n    def __getstate__(self):\n        raise OSError('sealed')\n")
    text = shown(kernel, "ws.push({'x': Sealed()})")
    assert "----> 3         raise OSError('sealed')" in text
    assert "OSError: sealed\n\nThe above exception was the direct cause" in text
    assert text.endswith("TypeError: x cannot be sent: OSError: sealed\n")
    assert "phalanx/" not in text


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
    assert "phalanx/workspace/_look.py" in shown(kernel, "Workspace.output(None, 0)")
