"""A notebook whose ranks run on two hosts, in a real kernel; both are this machine."""

from __future__ import annotations

import socket

import psutil
import pytest
from kernel_driver import KernelDriver

pytestmark = pytest.mark.slow

START = "%distributed start --hosts localhost,b -n 2 --launcher local --linger 0"


@pytest.fixture(scope="module")
def ranks():
    with KernelDriver() as driver:
        seen = []

        def watch(result):
            seen.extend(
                o["data"].get("text/plain", "")
                for o in result.outputs
                if o["output_type"] == "display_data"
            )
            return result.status is not None and any(": b" in text for text in seen)

        cell = driver.submit(f"%load_ext phalanx\n{START}")
        cell.until(watch)
        result = cell.result()
        assert result.status == "ok", result.text
        driver.started, driver.seen = result, seen
        yield driver


def test_a_start_says_how_hosts_come_up_and_who_is_where(ranks):
    assert any(text.startswith("▸ ") and ": b" in text for text in ranks.seen)
    shown = [o["data"] for o in ranks.started.outputs if o["output_type"] == "display_data"]
    assert shown == [{}]
    assert ": 4 ranks on 2 hosts" in ranks.started.text
    assert "\n  b (127.0.0.1, " in ranks.started.text


def test_lines_are_labelled_by_host(ranks):
    result = ranks.run("%%distributed --label host\nprint('at', rank // 2)")
    here = socket.gethostname()
    assert f"[{here} 0-1] at 0" in result.text
    assert "[b 2-3] at 1" in result.text


def test_a_host_that_was_lost_is_named_and_started_anew(ranks):
    result = ranks.run("import psutil\nprint(ws.topology().ranks[2].pid)")
    psutil.Process(int(result.text)).parent().kill()
    result = ranks.run("%%distributed\npx.all_sum(1)")
    assert "rank 2 on b: lost its host: its supervisor was killed" in result.error
    status = ranks.run("%distributed status").text
    assert "lost its host" in status
    assert ranks.run("%distributed restart").status == "ok"
    result = ranks.run("%%distributed\npx.all_sum(1)")
    assert result.status == "ok", result.text
