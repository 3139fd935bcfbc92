"""`phalanx bench --tune`: each way by itself on real ranks, and the table that comes of it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow
_BENCH = [sys.executable, "-m", "phalanx.cli", "bench"]


def _bench(*words):
    return subprocess.run(
        [*_BENCH, *words], capture_output=True, text=True, timeout=100, check=False
    )


def test_a_table_is_measured_and_written(tmp_path):
    path = tmp_path / "selector.json"
    said = _bench(
        "-n", "3", "--transport", "tcp", "-b", "1K", "-e", "64K", "-f", "8", "--iters", "3",
        "--tune", str(path),
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    ways = [line[2:] for line in said.stdout.splitlines() if line.startswith("# ")]
    assert ways[0] == "mesh"
    assert {"mesh", "direct", "ring", "mesh broadcast", "chain"} < set(ways)
    assert f"PHALANX_SELECTOR={path}" in said.stdout
    written = json.loads(path.read_text())
    assert set(written["selector"]) == {"mesh_bytes", "direct_bytes", "mesh_broadcast_bytes"}
    # Each way was measured by itself, whatever the size.
    assert [row["algorithm"] for row in written["measured"]] == [
        way for way in ("mesh", "direct", "ring", "mesh", "chain") for _ in range(3)
    ]


@pytest.mark.parametrize(
    ("words", "why"),
    [(("-n", "1"), "one rank has no algorithm"), (("-n", "2"), "there is no folder for")],
)
def test_what_cannot_be_tuned(tmp_path, words, why):
    said = _bench(*words, "--tune", str(tmp_path / "nowhere" / "table.json"))
    assert said.returncode == 2
    assert why in said.stderr
    assert "Traceback" not in said.stderr
