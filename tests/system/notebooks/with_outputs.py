"""Runs tutorials and keeps what they showed: python tests/system/notebooks/with_outputs.py [NOTEBOOK ...].

Without a name it runs all of them. GitHub shows notebooks without running them. Live widgets are left
out of the file: without their kernel only their still pictures can be shown. Run it on a machine with
nothing else to do: the notebooks show times.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import nbformat

sys.path[:0] = [str(Path(__file__).resolve().parents[n]) for n in (1, 2)]

from notebooks import many_hosts
from support.notebooks.kernel_driver import KernelDriver
from support.notebooks.tutorials import run_tutorial_cell

_LIVE = "application/vnd.jupyter.widget-view+json"


def kept(outputs: list[dict[str, Any]]) -> list[nbformat.NotebookNode]:
    """Outputs in a file's form: still pictures for widgets, and no kernel's own keys."""
    found: list[nbformat.NotebookNode] = []
    for output in outputs:
        if "data" in output:
            keys = ("output_type", "execution_count")
            own = {key: output[key] for key in keys if key in output}
            if output["data"] and _LIVE not in output["data"]:
                form = {**own, "data": output["data"], "metadata": {}}
                found.append(nbformat.from_dict(form))
        else:
            found.append(nbformat.from_dict(output))
    return found


def write(path: Path) -> None:
    """Run the notebook top to bottom, and write it with its outputs."""
    if path.name == many_hosts.NOTEBOOK.name:
        many_hosts.save()  # it needs hosts
        return
    # `!phalanx` is found where pip has put it.
    programs = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    notebook = nbformat.read(path, as_version=4)
    with (
        tempfile.TemporaryDirectory() as folder,
        KernelDriver(cwd=folder, XDG_RUNTIME_DIR=folder, PATH=programs) as kernel,
    ):
        number = 0
        for cell in notebook.cells:
            if cell.cell_type != "code":
                continue
            number += 1
            result = run_tutorial_cell(kernel, cell)
            cell.execution_count = number
            cell.outputs = kept(result.outputs)
    nbformat.validate(notebook)
    nbformat.write(notebook, path)


if __name__ == "__main__":
    chosen = [Path(word) for word in sys.argv[1:]]
    for path in chosen or sorted(many_hosts.NOTEBOOK.parent.glob("0*.ipynb")):
        print(path.name, flush=True)
        write(path)
