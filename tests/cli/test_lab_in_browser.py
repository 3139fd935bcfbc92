"""`phalanx lab` as a reader meets it: the tutorial opens, cells run, a question is answered."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from browser import chromium_page, comes

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(180)]
_ARTIFACTS = Path(__file__).resolve().parents[1] / "artifacts"
_NUMBERED = re.compile(r"\[\d+\]:")
_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/lab/tree/\S+token=\S+")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@contextmanager
def _lab(folder: Path) -> Iterator[str]:
    """Start ``phalanx lab``; gives the address that it prints."""
    private = {
        f"JUPYTER_{kind}_DIR": str(folder / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")
    }
    lab = subprocess.Popen(
        [sys.executable, "-m", "phalanx.cli", "lab", "--folder", folder / "notebooks", "--no-browser",
         "--port", str(_free_port()), "--ip=127.0.0.1", "--LabApp.news_url=None"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={**os.environ, **private},
    )  # fmt: skip
    address: list[str] = []
    is_known = threading.Event()
    said: list[str] = []

    def read() -> None:
        for line in lab.stdout:
            said.append(line)
            found = _ADDRESS.search(line)
            if found and not address:
                address.append(found[0])
                is_known.set()
        is_known.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        is_known.wait(60)
        assert address, "".join(said)
        _wait_listening(address[0])
        yield address[0]
    finally:
        lab.terminate()
        try:
            lab.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(lab.pid, signal.SIGKILL)
            lab.wait()
        reader.join(10)
        lab.stdout.close()


def _wait_listening(address: str) -> None:
    """JupyterLab prints its address a moment before it listens there."""
    where = urlsplit(address)
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection((where.hostname, where.port), timeout=5).close()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, f"nobody listens at {where.netloc}"
            time.sleep(0.02)
        else:
            return


def test_the_tutorial_in_a_browser(tmp_path):
    _ARTIFACTS.mkdir(exist_ok=True)
    errors: list[str] = []
    with (
        chromium_page(viewport={"width": 1280, "height": 1000}) as page,
        _lab(tmp_path) as address,
    ):
        page.on("pageerror", lambda error: errors.append(str(error)))
        try:
            _read_the_tutorial(page, address)
        except BaseException:
            page.screenshot(path=_ARTIFACTS / "lab-failed.png")
            raise
    assert errors == []


def _read_the_tutorial(page: Any, address: str) -> None:
    page.goto(address)
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for(timeout=60_000)
    page.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]').wait_for(timeout=60_000)
    _run_first_cell(page)

    def run_cell(*words: str) -> None:
        page.keyboard.press("Shift+Enter")
        for word in words:
            page.locator(".jp-OutputArea").get_by_text(word).first.wait_for(timeout=60_000)

    run_cell("4 ranks on 1 host")
    run_cell()
    run_cell(*(f"I am rank {rank} of 4" for rank in range(4)))
    run_cell()
    run_cell("300")
    run_cell()
    page.keyboard.press("Shift+Enter")  # %distributed topology
    picture = page.locator('.jp-OutputArea-output[data-mime-type="image/svg+xml"]').first
    picture.wait_for(timeout=60_000)
    page.screenshot(path=_ARTIFACTS / "lab-topology.png")
    run_cell()
    run_cell("1461 days")
    run_cell()
    run_cell("days, ")
    run_cell()
    run_cell("Dec ")
    run_cell()
    page.keyboard.press("Shift+Enter")
    box = page.locator("input.jp-Stdin-input")
    box.wait_for(timeout=60_000)
    page.screenshot(path=_ARTIFACTS / "lab-question.png")
    box.fill("Ada")
    box.press("Enter")
    for rank in range(4):
        page.get_by_text(f"hello Ada, says rank {rank}").first.wait_for(timeout=60_000)
    page.screenshot(path=_ARTIFACTS / "lab-answered.png")


def _run_first_cell(page: Any) -> None:
    """Run ``%load_ext`` until it has a number.

    JupyterLab says idle before its kernel listens; a cell run then is lost, or it asks for a kernel.
    """
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    cell = page.locator(".jp-Notebook .jp-CodeCell").first
    select = page.locator(".jp-Dialog .jp-mod-accept")
    for _ in range(20):
        if select.count():
            select.click()
        cell.locator(".cm-content").click()
        page.keyboard.press("Control+Enter")
        if comes(cell.locator(".jp-InputPrompt").get_by_text(_NUMBERED), 3.0):
            page.keyboard.press("ArrowDown")
            return
    pytest.fail("the kernel runs no cell")
