"""Where a user's traceback ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import traceback

import numpy as np
import pytest

import phalanx as px
from phalanx.distributed.bootstrap.own_frames import (
    clear_own_frames,
    hide_in_scripts,
    own_frames_hidden,
    without_own_frames,
)


def names(tb):
    return [frame.name for frame in traceback.extract_tb(tb)]


def call(function, *arguments):
    return function(*arguments)


def test_our_frames_are_dropped_from_the_end():
    with pytest.raises(px.NotSupported) as caught:
        call(px.all_sum, np.ones(2, np.longdouble))
    assert len(names(caught.tb)) > 2
    assert names(without_own_frames(caught.tb)) == [
        "test_our_frames_are_dropped_from_the_end",
        "call",
    ]


def test_a_users_error_stays_as_it_is():
    with pytest.raises(ZeroDivisionError) as caught:
        call(lambda: 1 / 0)
    assert names(without_own_frames(caught.tb)) == names(caught.tb)
    assert without_own_frames(None) is None


def test_every_frame_has_a_line():
    """Python has no line for some instructions; IPython's formatter fails on them."""
    code = compile("1 / 0", "<cell>", "exec")
    with pytest.raises(ZeroDivisionError) as caught:
        exec(code.replace(co_linetable=b""))
    outer = px.DistributedError("outer")
    outer.__context__ = caught.value
    caught.value.__context__ = outer  # a chain may be a ring
    assert None in [line for _, line in traceback.walk_tb(caught.tb)]
    assert None not in [line for _, line in traceback.walk_tb(without_own_frames(caught.tb))]
    with own_frames_hidden(outer):
        lines = [line for _, line in traceback.walk_tb(caught.value.__traceback__)]
    assert len(lines) == 2
    assert lines[1] == 1


def test_only_errors_that_we_caught_ourselves_leave_the_chain(capsys, monkeypatch):
    def raise_in(module, error, cause=None):
        """Raise in a module of this name, and catch it there."""
        scope = {"__name__": module}
        exec("def go(error, cause):\n    raise error from cause", scope)
        with contextlib.suppress(type(error)):
            scope["go"](error, cause)
        return error.with_traceback(error.__traceback__.tb_next)

    users = raise_in("__main__", ValueError("the user's"))
    ours = raise_in("phalanx.made_up", OSError("ours"), users)
    top = raise_in("__main__", px.DistributedError("top"), ours)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    hide_in_scripts()
    sys.excepthook(type(top), top, top.__traceback__)
    said = capsys.readouterr().err
    assert "ValueError: the user's" in said
    assert said.endswith("DistributedError: top\n")
    assert "OSError" not in said


def test_after_an_error_is_shown_it_is_as_before():
    with pytest.raises(px.NotSupported) as caught:
        px.all_sum(np.ones(2, np.longdouble))
    mine = OSError("mine")
    mine.__cause__ = caught.value
    whole = names(caught.tb)
    with own_frames_hidden(mine) as is_alone:
        assert not is_alone
        assert len(names(caught.value.__traceback__)) == 1
    assert names(caught.value.__traceback__) == whole
    assert mine.__cause__ is caught.value


def test_an_error_may_have_exceptions_of_its_own_kind():
    class Several(Exception):
        exceptions = ("a text", 3)

    with own_frames_hidden(Several()) as is_alone:
        assert is_alone


def test_what_our_frames_hold_is_let_go_of_and_a_users_stays():
    def user():
        mine = np.ones(2, np.longdouble)
        px.all_sum(mine)

    with pytest.raises(px.NotSupported) as caught:
        user()
    error = caught.value
    error.__cause__ = error  # a chain may be a ring
    clear_own_frames(error)
    held = {frame.f_code.co_name: frame.f_locals for frame, _ in traceback.walk_tb(caught.tb)}
    assert "mine" in held["user"]
    assert held["collective"] == {}
    error.__cause__ = None
    clear_own_frames(None)


def test_an_error_of_a_script_that_nobody_launched_ends_at_its_own_line():
    script = "import phalanx as px\npx.init(strict=True)"
    environment = {name: value for name, value in os.environ.items() if "PHALANX" not in name}
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    *frames, last, end = ended.stderr.split("\n")
    assert frames == [
        "Traceback (most recent call last):",
        '  File "<string>", line 2, in <module>',
    ]
    assert last.startswith("phalanx.errors.NotConfigured: ")
    assert end == ""
