"""Run each benchmark and check that it prints its table; no time is asserted.

The soak: `tests/run soak`.
"""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from support.hosts.bed import why_not
from support.runs.tiers import deep

pytestmark = pytest.mark.slow
_HERE = Path(__file__).resolve().parent
_PROGRAMS = [
    path
    for path in sorted(_HERE.rglob("*.py"))
    if "parse_args()" in (text := path.read_text(encoding="utf-8")) and "\n    main()\n" in text
]


@deep
@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    [
        (
            "start.py", ["--ranks", "2", "--rounds", "1"],
            ["boot phalanx", "boot ipyparallel", "same process", "new process", "it is there", "first right sum"],
        ),
        ("rivals/compare.py", ["--rounds", "1", "--only", "some_ranks"], ["phalanx", "ipyparallel", "cell on rank 1"]),
        ("engine/call_cost.py", ["--loops", "100"], ["in place", "long way"]),
        pytest.param(
            "start.py", ["--hosts", "1", "--ranks", "1", "--rounds", "1", "--peers", "phalanx"], ["phalanx", "1 hosts"],
            marks=pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be had"),
        ),
        (
            "peers/training_steps.py",
            ["--ranks", "2", "--rounds", "1", "--steps", "2", "--warm", "1", "--width", "64", "--peers", "mlx, px", "--openmpi", ""],
            ["mlx, px.nn", "steps", "---"],
        ),
    ],
)  # fmt: skip
def test_it_runs(script, arguments, words, tmp_path):
    records = tmp_path / "records.jsonl"
    said = subprocess.run(
        [sys.executable, _HERE / script, *arguments, "--json", records],
        capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert said.returncode == 0, said.stdout + said.stderr
    table = [line for line in said.stdout.splitlines() if line.startswith("|")]
    assert all(any(word in line for line in table) for word in words)
    assert "- commit: " in said.stdout
    assert len(records.read_text().splitlines()) > 1


@pytest.mark.parametrize("script", _PROGRAMS, ids=lambda script: script.stem)
def test_help(script, monkeypatch, capsys):
    """Run each program in this process: a process for each costs half a second."""
    monkeypatch.syspath_prepend(script.parent)
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    before = set(sys.modules)
    try:
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
    finally:
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(_HERE)):
                del sys.modules[name]
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "usage: " in said
    assert said.count("  --") >= 1


@pytest.mark.parametrize("correct", [True, False])
def test_the_chart_shows_each_peer_and_no_wrong_result(correct, tmp_path, monkeypatch):
    about = {"op": "all_reduce", "mode": "fresh", "ranks": 2}
    times = {"phalanx": [2.0, 900.0], "gloo": [70.0, 4000.0]}
    lines = [
        about | {"peer": peer, "bytes": nbytes, "median_us": us, "correct": correct or nbytes == 8}
        for peer, both in times.items()
        for nbytes, us in zip((8, 1 << 22), both, strict=True)
    ]
    results = tmp_path / "sums.jsonl"
    results.write_text("\n".join(map(json.dumps, lines)))
    words = [str(results), "--output", str(tmp_path / "chart"), "--caption", "made up"]
    monkeypatch.setattr(sys, "argv", ["chart.py", *words])
    if not correct:
        with pytest.raises(SystemExit, match="wrong result of phalanx at 4194304 bytes"):
            runpy.run_path(str(_HERE / "peers/chart.py"), run_name="__main__")
        return
    runpy.run_path(str(_HERE / "peers/chart.py"), run_name="__main__")
    for theme in ("light", "dark"):
        picture = (tmp_path / f"chart_{theme}.svg").read_text(encoding="utf-8")
        assert all(word in picture for word in ("Phalanx", "Gloo", "2 ranks", "4 MiB", "made up"))
