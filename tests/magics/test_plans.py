"""`%distributed topology` of a hostfile, before anything is started, in a real kernel."""

from __future__ import annotations

import json

import pytest
from kernel_driver import KernelDriver


@pytest.fixture(scope="module")
def kernel():
    with KernelDriver() as driver:
        assert driver.run("%load_ext phalanx").status == "ok"
        yield driver


def _picture(result):
    assert result.status == "ok", result.text
    (shown,) = [its["data"] for its in result.outputs if its["output_type"] == "display_data"]
    return shown["image/svg+xml"], shown["text/plain"]


def test_a_hostfile_is_drawn_before_anything_is_started(kernel, tmp_path):
    path = tmp_path / "ring.json"
    hosts = [{"ssh": "alpha", "ips": ["10.0.0.1"]}, {"ssh": "beta", "ips": ["10.0.0.2"]}]
    path.write_text(json.dumps(hosts))
    svg, text = _picture(kernel.run(f"%distributed topology --hostfile {path} -n 2"))
    assert svg.startswith("<svg")
    assert text.splitlines()[0] == "ring.json: 4 ranks on 2 hosts, planned, not started"
    assert "  alpha (10.0.0.1)" in text.splitlines()
    assert "    arena: ranks 2-3 share memory" in text.splitlines()
    assert "  tcp: alpha - beta, 4 links" in text.splitlines()
    # Nobody was started or asked.
    assert "start them with" in kernel.run("%distributed status").text


def test_hosts_are_drawn_by_name(kernel):
    _, text = _picture(kernel.run("%distributed topology --hosts a,b,me@c --still"))
    assert text.splitlines()[0] == "plan: 3 ranks on 3 hosts, planned, not started"
    assert "    rank 2   planned" in text.splitlines()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-n 4", "UsageError: -n is the number of ranks per host of a plan: name them with"),
        ("--hosts a --hostfile b", "UsageError: give --hosts or --hostfile, not both"),
        ("--hostfile /nowhere", "UsageError: /nowhere: it cannot be read: No such file"),
        ("--hosts a,-b", "UsageError: --hosts: item 2: expected a host's name or address"),
        (
            "--hosts a -n 60000",
            "UsageError: 60000 ranks are too many for a picture, which has room",
        ),
        ("--hosts a,b -n 513", "with a smaller -n, or some of the hosts with --hosts"),
        ("--hosts a -n 0", "it must be a whole number, 1 or more"),
    ],
)
def test_a_mistake_is_one_line(kernel, line, said):
    result = kernel.run(f"%distributed topology {line}")
    assert said in result.text
    assert len(result.text.splitlines()) == 1


def test_its_options_are_completed_and_told(kernel):
    assert kernel.complete("%distributed topology --host")["matches"] == ["--hosts", "--hostfile"]
    said = kernel.run("%distributed topology --help").stdout
    assert "--hostfile FILE" in said
    assert "nothing is started" in said
