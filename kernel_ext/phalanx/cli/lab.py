"""`phalanx lab`: copy the packaged notebooks and open JupyterLab.

The process is replaced by JupyterLab (`os.execve`).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.errors import naming

if TYPE_CHECKING:
    from importlib.abc import Traversable

DESCRIPTION = (
    "Copies the tutorials to a folder of yours (files that are there stay as they are) and opens "
    "JupyterLab on a page that leads to the first one. Other arguments are handed to JupyterLab."
)
PASSES_ON = True
_FIRST = "start_here.ipynb"
_COPIED = (".ipynb", ".csv", ".md", ".txt")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``phalanx lab``."""
    parser.add_argument(
        "--folder", type=Path, default=Path("phalanx-notebooks"), help="where the copies go"
    )
    parser.add_argument(
        "--port", type=int, help="JupyterLab's port (default: a free one from 8888)"
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def copy_notebooks(folder: Path) -> list[str]:
    """Copy the packaged notebooks and data; return the files that were kept.

    These are existing files that differ from the packaged files.
    """
    return _copy(resources.files("phalanx.notebooks"), folder, "")


def _copy(source: Traversable, folder: Path, prefix: str) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    kept = []
    for item in sorted(source.iterdir(), key=lambda item: item.name):
        target = folder / item.name
        if item.is_dir():
            if not item.name.startswith((".", "_")):
                kept += _copy(item, target, f"{prefix}{item.name}/")
        elif item.name.endswith(_COPIED):
            data = item.read_bytes()
            try:
                with naming(target), target.open("xb") as file:
                    file.write(data)
            except FileExistsError:
                if target.read_bytes() != data:
                    kept.append(prefix + item.name)
    return kept


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:
    """Copy the notebooks and replace this process by JupyterLab."""
    if options.port is not None and not 0 < options.port < 65536:
        msg = f"--port {options.port} is no port; it must be 1 to 65535"
        raise ValueError(msg)
    if importlib.util.find_spec("jupyterlab") is None:
        msg = f"JupyterLab is not installed here; run: {sys.executable} -m pip install jupyterlab"
        raise ModuleMissingError(msg)
    folder = options.folder.absolute()
    for name in copy_notebooks(folder):
        print(f"kept your {folder / name}; delete it to get the packaged one", file=sys.stderr)
    print(f"notebooks: {folder}", file=sys.stderr)
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        f"--ServerApp.root_dir={folder}",
        f"--LabApp.default_url=/lab/tree/{_FIRST}",
    ]
    if options.port is not None:
        command.append(f"--port={options.port}")
    if options.no_browser:
        command.append("--no-browser")
    if os.geteuid() == 0 and "--allow-root" not in rest:
        # The user runs us as root on purpose (mostly in a container); JupyterLab would refuse.
        command.append("--allow-root")
    # Let a cell's `!phalanx` find the command even if this environment is not activated.
    scripts = sysconfig.get_path("scripts")
    path = os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])
    sys.stdout.flush()
    sys.stderr.flush()
    command += [word for word in rest if word != "--"]
    os.execve(sys.executable, command, {**os.environ, "PATH": path})  # noqa: S606


class ModuleMissingError(OSError):
    """An optional package that this command needs is not installed."""
