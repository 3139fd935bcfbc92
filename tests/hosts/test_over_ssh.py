"""Worlds on several hosts, over real sshd: they boot, agree, lose a host, and leave nothing."""

from __future__ import annotations

import ast
import signal
import sys
import time

import pytest
from hosts.world_over_ssh import BOUND_S, SILENCE_S, SLACK_S, World, check_named

import phalanx

WHERE = "import socket; socket.gethostname(), int(px.all_sum(rank))"

pytestmark = pytest.mark.slow


@pytest.fixture
def world(bed, tmp_path):
    with World(bed, tmp_path) as world:
        world.boot()
        yield world
    left = bed.left(BOUND_S + SLACK_S)
    assert left == []


def test_three_hosts_boot_agree_and_stop(bed, tmp_path):
    with World(bed, tmp_path) as world:
        said = world.boot()
        assert sorted(line for line in said["news"] if "up" in line.split()) == ["b: up ", "c: up "]
        assert said["devices"] == ["eth0"] * 3
        values = world.run(WHERE)["values"]
        assert values == [f"('{host}', 15)" for host in "aabbcc"]
        assert world.run("import os; os.getcwd()")["values"] == [repr(str(tmp_path))] * 6
        assert "stopped" in world.stop()
    assert bed.left(BOUND_S) == []


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


def test_hosts_that_have_only_ipv6(bed, tmp_path):
    with World(bed, tmp_path, hosts="b6,c6", n=1) as world:
        world.boot()
        assert world.run(WHERE)["values"] == ["('b', 1)", "('c', 1)"]
        world.stop()
    assert bed.left(BOUND_S) == []


def test_a_host_that_is_cut_off_is_named_and_ends_its_ranks(bed, world):
    world.wait_together()
    bed.cut(2)
    try:
        check_named(world, "c", SILENCE_S + 0.5 + SLACK_S)
        # Its root is silent for it, and linger is 0: nothing of it stays there.
        # (sshd cannot know that its connection has broken before it is mended.)
        assert bed.left(SILENCE_S + BOUND_S + SLACK_S, 2, but="sshd: ") == []
    finally:
        bed.mend(2)
    assert "stopped" in world.stop()


def test_a_frozen_host_is_named_and_leaves_nothing(bed, world):
    world.wait_together()
    bed.signal(1, signal.SIGSTOP)
    try:
        check_named(world, "b", SILENCE_S + 0.5 + SLACK_S)
    finally:
        bed.signal(1, signal.SIGCONT)
    assert bed.left(BOUND_S + SLACK_S, 1) == []
    assert "stopped" in world.stop()


def test_a_killed_host_supervisor_is_named_at_once(bed, world):
    world.wait_together()
    (supervisor,) = world.find(1, "phalanx.supervisor host")
    supervisor.kill()
    check_named(world, "b", BOUND_S + SLACK_S, "killed by signal 9 (SIGKILL)")
    assert "stopped" in world.stop()


def test_a_host_goes_on_without_its_ssh(bed, world):
    for process in bed.processes(0):
        if process.name() == "ssh":
            process.kill()
    for _ in range(3):
        assert len(world.run(WHERE)["values"]) == 6
    assert "stopped" in world.stop()


def _root(world):
    (root,) = (
        process
        for process in world.find(0, "-m phalanx.supervisor")
        if process.cmdline()[-1] == "phalanx.supervisor"
    )
    return root


def test_nothing_is_left_of_a_killed_root(bed, world):
    world.wait_together()
    _root(world).kill()
    assert bed.left(BOUND_S + SLACK_S, 1, 2) == []


def test_nothing_is_left_of_a_root_that_is_killed_while_it_boots(bed, tmp_path):
    came = tmp_path / "came"
    python = bed.python("late", f'touch {came}; sleep 0.5; exec {sys.executable} "$@"')
    with World(bed, tmp_path, python=str(python)) as world:
        deadline_s = time.monotonic() + 20
        while not came.exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        _root(world).kill()
        assert "problem" in world.answer()
    assert bed.left(BOUND_S + SLACK_S) == []


def test_nothing_is_left_of_a_killed_notebook(bed, world):
    world.wait_together()
    world.popen.kill()
    world.popen.wait()
    assert bed.left(BOUND_S + SLACK_S) == []


def test_all_hosts_that_fail_are_named(bed, tmp_path):
    bed.stop_sshd(1)
    try:
        with World(bed, tmp_path, hosts="a,b,nowhere") as world:
            problem = world.answer()["problem"]
            world.popen.wait(10)
    finally:
        bed.restart_sshd(1)
    assert "it refuses ssh at port 22" in problem
    assert "the name nowhere does not resolve" in problem
    assert bed.left(BOUND_S) == []


def test_a_firewall_before_the_root_is_named(bed, tmp_path):
    bed.block(1, 0)
    try:
        with World(bed, tmp_path) as world:
            problem = world.answer()["problem"]
            world.popen.wait(10)
    finally:
        bed.unblock(0)
    assert "it cannot reach the supervisor at 10.77.0.11" in problem, problem
    assert "blocked by a firewall?): phalanx doctor --hosts b says what lets it thr" in problem
    assert bed.left(BOUND_S) == []


def _problem(bed, folder, **options):
    """Why no world boots."""
    with World(bed, folder, hosts="b", **options) as world:
        said = world.answer()
        world.popen.wait(10)
    assert bed.left(BOUND_S) == []
    return said["problem"], said["news"]


def test_another_version_is_named(bed, tmp_path):
    patched = (
        "import phalanx, runpy; phalanx.__version__ = '9.9'; "
        "runpy.run_module('phalanx.supervisor', run_name='__main__', alter_sys=True)"
    )
    python = bed.python("newer", f'exec {sys.executable} -c "{patched}" host')
    problem, _ = _problem(bed, tmp_path, python=str(python))
    here = phalanx.__version__
    assert problem.startswith(f"b: its phalanx is 9.9, the one that starts it is {here}: there, /")
    assert problem.endswith(f" -m pip install phalanx=={here}")


def test_a_missing_interface_is_named(bed, tmp_path):
    lines = ["link add wire7 type veth peer name wire8", "link set wire8 up", "link set wire7 up"]
    lines.append("addr add 10.77.0.111/32 dev wire7")
    bed.run(0, ["ip", "-batch", "-"], input="\n".join(lines))
    try:
        problem, _ = _problem(bed, tmp_path, interface="wire7")
    finally:
        bed.run(0, ["ip", "link", "del", "wire7"])
    assert "it has no interface 'wire7'; there are: eth0, lo" in problem


def test_a_missing_folder_is_named_if_it_was_asked_for(bed, tmp_path):
    bed.run(0, ["mkdir", "/run/here"])  # each host has a /run of its own
    problem, _ = _problem(bed, tmp_path, cwd="/run/here")
    assert problem == ("b: it has no folder /run/here: make it there, or name another with --cwd")
    bed.run(0, ["rmdir", "/run/here"])


def test_a_host_that_never_comes_up_is_given_up(bed, tmp_path):
    python = bed.python("sleeping", "exec cat >/dev/null")
    problem, news = _problem(bed, tmp_path, python=str(python), boot_timeout=4)
    said = "b: it has let us in, its Python has not answered yet, after 4 s"
    assert problem == f"{said} (--boot-timeout S waits longer)"
    assert "b: starting it has let us in, its Python has not answered yet" in news
