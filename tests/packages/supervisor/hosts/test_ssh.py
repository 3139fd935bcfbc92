"""Hosts started over ssh: how it goes well, and what is said of each way in which it does not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.promise import BOUND_S, PATIENCE_S, within
from support.ranks.loops import run_held

from phalanx.protocol import HostPlan
from phalanx.supervisor.launchers.remote_command import (
    SLOW_S,
    HostUnreachable,
    LaunchSpec,
    RemoteCommand,
)

DRIVER = Path(__file__).with_name("ssh_driver.py")
FAR = 'read line; echo "$line" > {said}; echo "phalanx-host: begun"; cat; echo "it is over" >&2; exit 3'


@pytest.fixture
def far(bed, tmp_path):
    """A Python that only pretends: keeps the first line, is up, ends with its input."""
    return bed.python("far", FAR.format(said=tmp_path / "said"))


class Launcher:
    """Starts hosts from host 0 and tells what became of each."""

    def __init__(self, bed, *hosts, command=None, **options):
        command = command or [sys.executable, DRIVER]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.popen = bed.popen(0, command, **pipes, **options)
        for plan, remote, first_line in hosts:
            self.popen.stdin.write(json.dumps([plan, remote, first_line]) + "\n")
        self.enter()

    def enter(self):
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()

    def answer(self):
        line = self.popen.stdout.readline()
        assert line, "the launcher has died"
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.popen.kill()
        self.popen.communicate()


def _plan(name="b", **fields):
    return {"name": name, "ranks": 2, **fields}


def why(bed, plan, python, remote=None):
    """Why a host is not up."""
    remote = {"python": str(python), "timeout_s": 20, **(remote or {})}
    with Launcher(bed, (plan, remote, "secret")) as launcher:
        answer = launcher.answer()
    assert not answer["is_up"]
    assert "\n" not in answer["text"]
    assert bed.left(PATIENCE_S) == []
    return answer["text"]


@pytest.mark.promise
def test_a_host_is_up_and_ends_with_its_ssh(bed, far, tmp_path):
    with Launcher(bed, (_plan(), {"python": str(far)}, "key-of-this-test")) as launcher:
        assert launcher.answer() == {"name": "b", "is_up": True, "slow": []}
        assert (tmp_path / "said").read_text() == "key-of-this-test\n"
        for process in bed.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                assert "key-of-this-test" not in str((process.cmdline(), process.environ()))
        launcher.enter()
        assert launcher.answer()["ended"] == "its ssh was killed by signal 9 (SIGKILL)"
    with within():
        assert bed.left(BOUND_S) == []


@pytest.mark.promise
def test_nothing_is_left_when_the_launcher_is_killed(bed, far):
    with Launcher(bed, (_plan(), {"python": str(far)}, "secret")) as launcher:
        assert launcher.answer()["is_up"]
    with within():
        assert bed.left(BOUND_S) == []


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("echo it is over >&2; exit 3", "it is over"),
        ("kill -9 $$", "its supervisor was killed by signal 9 (SIGKILL)"),
    ],
)
def test_why_a_host_that_was_up_has_ended(bed, end, why):
    python = bed.python("ending", f"read line; echo phalanx-host: begun; {end}")
    with Launcher(bed, (_plan(), {"python": str(python)}, "x")) as launcher:
        assert launcher.answer()["is_up"]
        assert launcher.answer()["ended"] == why


def test_all_hosts_are_told_of_not_only_the_first(bed, far):
    hosts = [(_plan(name), {"python": str(far)}, "secret") for name in ("b", "nowhere", "c")]
    with Launcher(bed, *hosts) as launcher:
        answers = {answer["name"]: answer for answer in (launcher.answer() for _ in hosts)}
    assert [answers[name]["is_up"] for name in ("b", "nowhere", "c")] == [True, False, True]
    assert "the name nowhere does not resolve" in answers["nowhere"]["text"]
    assert bed.left(PATIENCE_S) == []


def test_what_a_shell_says_first_does_not_confuse(bed, far):
    key = (bed.folder / "key.pub").read_text()
    noise = "echo phalanx-host; printf no-newline; echo stty: not a tty >&2"
    shell = f'command="{noise}; exec sh -c \\"$SSH_ORIGINAL_COMMAND\\"" {key}'
    with (
        bed.changed(1, "authorized_keys", shell),
        Launcher(bed, (_plan(), {"python": str(far)}, "secret")) as launcher,
    ):
        assert launcher.answer()["is_up"]


def test_a_host_that_runs_no_commands(bed, far):
    key = (bed.folder / "key.pub").read_text()
    with bed.changed(1, "authorized_keys", f'command="echo no shell for you; exit 1" {key}'):
        text = why(bed, _plan(), far)
    assert text == "it lets us in, but runs no commands (exited with status 1)"


def test_another_port_and_user_arguments(bed, far):
    assert "refuses ssh at port 2222" in why(bed, _plan(port=2222), far)
    assert "refuses ssh at port 2223" in why(bed, _plan(), far, {"ssh_args": ["-p", "2223"]})


def test_connection_refused(bed, far):
    bed.stop_sshd(1)
    try:
        text = why(bed, _plan(), far)
    finally:
        bed.restart_sshd(1)
    assert text == "it refuses ssh at port 22: does sshd run there? (another port: b:PORT)"


def test_no_route(bed, far):
    text = why(bed, _plan("10.99.0.1"), far)
    assert text.startswith("there is no way to it (network is unreachable)")


def test_a_host_that_does_not_answer(bed, far):
    bed.cut(1)
    try:
        text = why(bed, _plan(), far, {"ssh_args": ["-oConnectTimeout=1"]})
    finally:
        bed.mend(1)
    assert text.startswith("it does not answer ssh")


def test_host_keys(bed, far):
    with bed.changed(1, "known_hosts", ""):
        text = why(bed, _plan(), far)
        assert text == "its host key is not known here: ssh b once, and say yes"
    with bed.other_host_key(1):
        text = why(bed, _plan(), far)
        assert text.startswith("its host key is another than before")
        assert "ssh-keygen -R b, then ssh b once" in text


def test_permission_denied(bed, far):
    with bed.changed(1, "authorized_keys", ""):
        text = why(bed, _plan("b", port=22), far)
    assert text == "it lets nobody in without a password: ssh-copy-id -p 22 b"


def test_no_python_and_no_phalanx(bed):
    text = why(bed, _plan(), "~/no where/python")
    assert text == ("there is no ~/no where/python there: say with --python where its Python is")
    text = why(bed, _plan(), bed.bare_python)
    assert text.startswith(f"phalanx is not installed in {bed.bare_python} there")


def test_the_last_words_of_the_far_side(bed):
    python = bed.python(
        "failing", "echo noise >&2; echo 'it cannot run here: no memory' >&2; exit 1"
    )
    assert why(bed, _plan(), python) == "it cannot run here: no memory"
    python = bed.python("silent", "exit 5")
    said = f"its supervisor exited with status 5 and said nothing: is {python} a Python?"
    assert why(bed, _plan(), python) == said
    traceback = "echo 'Traceback (most recent call last):' >&2; echo 'KeyError: 3' >&2; exit 1"
    text = why(bed, _plan(), bed.python("broken", traceback))
    assert text == "its supervisor failed (KeyError: 3): has it the same version of phalanx?"


def test_a_slow_host_is_told_of_and_given_up():
    """A command stands in for ssh: it lets us in, finds a Python, and that says nothing."""
    said = "it has let us in, its Python has not answered yet"
    slow, plan = [], HostPlan("b", 2)
    far = "echo phalanx-host: in; echo phalanx-host: python; exec cat >/dev/null"
    way = LaunchSpec(plan, "python", ["sh", "-c", far], missing="", waiting="", why=str)
    timeout_s = SLOW_S + 0.2

    async def main(loop):
        host = RemoteCommand(way, b"secret")
        begun = asyncio.ensure_future(host.wait_begun(timeout_s, slow.append))
        await loop.until(lambda: host._phase == said, "a Python that is found")
        await loop.pass_s(SLOW_S - 0.1)
        assert slow == []
        await loop.pass_s(0.15)
        assert slow == [said]
        await loop.pass_s(0.1)
        assert not begun.done()
        await loop.pass_s(0.1)
        with pytest.raises(HostUnreachable) as caught:
            await begun
        host.kill()
        await host.ended()
        return caught.value.text

    text = run_held(main)
    assert text == f"{said}, after {timeout_s:g} s (--boot-timeout S waits longer)"
    assert slow == [said]


def test_no_ssh_here(bed, far, tmp_path):
    (tmp_path / "python").symlink_to(shutil.which("true"))
    with Launcher(
        bed, (_plan(), {"python": str(far)}, "secret"), env={"PATH": str(tmp_path)}
    ) as launcher:
        text = launcher.answer()["text"]
    assert text == "there is no ssh on this machine: install OpenSSH's client"


def test_a_frozen_sshd_is_slow_not_forgotten(bed, far):
    server = bed.hosts[1].sshd
    server.send_signal(signal.SIGSTOP)
    try:
        remote = {"python": str(far), "timeout_s": 1.0}
        with within(PATIENCE_S), Launcher(bed, (_plan(), remote, "secret")) as launcher:
            text = launcher.answer()["text"]
    finally:
        server.send_signal(signal.SIGCONT)
    assert "ssh" in text
    assert bed.left(PATIENCE_S) == []
