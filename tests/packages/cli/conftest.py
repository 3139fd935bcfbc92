"""Scripts to launch, and launchers that are gone when their test is over."""

from __future__ import annotations

import contextlib

import pytest
from support.programs.launching import Running, write_script


@pytest.fixture
def script(tmp_path):
    """Write a script; its path."""
    return lambda code, name="script.py": write_script(tmp_path, code, name)


@pytest.fixture
def running():
    """Start launchers that are closed after the test."""
    with contextlib.ExitStack() as stack:

        def start(*words, **options):
            started = Running(*words, **options)
            stack.callback(started.close)
            return started

        yield start
