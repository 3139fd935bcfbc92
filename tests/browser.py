"""A page in Debian's chromium, driven by playwright; tests skip where either is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

# As root in a sandbox without a GPU and without a network; no traffic of the browser's own.
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def chromium_page(**context: Any) -> Iterator[Any]:
    """Open a page; keyword arguments are those of playwright's ``new_context``."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("chromium is not installed")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        try:
            yield browser.new_context(**context).new_page()
        finally:
            browser.close()


def comes(locator: Any, seconds: float) -> bool:
    """Whether what is looked for is on the page within so many seconds."""
    sync_api = pytest.importorskip("playwright.sync_api")
    try:
        locator.first.wait_for(timeout=1000 * seconds)
    except sync_api.TimeoutError:
        return False
    return True
