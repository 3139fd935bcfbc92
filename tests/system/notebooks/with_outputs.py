"""Runs tutorials and keeps what they showed: python tests/system/notebooks/with_outputs.py [NOTEBOOK ...].

Without a name it runs all of them. GitHub shows notebooks without running them. Live widgets are left
out of the file: without their kernel only their still pictures can be shown. Run it on a machine with
nothing else to do: the notebooks show times. The one on many hosts runs on three hosts of a bed.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from support.hosts.bed import Bed
from support.notebooks.kernel_driver import KernelDriver
from support.notebooks.tutorials import FOLDER, read, run_tutorial_cell

MANY_HOSTS = FOLDER / "05_many_hosts.ipynb"
WIDGET = "application/vnd.jupyter.widget-view+json"
_TIMEOUT_S = 200  # a few seconds, on a machine with nothing else to do


class _Watching(KernelDriver):
    """Keeps the lines that come and go while a cell runs: what is seen of the boot."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lines: list[str] = []

    def messages(self, seconds: float) -> Iterator[tuple[str, dict[str, Any]]]:
        for channel, message in super().messages(seconds):
            text = message["content"].get("data", {}).get("text/plain", "")
            if text.startswith("▸"):
                self.lines.append(text)
            yield channel, message


def _in_file(output: dict[str, Any]) -> nbformat.NotebookNode:
    """An output in a file's form, without a kernel's own keys."""
    if "data" in output:
        keys = ("output_type", "execution_count", "data")
        output = {key: output[key] for key in keys if key in output} | {"metadata": {}}
    return nbformat.from_dict(output)


def run_here(copy: Path) -> list[str]:
    """Run a copy top to bottom in its folder, and write its outputs; the lines that came and went."""
    folder = str(copy.parent)
    # `!phalanx` is found where pip has put it.
    programs = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    notebook = read(copy)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    with _Watching(cwd=folder, XDG_RUNTIME_DIR=folder, PATH=programs) as kernel:
        for number, cell in enumerate(cells, 1):
            result = run_tutorial_cell(kernel, cell)
            cell.execution_count, cell.outputs = number, list(map(_in_file, result.outputs))
    nbformat.write(notebook, copy)
    return kernel.lines


def run_on_bed(bed: Bed, copy: Path) -> list[str]:
    """Run a copy as `run_here` does, on the first host of a bed."""
    command = [sys.executable, Path(__file__).resolve(), "--here", copy]
    said = bed.run(0, command, timeout=_TIMEOUT_S).stdout
    return list(json.loads(said.splitlines()[-1]))


def _is_kept(output: nbformat.NotebookNode) -> bool:
    """Whether it is shown without a kernel; the still picture beside a widget tells as much."""
    return "data" not in output or bool(output.data and WIDGET not in output.data)


def write(path: Path) -> None:
    """Run the notebook top to bottom, and write it with its outputs."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name, "copy.ipynb")
        copy.write_bytes(path.read_bytes())
        places = {}
        if path.name == MANY_HOSTS.name:
            places = {name: "/home/ada/notebooks", sys.prefix: "/home/ada/venv"}
            with Bed(3) as bed:
                run_on_bed(bed, copy)
        else:
            run_here(copy)
        notebook = read(copy)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = list(filter(_is_kept, cell.outputs))
            for output in cell.outputs:
                for place, shown in places.items() if "text" in output else ():
                    output.text = output.text.replace(place, shown)
    nbformat.validate(notebook)
    nbformat.write(notebook, path)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        print(json.dumps(run_here(Path(sys.argv[2]))))
    else:
        chosen = [Path(word) for word in sys.argv[1:]]
        for path in chosen or sorted(FOLDER.glob("0*.ipynb")):
            print(path.name, flush=True)
            write(path)
