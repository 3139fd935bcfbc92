"""What the flight recorder costs each operation, in nanoseconds; part by part, in one thread.

The engine's own code is built (Release, as it ships) and called in a loop that does nothing else:
an operation's record is opened, learns when the last rank had come, and is closed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.common import arguments, print_machine, print_table, write_json

_ROOT = Path(__file__).resolve().parents[3]


def build(folder: Path) -> Path:
    """Build the program; gives where it is."""
    options = ["-DPHALANX_TESTS=ON", "-DCMAKE_BUILD_TYPE=Release"]
    for command in (
        ["cmake", "-S", _ROOT / "native", "-B", folder, *options],
        ["cmake", "--build", folder, "--parallel", "2", "--target", "recorder_cost"],
    ):
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(done.stdout)
    return folder / "tests" / "recorder_cost"


def main() -> None:
    options = arguments(
        "What the flight recorder costs each operation.",
        loops=(200_000, "times each part, of which there are 15 rounds"),
        build=(str(_ROOT / "build" / "native-plain"), "where to build it"),
    ).parse_args()
    program = build(Path(options.build))
    print_machine()
    said = subprocess.run(
        [program, str(options.loops)], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split("\t") for line in said.splitlines()]
    print_table(("what", "median, ns", "least, ns"), rows)
    write_json(
        options.json,
        [{"what": what, "ns": float(ns), "least_ns": float(least)} for what, ns, least in rows],
    )


if __name__ == "__main__":
    main()
