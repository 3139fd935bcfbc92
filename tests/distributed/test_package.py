"""The public door: what it offers, what it loads, and that its examples run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import phalanx
from phalanx import distributed

MODULES = [
    f"phalanx.distributed.{info.name}"
    for info in pkgutil.iter_modules(distributed.__path__)
    if info.name.startswith("_") and not info.name.startswith("_bench")
]


def in_fresh_interpreter(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | env,
    )


def test_the_names_of_this_room_are_public_and_loaded_when_used():
    ours = ["Group", "all_gather", "all_sum", "broadcast", "init", "is_available", "recover"]
    for name in ours:
        assert name in phalanx.__all__
        assert name in dir(phalanx)
        assert getattr(phalanx, name) is getattr(distributed, name)
    with pytest.raises(AttributeError, match="no attribute 'all_summ'"):
        _ = phalanx.all_summ


def test_every_public_name_is_listed_once():
    for names in (phalanx.__all__, distributed.__all__):
        assert len(set(names)) == len(names)  # their order is ruff's affair


@pytest.mark.slow
def test_a_rank_loads_no_client_and_no_widget():
    heavy = ("ipyparallel", "ipywidgets", "anywidget", "IPython", "zmq", "asyncio")
    ran = in_fresh_interpreter(
        "import sys, phalanx\n"
        "assert 'numpy' not in sys.modules\n"
        "phalanx.init().barrier()\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    assert (ran.stdout, ran.stderr) == ("[]\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("value", ["", "abc", "987", "0"])
def test_a_configured_world_that_cannot_be_joined_is_an_error(value):
    code = "import phalanx as px\ntry: px.init()\nexcept px.DistributedError as error: print(error)"
    ran = in_fresh_interpreter(code, PHALANX_CHANNEL=value)
    assert ran.stdout.startswith(f"PHALANX_CHANNEL={value!r} names no open socket")
    assert ran.stderr == ""


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module):
    options = doctest.IGNORE_EXCEPTION_DETAIL
    assert doctest.testmod(importlib.import_module(module), optionflags=options).failed == 0
