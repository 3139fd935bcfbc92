"""`phalanx bench --tune`: each way by itself on real ranks, and the table that comes of it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from msgspec.structs import replace
from support.tiers import deep
from support.worlds import make_sweep

from phalanx.cli.main import main
from phalanx.workspace import Workspace

_BENCH = [sys.executable, "-m", "phalanx.cli", "bench"]


def _bench(*words):
    return subprocess.run(
        [*_BENCH, *words], capture_output=True, text=True, timeout=100, check=False
    )


def measure(path, n, transport):
    """Measure a table; return the ways, the thresholds and the algorithms of the rows."""
    said = _bench(
        "-n", str(n), "--transport", transport, "-b", "1K", "-e", "64K", "-f", "8", "--iters", "3",
        "--tune", str(path),
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert f"PHALANX_SELECTOR={path}" in said.stdout
    ways = [line[2:] for line in said.stdout.splitlines() if line.startswith("# ")]
    written = json.loads(path.read_text())
    return ways, set(written["selector"]), [row["algorithm"] for row in written["measured"]]


@pytest.mark.slow
def test_a_table_is_measured_and_written(tmp_path):
    ways, thresholds, algorithms = measure(tmp_path / "selector.json", 2, "any")
    assert ways[0] == "inline"
    assert "staged" in ways
    assert thresholds == {"inline_bytes"}
    # Each way was measured by itself; 64 KiB are more than the room for inline.
    assert algorithms == ["inline", "inline", "staged", "staged", "staged", "staged"]


@pytest.mark.slow
@deep  # five workspaces
def test_a_table_over_tcp_is_measured_and_written(tmp_path):
    ways, thresholds, algorithms = measure(tmp_path / "selector.json", 3, "tcp")
    assert ways[0] == "mesh"
    assert {"mesh", "direct", "ring", "mesh broadcast", "chain"} < set(ways)
    assert thresholds == {"mesh_bytes", "direct_bytes", "mesh_broadcast_bytes"}
    assert algorithms == [
        way for way in ("mesh", "direct", "ring", "mesh", "chain") for _ in range(3)
    ]


class Wrong:
    """Ranks whose results are wrong from the second size on."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def bench(self, op, **_):
        first, second, third = make_sweep(op, 3)
        yield first
        yield replace(second, n_wrong=7)
        yield third


def test_no_table_comes_of_wrong_results(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Workspace, "start", lambda *_, **__: Wrong())
    path = tmp_path / "selector.json"
    assert main(["bench", "-n", "2", "--tune", str(path)]) == 1
    assert not path.exists()
    told = capsys.readouterr()
    assert told.err.startswith(f"phalanx bench: 7 wrong elements of inline; {path} is not written")
    rows = [line for line in told.out.splitlines() if not line.startswith("#")]
    assert len(rows) == 2  # and it ends there


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--op", "broadcast"), "--op"), (("--dtype", "float64", "--json"), "--dtype and --json"),
     (("--op", "all_sum"), "--op")],
)  # fmt: skip
def test_what_a_table_is_not_measured_of_is_refused(tmp_path, capsys, words, said):
    path = tmp_path / "selector.json"
    assert main(["bench", "-n", "2", "--tune", str(path), *words]) == 2
    told = capsys.readouterr()
    assert told.err == (
        "phalanx bench: --tune measures all_sum and broadcast of float32 and prints rows; "
        f"leave out {said}\n"
    )
    assert told.out == ""
    assert not path.exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [(("-n", "1"), "one rank has no algorithm"), (("-n", "2"), "there is no folder for")],
)
def test_what_cannot_be_tuned(tmp_path, capsys, words, why):
    assert main(["bench", *words, "--tune", str(tmp_path / "nowhere" / "table.json")]) == 2
    assert why in capsys.readouterr().err
