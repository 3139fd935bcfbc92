"""Workspaces of real processes."""

from __future__ import annotations

import pytest

from phalanx.workspace import Workspace


@pytest.fixture(scope="module")
def ws():
    """Three ranks that the tests of a file share."""
    with Workspace.start(n=3) as workspace:
        yield workspace


@pytest.fixture
def own():
    """Two ranks of a test's own, to break."""
    with Workspace.start(n=2) as workspace:
        yield workspace
