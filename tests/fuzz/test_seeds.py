"""Every seed of every target, without a fuzzer: what once broke one is never to break it again.

The engine's are replayed by its C++ tests (`tests/native/group/test_seeds.cpp`).
"""

from __future__ import annotations

import importlib
import subprocess
from base64 import b64encode
from pathlib import Path

import pytest

_SEEDS = Path(__file__).parent / "seeds"
_TARGETS = sorted(path.stem for path in _SEEDS.parent.glob("targets/*.py"))


@pytest.mark.parametrize("target", _TARGETS)
def test_every_seed_passes(target):
    seeds = sorted((_SEEDS / target).iterdir())
    assert seeds
    one = importlib.import_module(f"fuzz.targets.{target}").one
    failed = {}
    for seed in [None, *seeds]:
        data = seed.read_bytes() if seed is not None else b""
        try:
            one(data)
        except BaseException as error:  # noqa: BLE001 - all of them are told at once
            # With what it takes to replay it elsewhere: a fuzzer may have put it here just now.
            is_new = seed is not None and seed.name.startswith("crash-")
            found = f" (base64 {b64encode(data).decode()})" if is_new else ""
            failed[seed.name if seed is not None else ""] = (
                f"{type(error).__name__}: {error}{found}"
            )
    assert not failed


def test_seeds_are_small_and_of_a_target_each():
    assert {path.name for path in _SEEDS.iterdir()} == {*_TARGETS, "engine"}
    seeds = [path for path in _SEEDS.rglob("*") if path.is_file()]
    assert max(path.stat().st_size for path in seeds) <= 4096
    assert sum(path.stat().st_size for path in seeds) < 200_000


def test_the_runner_refuses_what_is_no_time():
    run = subprocess.run([_SEEDS.parent / "run", "soon"], capture_output=True, check=False)
    assert run.returncode == 2
    assert b"usage" in run.stderr
