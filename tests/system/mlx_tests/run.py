"""Run MLX's own distributed tests, with phalanx as the MPI that `mx.distributed` calls.

    python tests/system/mlx_tests/run.py --mlx-tests MLX/python/tests

where MLX is a checkout of ml-explore/mlx; nothing of it is kept here. It needs the package mlx.
`test_mlx` runs the same where PHALANX_MLX_CHECKOUT names that checkout.
A table says which tests of which file passed on all of how many ranks.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

# File, ranks, and what is left out: ring's `test_groups` asserts that split fails, and those that
# shard 1024 and 128 rows cannot do so among 3 ranks, in any implementation. MPI's file is written for
# 8 ranks: its `test_groups` and `test_mixed` assert that, and its `test_send_recv` needs pairs.
PLAN = (
    ("ring_test_distributed.py", 2, ("-test_groups",)),
    (
        "ring_test_distributed.py",
        3,
        ("-test_groups", "-test_shard_linear", "-test_shard_predicate"),
    ),
    ("ring_test_distributed.py", 4, ("-test_groups",)),
    ("mpi_test_distributed.py", 8, ()),
    ("ring_test_distributed.py", 8, ("-test_groups",)),
    ("mpi_test_distributed.py", 2, ("-test_groups", "-test_mixed")),
    (
        "mpi_test_distributed.py",
        3,
        (
            "-test_groups",
            "-test_mixed",
            "-test_send_recv",
            "-test_shard_linear",
            "-test_shard_predicate",
        ),
    ),
    ("mpi_test_distributed.py", 4, ("-test_groups", "-test_mixed")),
)
SERVE = Path(__file__).with_name("serve.py")
# `phalanx launch` puts the rank in front of each line.
LINE = re.compile(r"^\[(\d+)\] (passed|failed|skipped) (\w+) ?(.*)$")


def run_file(path: Path, ranks: int, tests: tuple[str, ...], timeout: float) -> bool:
    """Run one file on so many ranks and print how each test ended."""
    command = [sys.executable, "-m", "phalanx", "launch", "-n", str(ranks), "--"]
    command += [sys.executable, str(SERVE), str(path), *tests]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        out, err, status = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        out, err, status = (error.stdout or b"").decode(), (error.stderr or b"").decode(), "late"
    ends: dict[str, dict[int, tuple[str, str]]] = defaultdict(dict)
    for line in out.splitlines():
        if match := LINE.match(line):
            rank, how, name, why = match.groups()
            ends[name][int(rank)] = (how, why)
    print(f"\n{path.name}, {ranks} ranks: exit status {status}")
    is_good = status == 0 and bool(ends)
    for name, by_rank in sorted(ends.items()):
        worst = min(by_rank.values())  # failed < passed < skipped
        missing = "" if len(by_rank) == ranks else f" (only {len(by_rank)} ranks ended it)"
        print(f"  {worst[0]:8}{name}{missing}{'  ' + worst[1] if worst[1] else ''}")
        is_good &= worst[0] != "failed" and not missing
    if not is_good:
        print(err, file=sys.stderr)
    return is_good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mlx-tests", type=Path, required=True, help="MLX's folder python/tests")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one file")
    parser.add_argument("tests", nargs="*", help="only these, by name; -NAME leaves one out")
    options = parser.parse_args()
    folder = options.mlx_tests.resolve()
    lacking = sorted({name for name, _, _ in PLAN if not (folder / name).is_file()})
    if lacking:
        parser.error(f"there is no {' and no '.join(lacking)} in {folder}")
    results = [
        run_file(folder / name, ranks, (*left_out, *options.tests), options.timeout)
        for name, ranks, left_out in PLAN
    ]
    print(f"\n{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
