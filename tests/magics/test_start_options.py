"""The options of `%distributed start` for hosts in a real kernel: they hold on each, mistakes are a line."""

from __future__ import annotations

import pytest
from kernel_driver import KernelDriver

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kernel():
    with KernelDriver() as driver:
        assert driver.run("%load_ext phalanx").status == "ok"
        yield driver


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--hosts a,-b", "UsageError: --hosts: item 2: expected a host's name or address"),
        ("--hostfile /nowhere", "UsageError: /nowhere: it cannot be read: No such file"),
        ("--hosts a --hostfile b", "UsageError: give --hosts or --hostfile, not both"),
        ("--python /p", "UsageError: --python: only with --hosts or --hostfile"),
        ("--hosts a --luncher ssh", "did you mean --launcher?"),
        ("--hosts a --interface nope9", "UsageError: this machine has no interface 'nope9'"),
        ("--hosts localhost --cwd /nowhere", "--cwd /nowhere: there is no such folder on this"),
    ],
)
def test_a_mistake_is_one_line(kernel, line, said):
    result = kernel.run(f"%distributed start {line}")
    assert said in result.text
    assert "Traceback" not in result.text
    assert len(result.text.splitlines()) == 1


def test_options_hold_for_the_ranks_of_every_host(kernel, tmp_path):
    hosts = tmp_path / "hosts"
    # Ports make other hosts of them; the launcher `local` starts their supervisors here.
    hosts.write_text('[{"ssh": "localhost"}, {"ssh": "ssh://127.0.0.1:1"}]')
    result = kernel.run(
        f"%distributed start --hostfile {hosts} -n 2 --launcher local --linger 0 "
        f"--cwd {tmp_path} --env A=1"
    )
    assert result.status == "ok", result.text
    try:
        code = "import os\n(os.environ['A'], os.getcwd(), int(px.all_sum(rank)))"
        result = kernel.run(f"%%distributed\n{code}")
        assert f"Out: ('1', '{tmp_path}', 6)" in " ".join(result.text.split())  # a long path wraps
        assert "[0-3]" in result.text
    finally:
        assert kernel.run("%distributed stop").status == "ok"


def test_folder_and_environment_are_for_ranks_here_as_well(kernel, tmp_path):
    line = f"%distributed start -n 2 --linger 0 --cwd {tmp_path} --env B=2"
    result = kernel.run(line)
    assert result.status == "ok", result.text
    try:
        result = kernel.run("%%distributed\nimport os\n(os.environ['B'], os.getcwd())")
        assert f"[0-1] Out: ('2', '{tmp_path}')" in " ".join(result.text.split())
    finally:
        assert kernel.run("%distributed stop").status == "ok"


def test_a_host_that_cannot_be_started_is_named(kernel):
    result = kernel.run("%distributed start --hosts nobody.invalid --linger 0")
    assert result.status == "error"
    assert "nobody.invalid: the name nobody.invalid does not resolve" in result.text
    assert "Traceback" not in result.text
