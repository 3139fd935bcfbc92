"""Builds and runs the engine's C++ tests (the plain kind); `tests/native/run` does the work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.skipif(
    not Path("/usr/include/doctest/doctest.h").exists(), reason="doctest-dev is not installed"
)
def test_the_cpp_tests_pass(tmp_path: Path) -> None:
    """Every C++ test passes in a fresh build."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(  # noqa: S603
        [str(RUN), "plain"],
        env={**os.environ, "PATH": path, "PHALANX_BUILD": str(tmp_path / "build")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
