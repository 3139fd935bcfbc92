"""What tests of several packages stand on."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """The folders that `phalanx config --save` would write on worlds of Macs, by the world's name."""
    from hosts.discovery.macs import save_worlds

    return save_worlds(tmp_path_factory.mktemp("saved"))
