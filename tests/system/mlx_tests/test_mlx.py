"""MLX on phalanx: the cases of its own distributed tests, and its tests where a checkout is named."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from distributed.farm.farm import Farm
from mlx_tests.run import PLAN, run_file
from support.programs.launching import of_each, printed
from support.runs.tiers import deep_but

CHECKOUT_VARIABLE = "PHALANX_MLX_CHECKOUT"
cases = pytest.importorskip("mlx_tests.cases", exc_type=ImportError)  # it needs MLX


@pytest.fixture(scope="module")
def farm():
    """Ranks in which phalanx takes the place of `mx.distributed`."""
    farm = Farm()
    yield farm
    farm.close()


@pytest.mark.slow
@pytest.mark.parametrize("case", [name for name in cases.CASES if name not in cases.NOT_OF_OURS])
@pytest.mark.parametrize("size", deep_but([2, 3], [2, 3, 4, 8]))
def test_mlx_gets_what_it_expects_of_our_functions(farm, size, case):
    farm.world(size).run(cases.run, case)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "transport"), [(2, "tcp"), (3, "any")])
def test_mlx_gets_what_it_expects_of_its_own_on_our_ranks(n, transport, tmp_path):
    code = f"import sys\nsys.path[:0] = {sys.path!r}\nfrom mlx_tests import cases\ncases.run_all()\nprint('right')"
    assert printed(tmp_path, n, code, "--transport", transport) == of_each(n, "right")


@pytest.fixture
def tests_of_mlx() -> Path:
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
