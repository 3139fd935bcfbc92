"""What the package gives away: its public names, and what a wheel puts into site-packages."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from operator import attrgetter
from pathlib import Path

import pytest
from kernel_driver import KernelDriver

import phalanx
import phalanx.hosts

_ROOT = Path(__file__).resolve().parents[1]
_PUBLIC = {
    "CellError", "CollectiveMismatch", "CollectiveTimeout", "DistributedError", "Group", "NotConfigured",
    "NotSupported", "RankFailure", "Work", "Workspace", "all_gather", "all_max", "all_min", "all_sum",
    "all_to_all", "broadcast", "init", "is_available", "recover", "recv", "recv_like", "send", "sum_scatter", "trace",
    "widgets",
}  # fmt: skip


def test_public_names():
    assert set(phalanx.__all__) == _PUBLIC
    assert set(phalanx.__all__) <= set(dir(phalanx))


def test_every_public_name_is_there_and_says_what_it_is():
    for name in sorted(_PUBLIC):
        its = getattr(phalanx, name)
        assert its.__doc__, name
        if name != "widgets":
            assert its.__name__ == name


def test_every_operation_says_what_it_costs():
    for operation in (
        *("all_sum", "all_max", "all_min", "all_gather", "sum_scatter", "all_to_all", "broadcast"),
        *("send", "recv", "recv_like", "recover", "Group.barrier", "Group.split"),
    ):
        said = attrgetter(operation)(phalanx).__doc__
        assert "Cost" in said.partition("Notes\n")[2], operation


def test_a_rank_loads_no_client_and_no_widgets():
    heavy = ("ipyparallel", "ipywidgets", "anywidget", "IPython", "zmq", "asyncio")
    code = (
        "import sys, phalanx as px\n"
        "assert 'numpy' not in sys.modules\n"
        "px.init().barrier()\n"
        "import numpy; px.all_sum(numpy.ones(3))\n"
        f"print([m for m in {(*heavy, 'phalanx.workspace')} if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_a_notebook_loads_a_client_and_widgets_when_it_needs_them():
    loaded = "import sys; [name for name in ('anywidget', 'ipyparallel') if name in sys.modules]"
    with KernelDriver() as kernel:
        kernel.run("%load_ext phalanx\n%distributed start -n 1 --linger 0")
        assert kernel.run("%%distributed\npx.all_sum(1)").text == "[0] Out: 1\n"
        kernel.run("%distributed stop")
        assert kernel.run(loaded).text == "[]\n"
        kernel.run("%distributed start -n 1 --linger 0\nws.push({'x': 1})\n%distributed topology")
        assert kernel.run(loaded).text == "['anywidget', 'ipyparallel']\n"


def test_ranks_of_one_host_are_started_without_discovery():
    code = (
        "import sys, phalanx, phalanx.magics\n"
        "with phalanx.Workspace.start(1, linger=0): pass\n"
        "print(*(name for name in sys.modules if name.startswith('phalanx.hosts._')))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.rpartition(".")[2] for name in said.stdout.split()}
    discovery = {"_cables", "_gather", "_linux", "_macos", "_networks", "_planning", "_probes"}
    others = {"_interfaces", "_json_form", "_plan", "_reach", "_rings", "_script", "_survey"}
    assert "_settings" in loaded
    assert not loaded & (discovery | others)


def test_every_name_of_hosts_is_one_of_its_own():
    for name in phalanx.hosts.__all__:
        its = getattr(phalanx.hosts, name)
        module = getattr(its, "__module__", None) or "phalanx.hosts"  # a table of data has none
        assert module.startswith(("phalanx.", "typing")), name


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_wheel_contents(tmp_path):
    wheel = os.environ.get("PHALANX_WHEEL")  # tests/run has built what it installs
    if wheel is None:
        said = subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", tmp_path, _ROOT,
             "-C", f"build-dir={tmp_path}/build", "-C", "cmake.build-type=Debug"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert said.returncode == 0, said.stdout + said.stderr
        (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"phalanx", "phalanx-0.1.0.dist-info"}
    assert {
        "phalanx/__init__.py",
        "phalanx/_native.pyi",
        "phalanx/_native_spans.pyi",
        "phalanx/notebooks/01_first_ranks.ipynb",
        "phalanx/notebooks/data/seattle-weather.csv",
        "phalanx/py.typed",
        "phalanx/widgets/__init__.py",
        "phalanx/widgets/static/topology.css",
        "phalanx/widgets/static/topology.js",
    } <= set(names)
    assert any(name.startswith("phalanx/_native.") and name.endswith(".so") for name in names)
    assert not [
        name for name in names if "__pycache__" in name or "/tests/" in name or "/js/" in name
    ]
