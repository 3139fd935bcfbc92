"""`%distributed trace` in a real kernel."""

from __future__ import annotations

import json

import pytest
from kernel_driver import KernelDriver

pytestmark = pytest.mark.slow


def test_the_trace_is_written_where_it_was_asked_for(tmp_path):
    with KernelDriver() as driver:
        assert driver.run("%load_ext phalanx\n%distributed start -n 2 --linger 0").status == "ok"
        driver.run("%%distributed\npx.all_sum(np.ones(1000))")
        path = tmp_path / "what ranks did.json"
        result = driver.run(f"%distributed trace '{path}'")
        assert result.status == "ok", result.text
        assert result.stdout.startswith(f"{path}: ")
        assert result.stdout.endswith("open it at https://ui.perfetto.dev\n")
        assert result.stdout.count("\n") == 1
        events = json.loads(path.read_bytes())["traceEvents"]
        sums = [event for event in events if event["name"] == "all_sum"]
        assert {event["tid"] for event in sums} == {0, 1}
        assert {event["args"]["nbytes"] for event in sums} == {8000}

        wrong = driver.run(f"%distributed trace {tmp_path}/none/t.json")
        assert wrong.status == "error"
        assert "cannot be written: No such file or directory; name another" in wrong.stderr
        assert "FILE" in driver.run("%distributed trace --help").stdout
        assert "trace" in driver.complete("%distributed tr")["matches"]
        assert (
            "there are no ranks yet" in driver.run("%distributed stop\n%distributed trace").stderr
        )
