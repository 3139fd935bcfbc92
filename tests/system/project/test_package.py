"""What the package gives away: its public names, and what a wheel puts into site-packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from importlib import metadata
from operator import attrgetter
from pathlib import Path

import pytest
from support.notebooks.kernel_driver import KernelDriver
from support.places import ROOT

import phalanx

_LABEXTENSION = "phalanx-0.1.0.data/data/share/jupyter/labextensions/phalanx-toolbar"
_PUBLIC = {
    "CellError", "CollectiveMismatch", "CollectiveTimeout", "DistributedError", "Group", "NotConfigured",
    "NotSupported", "RankFailure", "Work", "Workspace", "all_gather", "all_gather_object", "all_max", "all_min",
    "all_sum", "all_to_all", "barrier", "broadcast", "broadcast_object", "init", "is_available", "nn", "print0", "recover", "recv",
    "recv_like", "send", "sum_scatter", "trace", "widgets",
}  # fmt: skip


def test_public_names():
    assert set(phalanx.__all__) == _PUBLIC
    assert set(phalanx.__all__) <= set(dir(phalanx))


def test_every_public_name_is_there_and_says_what_it_is():
    for name in sorted(_PUBLIC):
        its = getattr(phalanx, name)
        assert its.__doc__, name
        if name not in ("nn", "widgets"):
            assert its.__name__ == name


def test_every_operation_says_what_it_costs():
    for operation in (
        *("all_sum", "all_max", "all_min", "all_gather", "sum_scatter", "all_to_all", "broadcast"),
        *("send", "recv", "recv_like", "recover", "Group.barrier", "Group.split"),
        *("all_gather_object", "broadcast_object", "barrier"),
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


def test_a_supervisor_loads_no_numpy():  # 0.1 s of each start, and 13 MB
    code = (
        "import sys\n"
        "from phalanx.supervisor.hosts import agent\n"
        "from phalanx.supervisor.root import workspace_root\n"
        "assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_notebook_loads_a_client_and_widgets_when_it_needs_them():
    loaded = "import sys; [name for name in ('anywidget', 'ipyparallel') if name in sys.modules]"
    with KernelDriver() as kernel:
        kernel.run("%load_ext phalanx\n%distributed start -n 1 --linger 0")
        assert kernel.run("%%distributed\npx.all_sum(1)").text == "[0] Out: 1\n"
        kernel.run("%distributed stop")
        assert kernel.run(loaded).text == "[]\n"
        kernel.run("%distributed start -n 1 --linger 0\nws.push({'x': 1})\n%distributed topology")
        assert kernel.run(loaded).text == "['anywidget']\n"
        kernel.run("ws.client()")
        assert kernel.run(loaded).text == "['anywidget', 'ipyparallel']\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that tests/run has built, or one of these sources."""
    if made := os.environ.get("PHALANX_WHEEL"):
        return Path(made)
    folder = tmp_path_factory.mktemp("wheel")
    said = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", folder, ROOT,
         "-C", f"build-dir={folder}/build", "-C", "cmake.build-type=Debug"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stdout + said.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_wheel_is_installed_without_a_compiler(wheel, tmp_path):
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    env = {
        "PATH": str(venv / "bin"),
        "CC": "/bin/false",
        "CXX": "/bin/false",
        "HOME": str(tmp_path),
    }
    install = [sys.executable, "-m", "pip", "-q", "--python", venv / "bin/python", "install"]
    subprocess.run([*install, "--no-deps", "--no-index", wheel], env=env, check=True)
    # What it depends on is that of the tests; its own packages come first.
    (own,) = (venv / "lib").glob("python*/site-packages")
    (own / "tests.pth").write_text(sysconfig.get_path("platlib") + "\n")
    code = (
        "import numpy as np, phalanx as px, phalanx._native\n"
        "print(phalanx._native.__file__, px.all_sum(np.ones(3)), sep='\\n')"
    )
    said = subprocess.run(
        [venv / "bin/python", "-c", code], env=env, capture_output=True, text=True, check=True
    )
    native, total = said.stdout.splitlines()
    assert native.startswith(str(own))
    assert (venv / "share/jupyter/labextensions/phalanx-toolbar/package.json").is_file()
    assert total == "[1. 1. 1.]"
    said = subprocess.run(
        [venv / "bin/phalanx", "--version"], env=env, capture_output=True, text=True, check=True
    )
    assert said.stdout.split()[-1] == metadata.version("phalanx")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_wheel_contents(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "phalanx",
        "phalanx-0.1.0.data",
        "phalanx-0.1.0.dist-info",
    }
    assert {
        "phalanx/__init__.py",
        "phalanx/_native.pyi",
        "phalanx/adapters/libphalanx_mlx_mpi.so",
        "phalanx/notebooks/01_first_ranks.ipynb",
        "phalanx/notebooks/06_data_parallel.ipynb",
        "phalanx/notebooks/data/seattle-weather.csv",
        "phalanx/notebooks/guide/coming_from_other_tools.md",
        "phalanx/notebooks/guide/reference.md",
        "phalanx/py.typed",
        "phalanx/widgets/__init__.py",
        "phalanx/widgets/static/topology.css",
        "phalanx/widgets/static/topology.js",
    } <= set(names)
    assert {name for name in names if "labextension" in name or ".data/" in name} == {
        f"{_LABEXTENSION}/package.json",
        f"{_LABEXTENSION}/static/remoteEntry.js",
    }
    extension = json.loads(zipfile.ZipFile(wheel).read(f"{_LABEXTENSION}/package.json"))
    assert extension["version"] == metadata.version("phalanx")
    assert any(name.startswith("phalanx/_native.") and name.endswith(".so") for name in names)
    assert not [
        name for name in names if "__pycache__" in name or "/tests/" in name or "/js/" in name
    ]
