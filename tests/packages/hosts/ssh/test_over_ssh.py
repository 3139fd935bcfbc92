"""Worlds on several hosts, over real sshd: they boot, agree, lose a host, and leave nothing."""

from __future__ import annotations

import ast
import os
import signal
import sys

import pytest
from hosts.ssh.world_over_ssh import DRIVER, SILENCE_S, SSHD, SharedWorld, World, check_named
from support.hosts.hosts_bed import check_nothing_left, has_failed
from support.promise import BOUND_S, PATIENCE_S, within
from support.waiting import wait_until

WHERE = "import socket; socket.gethostname(), int(px.all_sum(rank))"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(bed, tmp_path_factory):
    shared = SharedWorld(bed, tmp_path_factory.mktemp("world"))
    yield shared
    shared.end()


@pytest.fixture
def world(shared, request):
    """Six ranks on three hosts; a test that loses some restarts them, or ends the world."""
    yield shared.take()
    if has_failed(request.node):
        shared.drop()


@pytest.fixture
def driver(shared, request):
    """Start worlds that do not boot; no other world runs meanwhile."""
    yield shared.driver()
    if has_failed(request.node):
        shared.drop()


def check_whole(world):
    values = world.run(WHERE)["values"]
    assert values == [f"('{host}', 15)" for host in "aabbcc"]


def test_three_hosts_boot_and_agree(world):
    lines = world.booted["news"]
    assert sorted(line for line in lines if "up" in line.split()) == ["b: up ", "c: up "]
    assert world.booted["devices"] == ["eth0"] * 3
    check_whole(world)
    assert world.run("import os; os.getcwd()")["values"] == [repr(str(world.folder))] * 6


def test_the_limit_of_three_hosts_is_their_slowest_wire(bed, world):
    code = (
        "from phalanx.distributed.bench import limits_of_ranks\n"
        "[(limit.gbs, limit.how) for limit in limits_of_ranks()]"
    )
    bed.shape(1, "100mbit")
    try:
        (((gbs, how),), *others) = map(ast.literal_eval, world.run(code)["values"])
    finally:
        bed.shape(1, "")
    assert others == [[]] * 5  # the first rank tells
    assert 0.001 < gbs < 0.0135, how  # 100 Mbit/s are 0.0125 GB/s
    assert " from a to b," in how or " from b to c," in how


@pytest.mark.promise
def test_a_host_that_is_cut_off_is_named_and_ends_its_ranks(bed, world, tmp_path):
    world.wait_together(tmp_path)
    bed.cut(2)
    try:
        check_named(world, "c")
        # Its root is silent for it, and linger is 0: nothing of it stays there.
        check_nothing_left(bed, 2, bound_s=SILENCE_S + BOUND_S, but=SSHD)
    finally:
        bed.mend(2)
    world.restart()
    check_whole(world)


@pytest.mark.promise
def test_a_frozen_host_is_named_and_leaves_nothing(bed, world, tmp_path):
    world.wait_together(tmp_path)
    bed.signal(1, signal.SIGSTOP)
    try:
        check_named(world, "b")
    finally:
        bed.signal(1, signal.SIGCONT)
    check_nothing_left(bed, 1)
    world.restart()
    check_whole(world)


@pytest.mark.promise
def test_a_killed_host_supervisor_is_named_at_once(world, tmp_path):
    world.wait_together(tmp_path)
    (supervisor,) = world.find(1, "phalanx.supervisor host")
    supervisor.kill()
    check_named(world, "b", BOUND_S, "killed by signal 9 (SIGKILL)")
    world.restart()
    check_whole(world)


@pytest.mark.promise
def test_a_host_goes_on_without_its_ssh_and_is_stopped(bed, shared, world):
    for process in bed.processes(0):
        if process.name() == "ssh":
            process.kill()
    for _ in range(3):
        check_whole(world)
    shared.end()


@pytest.mark.promise
def test_nothing_is_left_of_a_killed_root_that_has_no_rank_beside_it(
    bed, shared, tmp_path, monkeypatch
):
    """Also where hosts may linger, and no socket."""
    shared.end()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with World(bed, tmp_path) as world:
        world.boot(hosts="b,c", n=1, linger=600.0)
        assert world.run(WHERE)["values"] == ["('b', 1)", "('c', 1)"]
        (path,) = tmp_path.rglob("*.sock")
        world.root().kill()
        check_nothing_left(bed, but=DRIVER.name)
        assert not path.exists()


