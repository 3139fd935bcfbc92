"""Runs one Python target under atheris: `python tests/fuzz/drive.py TARGET [libFuzzer's options]`.

atheris, as it is libFuzzer guided by the branches that Python code takes (and by the strings and
numbers that it compares with), so the options, seeds and findings are those of the C++ target. Its
wheels bring libFuzzer along, for Linux; where there is none, `test_seeds.py` still replays the seeds.
"""

from __future__ import annotations

import gc
import importlib
import sys
import types
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def main() -> None:
    import atheris

    sys.path[:0] = [str(TESTS), str(TESTS / "packages")]
    name, *options = sys.argv[1:]
    target = importlib.import_module(f"fuzz.targets.{name}")
    # Not instrument_imports(): modules of an editable installation come from a loader of their own.
    for made in gc.get_objects():
        if isinstance(made, types.FunctionType) and str(made.__module__).startswith("phalanx."):
            atheris.instrument_func(made)
    atheris.Setup([sys.argv[0], *options], target.one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
