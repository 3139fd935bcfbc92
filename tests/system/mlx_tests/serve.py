"""One rank of MLX's own distributed tests: MLX's functions call phalanx as its MPI (`phalanx.adapters.mlx`).

Usage, on every rank: serve.py FILE [TEST ...]; FILE is one of MLX's, in a folder that has its
`mlx_tests.py`; a TEST begins with ``-`` where it is left out. Prints one line per test.
"""

from __future__ import annotations

import importlib
import sys
import unittest
from pathlib import Path

import mlx.core as mx


def take_mpi_for_ring() -> None:
    """Give MLX's tests of its ring the backend that the adapter serves."""
    plain = mx.distributed.init

    def init(strict=False, backend="any", **options):
        return plain(strict, backend="mpi" if backend == "ring" else backend, **options)

    mx.distributed.init = init


class Lines(unittest.TestResult):
    """Says how each test ended, in a form that `run` reads."""

    def addSuccess(self, test):
        super().addSuccess(test)
        print("passed", test._testMethodName, flush=True)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._tell("failed", test, self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        name = test if hasattr(test, "_testMethodName") else self
        self._tell("failed", name, self.errors[-1][1])

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        print("skipped", test._testMethodName, reason, flush=True)

    @staticmethod
    def _tell(how, test, trace):
        print(trace, file=sys.stderr)
        last = trace.strip().splitlines()[-1]
        print(how, getattr(test, "_testMethodName", "setup"), last, flush=True)


def main() -> int:
    path, *wanted = sys.argv[1:]
    sys.path.insert(0, str(Path(path).parent))
    take_mpi_for_ring()
    module = importlib.import_module(Path(path).stem)
    left_out = {name[1:] for name in wanted if name.startswith("-")}
    wanted = [name for name in wanted if not name.startswith("-")]
    suite = unittest.TestSuite()
    for group in unittest.defaultTestLoader.loadTestsFromModule(module):
        for test in group:
            name = test._testMethodName
            if name not in left_out and (not wanted or name in wanted):
                suite.addTest(test)
    suite.run(Lines())
    return 0  # a status would have `phalanx launch` end the other ranks; the lines tell


if __name__ == "__main__":
    sys.exit(main())
