"""JupyterLab and Notebook 7 on the packaged tutorials, and a page's first steps in them.

It knows their addresses and a few of their classes, nothing of what the cells say.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nbformat
import pytest
from support.notebooks.browser import PATIENCE_MS
from support.promise import PATIENCE_S
from support.waiting import wait_until

from phalanx.cli.lab import copy_notebooks

_NUMBERED = re.compile(r"\[\d+\]:")
_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/(?:lab/tree/|tree\?)\S*token=\S+")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


START_PAGE = "start_here.ipynb"
FIRST_TUTORIAL = "01_first_ranks.ipynb"


@contextmanager
def lab(folder: Path) -> Iterator[str]:
    """Start ``phalanx lab``; gives the address of the first tutorial. It prints that of START_PAGE."""
    command = ["-m", "phalanx", "lab", "--folder", folder / "notebooks"]
    with _server(
        folder, command, "--LabApp.news_url=None", "--LabApp.expose_app_in_browser=True"
    ) as address:
        _clear_outputs(folder / "notebooks")
        assert START_PAGE in address
        yield address.replace(START_PAGE, FIRST_TUTORIAL)


@contextmanager
def notebook_7(folder: Path) -> Iterator[str]:
    """Start Notebook 7 on the tutorials; gives the address of the first one."""
    pytest.importorskip("notebook", minversion="7")
    copy_notebooks(folder / "notebooks")
    _clear_outputs(folder / "notebooks")
    command = ["-m", "notebook", "--allow-root", f"--ServerApp.root_dir={folder / 'notebooks'}"]
    with _server(folder, command, "--JupyterNotebookApp.expose_app_in_browser=True") as address:
        yield address.replace("/tree?", f"/notebooks/{FIRST_TUTORIAL}?")


def _clear_outputs(notebooks: Path) -> None:
    """Clear what copies of tutorials were saved with: it would pass for what a run shows."""
    for path in notebooks.glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        nbformat.write(notebook, path)


@contextmanager
def _server(folder: Path, command: list[Any], *more: str) -> Iterator[str]:
    env = os.environ | {
        f"JUPYTER_{kind}_DIR": str(folder / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")
    }
    env["XDG_RUNTIME_DIR"] = str(folder)
    server = subprocess.Popen(
        [sys.executable, *command, "--no-browser", f"--port={_free_port()}", "--ip=127.0.0.1", *more],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env=env,
    )  # fmt: skip
    address: list[str] = []
    is_known = threading.Event()
    said: list[str] = []

    def read() -> None:
        for line in server.stdout:
            said.append(line)
            found = _ADDRESS.search(line)
            if found and not address:
                address.append(found[0])
                is_known.set()
        is_known.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        is_known.wait(PATIENCE_MS / 1000)
        assert address, "".join(said)
        wait_until(lambda: _is_listening(address[0]), f"somebody listens at {address[0]}")
        yield address[0]
    finally:
        server.terminate()
        try:
            server.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        reader.join(PATIENCE_S)
        server.stdout.close()
        end_ranks(folder)


def end_ranks(folder: Path) -> None:
    """End the workspaces of kernels that have ended: a reader's ranks outlive them, a test's not.

    ``folder`` was their user's runtime folder.
    """
    names = [sock.stem for sock in (folder / "phalanx").glob("*.sock")]
    if names:
        subprocess.run(
            [sys.executable, "-m", "phalanx", "stop", *names],
            env=os.environ | {"XDG_RUNTIME_DIR": str(folder)},
            check=False,
            timeout=PATIENCE_MS / 1000,
        )


def _is_listening(address: str) -> bool:
    """Whether Jupyter listens there: it prints its address a moment before."""
    where = urlsplit(address)
    try:
        socket.create_connection((where.hostname, where.port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def open_notebook(page: Any, address: str) -> None:
    """Open a notebook and run its first cell, ``%load_ext``; what is selected then is the next."""
    page.goto(address)
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for(timeout=PATIENCE_MS)
    page.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]').wait_for(
        timeout=PATIENCE_MS
    )
    _run_first_cell(page)


def change_theme(page: Any, widget: str) -> None:
    """Go to JupyterLab's dark theme; returns once the widget of this selector has followed."""
    style = f"() => getComputedStyle(document.querySelector('{widget}')).backgroundColor"
    light = page.evaluate(style)
    page.evaluate(
        "() => window.jupyterapp.commands.execute('apputils:change-theme',"
        " {theme: 'JupyterLab Dark'})"
    )
    page.wait_for_function(f"light => ({style})() !== light", arg=light, timeout=PATIENCE_MS)
    page.locator("#jupyterlab-splash").wait_for(state="detached", timeout=PATIENCE_MS)


def saved_picture(page: Any, notebook: Path, cell: int) -> dict[str, Any]:
    """Save the notebook; returns the one picture that the file says a cell has displayed."""
    page.keyboard.press("Escape")
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    page.wait_for_function("() => !document.querySelector('.jp-mod-dirty')", timeout=PATIENCE_MS)
    saved = json.loads(notebook.read_text(encoding="utf-8"))
    outputs = saved["cells"][cell]["outputs"]
    (shown,) = (its for its in outputs if "image/svg+xml" in its.get("data", {}))
    return shown


_IS_CONNECTED = """() => {
    const context = window.jupyterapp?.shell.currentWidget?.sessionContext;
    const kernel = context?.session?.kernel;
    return context?.isReady && kernel?.connectionStatus === 'connected' && kernel.status === 'idle';
}"""


def _run_first_cell(page: Any) -> None:
    """Run the first cell once its kernel is connected; Jupyter says idle a moment before."""
    # It asks for a kernel where that of the notebook is not known yet.
    select = "document.querySelector('.jp-Dialog .jp-mod-accept')"
    page.wait_for_function(f"() => {select} || ({_IS_CONNECTED})()", timeout=PATIENCE_MS)
    if page.evaluate(f"() => Boolean({select})"):
        page.locator(".jp-Dialog .jp-mod-accept").click()
        page.wait_for_function(_IS_CONNECTED, timeout=PATIENCE_MS)
    cell = page.locator(".jp-Notebook .jp-CodeCell").first
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    cell.locator(".jp-InputPrompt").get_by_text(_NUMBERED).wait_for(timeout=PATIENCE_MS)
    page.keyboard.press("ArrowDown")
