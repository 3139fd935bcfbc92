"""Debian's chromium, driven by playwright; tests skip where either is missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

# JupyterLab's page, its kernel and four ranks start within it on a machine that does other things.
PATIENCE_MS = 60_000
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
def chromium() -> Iterator[Any]:
    """Start a browser; it costs 2 s of a core, a page in it next to nothing."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("chromium is not installed")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=list(_FLAGS), timeout=PATIENCE_MS
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def pages(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open pages that share nothing; keyword arguments are those of playwright's ``new_context``."""
    contexts = []

    def open_page(**context: Any) -> Any:
        contexts.append(browser.new_context(**context))
        contexts[-1].set_default_timeout(PATIENCE_MS)
        return contexts[-1].new_page()

    try:
        yield open_page
    finally:
        for context in contexts:
            context.close()


@contextmanager
def chromium_page(**context: Any) -> Iterator[Any]:
    """Open a page in a browser of its own."""
    with chromium() as browser, pages(browser) as open_page:
        yield open_page(**context)


def comes(locator: Any, seconds: float) -> bool:
    """Whether what is looked for is on the page within so many seconds."""
    sync_api = pytest.importorskip("playwright.sync_api")
    try:
        locator.first.wait_for(timeout=1000 * seconds)
    except sync_api.TimeoutError:
        return False
    return True