@pytest.mark.promise
def test_nothing_is_left_of_a_killed_notebook(bed, shared, world, tmp_path):
    world.wait_together(tmp_path)
    world.popen.kill()
    world.popen.wait()
    check_nothing_left(bed)
    shared.drop()


@pytest.mark.promise
def test_a_supervisor_that_is_killed_with_its_shell_is_named_at_once(bed, shared, driver, tmp_path):
    """As ``pkill -f`` does it: nobody is left there to tell by which signal it has ended."""
    driver.boot(hosts="a,b", n=1, silence=PATIENCE_S)
    came = tmp_path / "came"
    driver.say(f"open({str(came)!r}, 'w').close()\nwhile True: px.all_sum(1)")
    wait_until(came.exists, "the cell runs")
    words = "-m phalanx.supervisor host"
    there = [process for process in bed.processes(1) if words in " ".join(process.cmdline())]
    shell, supervisor = sorted(there, key=lambda process: process.pid)
    supervisor.suspend()  # else it may notice the end of its shell and end by itself
    with within():
        shell.kill()
        supervisor.kill()
        said = driver.answer()
    died = f"its supervisor has died there (process {supervisor.pid} is gone)"
    assert said["problem"] == f"rank 1 on b: lost its host: {died}"
    shared.end()


@pytest.mark.promise
def test_hosts_that_have_only_ipv6(shared, driver):
    driver.boot(hosts="b6,c6", n=1)
    assert driver.run(WHERE)["values"] == ["('b', 1)", "('c', 1)"]
    shared.end()


# -- worlds that do not boot ----------------------------------------------------------------------


@pytest.mark.promise
def test_nothing_is_left_of_a_root_that_is_killed_while_it_boots(bed, driver, tmp_path):
    came, go_on = tmp_path / "came", tmp_path / "go on"
    wait = f"touch '{came}'; until [ -e '{go_on}' ]; do sleep 0.05; done"
    python = bed.python("late", f'{wait}; exec {sys.executable} "$@"')
    driver.say_start(python=str(python))
    wait_until(came.exists, "a host is about to start its supervisor")
    driver.root().kill()
    assert "problem" in driver.answer()
    go_on.touch()
    check_nothing_left(bed, but=DRIVER.name)


def _problem(driver, **options):
    """Why no world boots, and the news until then; nothing is left of it."""
    driver.say_start(**options)
    said = driver.answer()
    check_nothing_left(driver.bed, but=DRIVER.name)
    return said["problem"], said["news"]


@pytest.mark.promise
def test_a_firewall_before_the_root_is_named(bed, driver):
    bed.block(1, 0)
    try:
        problem, _ = _problem(driver)
    finally:
        bed.unblock(0)
    assert "it cannot reach the supervisor at 10.77.0.11" in problem, problem
    assert "blocked by a firewall?): phalanx doctor --hosts b says what lets it thr" in problem


# -- jobs of schedulers ---------------------------------------------------------------------------


def _launch_in_job(bed, folder, *hosts):
    nodes = folder / "nodes"
    nodes.write_text("".join(f"{host}\n" for host in hosts))
    env = {**os.environ, "PBS_NODEFILE": str(nodes), "PBS_JOBID": "7.server"}
    launch = [sys.executable, "-m", "phalanx", "launch", "--label", "none", "--", "hostname"]
    return bed.run(0, launch, env=env, check=False)


def test_ranks_start_by_ssh_on_the_hosts_of_a_job(bed, shared, tmp_path):
    shared.end()
    said = _launch_in_job(bed, tmp_path, "a", "a", "b", "c")
    assert sorted(said.stdout.split()) == ["a", "a", "b", "c"], said.stderr
    assert "PBS's job 7: ranks start on its hosts, a, b, c" in said.stderr
    check_nothing_left(bed)


def test_a_job_whose_hosts_allow_no_ssh(bed, shared, tmp_path):
    shared.end()
    bed.stop_sshd(1)
    try:
        said = _launch_in_job(bed, tmp_path, "a", "b")
    finally:
        bed.restart_sshd(1)
    assert said.returncode != 0
    (line,) = [line for line in said.stderr.splitlines() if "it refuses ssh at port 22" in line]
    assert line.endswith("; within a job, --launcher mpi needs no ssh")
