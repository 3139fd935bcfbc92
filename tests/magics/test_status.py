"""The status line in a real kernel: messages counted and looked at."""

from __future__ import annotations

import pytest
from kernel_driver import KernelDriver

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks():
    with KernelDriver() as driver:
        result = driver.run("%load_ext phalanx\n%distributed start -n 3 --linger 0")
        assert result.status == "ok", result.text
        yield driver


def displays(result):
    return [o for o in result.outputs if o["output_type"] == "display_data"]


def test_a_long_cell_says_how_it_stands_and_leaves_nothing(ranks):
    seen = []

    def watch(result):
        seen.extend(o["data"].get("text/plain", "") for o in displays(result))
        return any("in all_sum #" in text for text in seen)

    cell = ranks.submit(
        "%%distributed\nimport time\nif rank == 0: input('go? ')\npx.all_sum(1)",
        stdin=lambda prompt: None,
    )
    cell.until(watch)
    ranks.type_line("x")
    result = cell.result()
    assert result.status == "ok", result.text
    line = next(text for text in seen if "in all_sum" in text)
    assert line.startswith("▸ ")
    assert "s · ranks 1-2 in all_sum #" in line
    assert line.endswith(" · waiting for input 0")
    (place,) = displays(result)
    assert place["data"] == {}
    assert result.n_messages < 30


def test_the_line_is_taken_away_by_a_stop(ranks):
    cell = ranks.submit("%%distributed\nimport time\ntime.sleep(60)")
    cell.until(
        lambda result: any("running 0-2" in o["data"]["text/plain"] for o in displays(result))
    )
    ranks.interrupt()
    result = cell.result()
    assert result.error.startswith("KeyboardInterrupt")
    assert [o["data"] for o in displays(result)] == [{}]


def test_a_short_cell_has_no_line(ranks):
    result = ranks.run("%%distributed\npx.all_sum(1)")
    assert displays(result) == [] or result.seconds > 1
