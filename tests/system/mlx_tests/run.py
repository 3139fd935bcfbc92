"""Run MLX's own distributed tests, with phalanx as the MPI that `mx.distributed` calls.

    python tests/system/mlx_tests/run.py --mlx-tests MLX/python/tests

where MLX is a checkout of ml-explore/mlx; nothing of it is kept here. It needs the package mlx.
`test_mlx` runs the same where PHALANX_MLX_CHECKOUT names that checkout.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import unittest
from pathlib import Path

_NOT_OF_3 = ("test_shard_linear", "test_shard_predicate")  # they shard 1024 and 128 rows
# File, ranks, and what is left out: ring's `test_groups` asserts that split fails. MPI's file is
# written for 8 ranks: its `test_groups` and `test_mixed` assert that, and its `test_send_recv` needs pairs.
PLAN = (
    ("ring_test_distributed.py", 2, ("test_groups",)),
    ("ring_test_distributed.py", 3, ("test_groups", *_NOT_OF_3)),
    ("ring_test_distributed.py", 4, ("test_groups",)),
    ("mpi_test_distributed.py", 8, ()),
    ("ring_test_distributed.py", 8, ("test_groups",)),
    ("mpi_test_distributed.py", 2, ("test_groups", "test_mixed")),
    ("mpi_test_distributed.py", 3, ("test_groups", "test_mixed", "test_send_recv", *_NOT_OF_3)),
    ("mpi_test_distributed.py", 4, ("test_groups", "test_mixed")),
)


def run_file(path: Path, ranks: int, left_out: tuple[str, ...], timeout: float) -> bool:
    """Run one file on so many ranks and print how that ended; whether all tests passed on all ranks."""
    command = [sys.executable, "-m", "phalanx", "launch", "-n", str(ranks), "--label", "none"]
    command += ["--", sys.executable, __file__, "--rank", str(path), *left_out]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        said, errors, status = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        said, errors, status = "", (error.stderr or b"").decode(), -1
    ends = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    print(f"{path.name}, {ranks} ranks: exit status {status}, {ends}", flush=True)
    is_good = status == 0 and len(ends) == ranks
    if not (is_good := is_good and all(its["passed"] and not its["failed"] for its in ends)):
        print(errors, file=sys.stderr)
    return is_good


def run_rank(path: Path, left_out: list[str]) -> None:
    """Run the tests of a file as one rank; print how many passed, and which failed.

    A status would have `phalanx launch` end the other ranks; the line tells.
    """
    import mlx.core as mx

    plain = mx.distributed.init

    def init(strict=False, backend="any", **options):
        """Give MLX's tests of its ring the backend that the adapter serves."""
        return plain(strict, backend="mpi" if backend == "ring" else backend, **options)

    mx.distributed.init = init
    sys.path.insert(0, str(path.parent))
    suite = unittest.TestSuite()
    module = importlib.import_module(path.stem)
    for group in unittest.defaultTestLoader.loadTestsFromModule(module):
        suite.addTests(test for test in group if test._testMethodName not in left_out)
    found = unittest.TextTestRunner(sys.stderr, verbosity=2).run(suite)
    failed = [str(test) for test, _ in found.failures + found.errors]
    passed = found.testsRun - len(failed) - len(found.skipped)
    print(json.dumps({"passed": passed, "failed": failed}), flush=True)


def main() -> int:
    if sys.argv[1:2] == ["--rank"]:
        run_rank(Path(sys.argv[2]), sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mlx-tests", type=Path, required=True, help="MLX's folder python/tests")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one file")
    options = parser.parse_args()
    folder = options.mlx_tests.resolve()
    if lacking := sorted({name for name, _, _ in PLAN if not (folder / name).is_file()}):
        parser.error(f"there is no {' and no '.join(lacking)} in {folder}")
    results = [run_file(folder / name, *how, options.timeout) for name, *how in PLAN]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
