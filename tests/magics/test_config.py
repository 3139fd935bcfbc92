"""`%distributed config` in a real kernel: the command's words, texts and picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kernel_driver import KernelDriver

SAVED = Path(__file__).parents[1] / "hosts" / "saved"


@pytest.fixture(scope="module")
def kernel():
    with KernelDriver() as driver:
        assert driver.run("%load_ext phalanx").status == "ok"
        yield driver


def pictures(result):
    data = [output.get("data", {}) for output in result.outputs]
    return [forms["image/svg+xml"] for forms in data if "image/svg+xml" in forms]


def test_the_hostfile_is_printed_and_the_picture_shown(kernel):
    result = kernel.run(f"%distributed config --from-saved '{SAVED / 'ring'}' --over ethernet")
    assert result.status == "ok", result.text
    assert [host["ssh"] for host in json.loads(result.stdout)["hosts"]] == [
        f"mac{i}" for i in range(4)
    ]
    (svg,) = pictures(result)
    assert "10.0.0.0/24" in svg


def test_what_is_missing_is_one_line_and_in_the_picture(kernel):
    result = kernel.run(
        f"%distributed config --from-saved {SAVED / 'broken_ring'} --over thunderbolt"
    )
    assert result.status == "error"
    assert "UsageError: " in result.stderr + result.text
    assert "with cables mac0 - mac3" in result.stderr + result.text
    assert "Traceback" not in result.stderr + result.text
    assert "missing: mac0 - mac3" in pictures(result)[0]


def test_its_words_are_those_of_the_command_line(kernel):
    assert "--auto-setup" in kernel.run("%distributed config --help").stdout
    result = kernel.run("%distributed config --overr any")
    assert "--overr" in result.stderr + result.text
    assert "config" in kernel.run("%distributed --help").stdout
