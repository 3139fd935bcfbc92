"""Scripts to launch, and launchers that are gone when their test is over."""

from __future__ import annotations

import contextlib
import textwrap

import pytest
from launching import Running


@pytest.fixture
def script(tmp_path):
    """Write a script; its path."""

    def write(code, name="script.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(code), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def running():
    with contextlib.ExitStack() as stack:

        def start(*words, **options):
            started = Running(*words, **options)
            stack.callback(started.popen.wait)
            stack.callback(started.popen.kill)
            stack.callback(started.popen.stdout.close)
            stack.callback(started.popen.stderr.close)
            return started

        yield start
