"""Fixtures of this room: ranks as real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from distributed.farm import Farm, World
from distributed.meeting import Meeting


@pytest.fixture(scope="session")
def farm() -> Iterator[Farm]:
    farm = Farm()
    yield farm
    farm.close()


@pytest.fixture
def rank_pool(farm: Farm) -> Callable[..., World]:
    """Give worlds: ``rank_pool(size, hosts=(0, 0, 1), transport="tcp")``."""
    return farm.world


@pytest.fixture
def meet() -> Iterator[Callable[[int], Meeting]]:
    with ThreadPoolExecutor(8) as executor:
        yield lambda size: Meeting(executor, size)
