"""MLX's own distributed tests, served by phalanx, where a checkout of MLX is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from mlx_tests.run import PLAN, run_file

CHECKOUT_VARIABLE = "PHALANX_MLX_CHECKOUT"


@pytest.fixture
def tests_of_mlx() -> Path:
    pytest.importorskip("mlx.core")
    checkout = os.environ.get(CHECKOUT_VARIABLE)
    if not checkout:
        pytest.skip(f"{CHECKOUT_VARIABLE} names no checkout of ml-explore/mlx")
    folder = Path(checkout).expanduser() / "python" / "tests"
    assert folder.is_dir(), f"{CHECKOUT_VARIABLE}={checkout} has no python/tests"
    return folder


@pytest.mark.slow
@pytest.mark.timeout(330)
@pytest.mark.parametrize(("name", "ranks", "left_out"), PLAN)
def test_mlx_finds_what_it_expects(tests_of_mlx, name, ranks, left_out):
    assert run_file(tests_of_mlx / name, ranks, left_out, timeout=300.0)
