"""Fixtures of the fault suite: a farm of its own, as every test breaks some of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from distributed.farm.farm import Farm


@pytest.fixture(scope="session")
def fault_farm() -> Iterator[Farm]:
    farm = Farm()
    yield farm
    farm.close()
