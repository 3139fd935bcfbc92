"""Executes the tutorial on many hosts on three hosts of a bed; as a program, saves what it showed.

`python tests/system/notebooks/many_hosts.py` writes the notebook's outputs anew: a reader without hosts has
nothing else to look at. It knows the file and the bed, nothing of what the cells say.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[3] / "notebooks" / "05_many_hosts.ipynb"
WIDGET = "application/vnd.jupyter.widget-view+json"
_TIMEOUT_S = 200  # a few seconds, on a machine with nothing else to do


class _Watching(NotebookClient):
    """Keeps the lines that come and go while a cell runs: what is seen of the boot."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.lines: list[str] = []

    async def async_start_new_kernel_client(self) -> Any:
        """Start a kernel that takes a person to be there: it shows lines that come and go."""
        client = await super().async_start_new_kernel_client()
        client.allow_stdin = True
        return client

    def process_message(self, msg: dict[str, Any], *args: Any) -> Any:
        text = msg["content"].get("data", {}).get("text/plain", "")
        if text.startswith("▸"):
            self.lines.append(text)
        return super().process_message(msg, *args)


def execute(bed: Any, folder: Path) -> tuple[nbformat.NotebookNode, list[str]]:
    """Execute it on host a, in this folder: the notebook with its outputs, the lines of the boot."""
    copy = folder / "copy.ipynb"
    copy.write_bytes(NOTEBOOK.read_bytes())
    # `!phalanx` is found where pip has put it.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    command = [sys.executable, Path(__file__).resolve(), copy]
    bed.run(0, command, cwd=folder, timeout=_TIMEOUT_S, env={**os.environ, "PATH": path})
    lines = json.loads((folder / "lines.json").read_text(encoding="utf-8"))
    return nbformat.read(copy, as_version=4), lines


def _execute_here(copy: Path) -> None:
    """Execute a copy with a kernel of this host."""
    notebook = nbformat.read(copy, as_version=4)
    client = _Watching(
        notebook,
        timeout=_TIMEOUT_S,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(copy.parent)}},
    )
    client.execute()
    copy.with_name("lines.json").write_text(json.dumps(client.lines), encoding="utf-8")
    nbformat.write(notebook, copy)


def save() -> None:
    """Execute it and write its outputs into its file: still pictures, and no folder of ours."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from support.hosts.bed import Bed

    with tempfile.TemporaryDirectory() as name, Bed(3) as bed:
        done, _ = execute(bed, Path(name))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell, its in zip(notebook.cells, done.cells, strict=True):
        if cell.cell_type == "code":
            cell.execution_count, cell.outputs = its.execution_count, its.outputs
        if "outputs" in cell:  # the still picture beside a widget tells as much
            cell.outputs = [its for its in cell.outputs if WIDGET not in its.get("data", {})]
        for output in cell.get("outputs", []):
            if "text" in output:
                text = output.text.replace(name, "/home/ada/notebooks")
                output.text = text.replace(sys.prefix, "/home/ada/venv")
    text = nbformat.writes(notebook, indent=1, ensure_ascii=False, sort_keys=True)
    NOTEBOOK.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:]:
        _execute_here(Path(sys.argv[1]))
    else:
        save()
