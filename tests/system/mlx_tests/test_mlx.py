"""MLX on phalanx: the cases of its own distributed tests, and its tests where a checkout is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from distributed.farm.farm import Farm
from mlx_tests.run import PLAN, run_file
from support.runs.tiers import deep_but

CHECKOUT_VARIABLE = "PHALANX_MLX_CHECKOUT"
CASES = [
    "groups", "side_channels", "reductions", "gathers_of_ones", "gathers_of_ranks",
    "scattered_sums", "messages_around", "messages_to_and_fro", "sums_of_pairs_gathered_across",
    "gradient_of_a_gather", "averages_of_gradients", "norms_of_sharded_gradients",
    "linear_layers", "gradients_of_linear_layers", "convolutions", "fully_sharded_layers",
]  # fmt: skip


@pytest.fixture(scope="module")
def farm():
    """Ranks in which phalanx takes the place of `mx.distributed`."""
    pytest.importorskip("mlx.core")
    farm = Farm()
    yield farm
    farm.close()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", deep_but([2, 3, 4], [2, 3, 4, 8]))
def test_mlx_gets_what_it_expects(farm, size, case):
    from mlx_tests import cases

    farm.world(size).run(cases.run, case)


def test_no_case_is_forgotten():
    pytest.importorskip("mlx.core")
    from mlx_tests import cases

    assert list(cases.CASES) == CASES


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
