"""`%distributed bandwidth` in a real kernel: live or still, stopped, saved, laid over."""

from __future__ import annotations

import json
import re

import pytest
from kernel_driver import KernelDriver


@pytest.fixture(scope="module")
def ranks():
    with KernelDriver() as driver:
        assert driver.run("%load_ext phalanx").status == "ok"
        assert driver.run("%distributed start -n 3 --linger 0").status == "ok"
        yield driver


def test_a_still_sweep(ranks):
    result = ranks.run("%distributed bandwidth --still -b 8 -e 32K -f 64 --iters 5")
    assert result.status == "ok", result.text
    assert "image/svg+xml" in result.mimes()
    rows = [line for line in result.stdout.splitlines() if line.lstrip()[:1].isdigit()]
    assert len(rows) == 3
    assert "memory copy" in result.text
    assert "# time: " in result.text


def test_a_sweep_is_live_and_ends_as_a_picture(ranks):
    result = ranks.run("%distributed bandwidth -b 8 -e 32K -f 64 --iters 5")
    assert result.status == "ok", result.text
    assert {"application/vnd.jupyter.widget-view+json", "image/svg+xml"} <= result.mimes()
    rows = [line for line in result.text.splitlines() if " all_sum " in line and line[:1] == " "]
    assert len(rows) == 3
    assert all(row.split()[-1] == "0" for row in rows)


def test_a_sweep_that_is_stopped_keeps_what_it_has(ranks, tmp_path):
    cell = ranks.submit(
        f"%distributed bandwidth --still -b 8 -e 8M -f 2 --iters 3 --save {tmp_path}/kept.json"
    )
    cell.until(lambda result: "\n          16 " in result.stdout)
    ranks.interrupt()
    result = cell.result()
    assert result.error.startswith("KeyboardInterrupt")
    assert re.search(r"# stopped after \d+ of 21 sizes", result.stdout)
    assert "image/svg+xml" in result.mimes()
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["state"] == "stopped"
    assert 2 <= len(kept["points"]) < 21
    assert kept["model"]["limits"][0]["name"] == "memory copy"
    assert "[0-2] Out: 3" in ranks.run("%%distributed\npx.all_sum(1)").stdout


def test_earlier_sweeps_are_laid_over_one_of_the_same_operation(ranks):
    for op in ("all_max", "all_min", "all_max"):
        result = ranks.run(f"%distributed bandwidth --op {op} -b 8 -e 512 -f 64 --iters 2")
    (svg,) = (
        o["data"]["image/svg+xml"] for o in result.outputs if "image/svg+xml" in o.get("data", {})
    )
    assert len(re.findall(r"all_max · arena · float32 · 3 ranks · \d\d:\d\d:\d\d</text>", svg)) == 1
    assert "all_min" not in svg
