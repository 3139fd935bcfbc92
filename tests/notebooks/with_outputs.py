"""Runs a tutorial and keeps what it showed: python tests/notebooks/with_outputs.py NOTEBOOK.

For notebooks that are to be read without being run, as on GitHub. Live widgets are left out of the
file: without their kernel only their still pictures can be shown.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

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
    notebook = nbformat.read(path, as_version=4)
    with (
        tempfile.TemporaryDirectory() as folder,
        KernelDriver(cwd=folder, XDG_RUNTIME_DIR=folder) as kernel,
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
    write(Path(sys.argv[1]))
