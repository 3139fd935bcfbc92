"""Use several hosts in a notebook: their hostfile, their picture, ranks on two of them.

Both hosts are this machine.
"""

from __future__ import annotations

import json
import socket

import pytest
from support.notebooks.notebook_kernel import NotebookKernel
from support.patience import TOGETHER

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kernel():
    with NotebookKernel(TOGETHER) as driver:
        yield driver


# -- the hostfile -------------------------------------------------------------------------------


def test_the_hostfile_is_printed(kernel, saved):
    result = kernel.run(f"%distributed config --from-saved '{saved / 'ring'}' --over ethernet")
    assert result.status == "ok", result.text
    assert [host["ssh"] for host in json.loads(result.stdout)["hosts"]] == [
        f"mac{i}" for i in range(4)
    ]


def test_what_is_missing_is_one_line(kernel, saved):
    result = kernel.run(
        f"%distributed config --from-saved {saved / 'broken_ring'} --over thunderbolt"
    )
    assert result.status == "error"
    assert "UsageError: " in result.stderr + result.text
    assert "with cables mac0 - mac3" in result.stderr + result.text
    assert "Traceback" not in result.stderr + result.text


# -- the picture before anything is started -----------------------------------------------------


def picture(result):
    assert result.status == "ok", result.text
    (shown,) = [its["data"] for its in result.outputs if its["output_type"] == "display_data"]
    return shown["image/svg+xml"], shown["text/plain"]


def test_a_hostfile_is_drawn_before_anything_is_started(kernel, tmp_path):
    kernel.end_ranks()
    path = tmp_path / "ring.json"
    hosts = [{"ssh": "alpha", "ips": ["10.0.0.1"]}, {"ssh": "beta", "ips": ["10.0.0.2"]}]
    path.write_text(json.dumps(hosts))
    svg, text = picture(kernel.run(f"%distributed topology --hostfile {path} -n 2"))
    assert svg.startswith("<svg")
    assert text.splitlines()[0] == "ring.json: 4 ranks on 2 hosts, planned, not started"
    assert "  alpha (10.0.0.1)" in text.splitlines()
    assert "    arena: ranks 2-3 share memory" in text.splitlines()
    assert "  tcp: alpha - beta, 4 links" in text.splitlines()
    _, text = picture(kernel.run("%distributed topology --hosts a,b,me@c --still"))
    assert text.splitlines()[0] == "plan: 3 ranks on 3 hosts, planned, not started"
    assert "    rank 2   planned" in text.splitlines()
    # Nobody was started or asked.
    assert "no ranks" in kernel.run("%distributed status").text  # those of other tests may be free


# -- ranks that run -----------------------------------------------------------------------------


def test_a_host_that_cannot_be_started_is_named(kernel):
    kernel.end_ranks()
    result = kernel.run("%distributed start --hosts nobody.invalid --linger 0")
    assert result.status == "error"
    assert "nobody.invalid: the name nobody.invalid does not resolve" in result.text
    assert "Traceback" not in result.text


def test_folder_and_environment_are_for_ranks_here_as_well(kernel, tmp_path):
    kernel.need_ranks(f"-n 1 --cwd {tmp_path} --env B=2")
    result = kernel.run("%%distributed\nimport os\n(os.environ['B'], os.getcwd())")
    assert f"[0] Out: ('2', '{tmp_path}')" in " ".join(result.text.split())


class Hosts:
    """Two hosts with two ranks each, and what was shown while they started."""

    def __init__(self, kernel, folder):
        kernel.end_ranks()
        # A name or a port makes another host of this machine; `local` starts supervisors here.
        hosts = folder / "hosts"
        hosts.write_text('[{"ssh": "localhost"}, {"ssh": "ssh://b:1"}]')
        self.folder, self.seen = folder, []
        cell = kernel.submit(
            f"%distributed start --hostfile {hosts} -n 2 --launcher local --linger 0 "
            f"--cwd {folder} --env A=1"
        )
        cell.until(self._note)
        self.started = cell.result()
        assert self.started.status == "ok", self.started.text

    def _note(self, result):
        self.seen.extend(
            output["data"].get("text/plain", "")
            for output in result.outputs
            if output["output_type"] == "display_data"
        )
        return any(": b" in text for text in self.seen)


@pytest.fixture(scope="module")
def hosts(kernel, tmp_path_factory):
    yield Hosts(kernel, tmp_path_factory.mktemp("hosts"))
    kernel.end_ranks()


def test_a_start_says_how_hosts_come_up_and_who_is_where(hosts):
    assert any(text.startswith("▸ ") and ": b" in text for text in hosts.seen)
    shown = [o["data"] for o in hosts.started.outputs if o["output_type"] == "display_data"]
    assert [data["text/plain"][:7] for data in shown] == ["▸ up: b"]
    assert ": 4 ranks on 2 hosts" in hosts.started.text
    assert "\n  b (127.0.0.1, " in hosts.started.text


def test_options_hold_for_the_ranks_of_every_host(kernel, hosts):
    code = "import os\n(os.environ['A'], os.getcwd(), int(px.all_sum(rank)))"
    result = kernel.run(f"%%distributed\n{code}")
    # A long path wraps.
    assert f"Out: ('1', '{hosts.folder}', 6)" in " ".join(result.text.split())
    assert "[0-3]" in result.text


def test_lines_are_labelled_by_host(kernel, hosts):
    result = kernel.run("%%distributed --label host\nprint('at', rank // 2)")
    here = socket.gethostname()
    assert f"[{here} 0-1] at 0" in result.text
    assert "[b 2-3] at 1" in result.text
    assert kernel.run("%%distributed --label none\nprint('x')").stdout == "x\n"
