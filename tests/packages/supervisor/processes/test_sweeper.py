"""The supervisor's hand on the process that sweeps: how its own stop ends."""

from __future__ import annotations

import io
import signal
import socket
import subprocess
import sys

import pytest
from support.waiting import wait_until

from phalanx.supervisor.processes import sweep_main

# In a process of its own, which the one that sweeps takes for a supervisor.
STOP = """
import asyncio
from phalanx.supervisor.processes.sweeper import Sweeper

async def main():
    said = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    sweeper = Sweeper("")
    sweeper.start()
    await sweeper.stop()
    print(len(said), sweeper._gone.is_set())
    await sweeper.stop()

asyncio.run(main())
"""

# What is said at the stop of a host with two ranks.
ENDING = """
import asyncio, os
from phalanx.supervisor.hosts.local_host import LocalHost
from phalanx.supervisor.processes.pipes import ChildOutput

async def main():
    host = LocalHost((0, 1), print)
    for rank in host.ranks:
        host.spawn_command(
            rank, ["sleep", "9"], env=os.environ, stdin=None,
            stdout=ChildOutput(), stderr=ChildOutput(),
        )
    said = []
    host._sweeper._say = lambda line, say=host._sweeper._say: (said.append(line[0]), say(line))
    await host.stop()
    print(*said)

asyncio.run(main())
"""


# A root that has ranks on this machine, or only elsewhere, before it starts any.
ROOT = """
import asyncio, socket, sys
from phalanx.protocol import BootOptions, HostPlan, WorldConfig
from phalanx.supervisor.hosts.host_set import HostSet

async def main():
    path, where = sys.argv[1:]
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(path)
    sock.listen()
    plan = HostPlan("host", 1, is_local=where == "here")
    options = BootOptions(
        WorldConfig("name", 1), 0.0, "/", socket_path=path, hosts=(plan,)
    )
    hosts = HostSet(options, None)
    print("made", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await hosts.stop()

asyncio.run(main())
"""


@pytest.fixture(params=["here", "elsewhere"])
def root(request, tmp_path):
    """A root, and its socket."""
    path = tmp_path / "name.sock"
    words = [sys.executable, "-c", ROOT, str(path), request.param]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as popen:
        assert popen.stdout.readline() == b"made\n"
        yield popen, path
        popen.kill()


def test_the_socket_of_a_root_that_is_killed_goes_wherever_its_ranks_are(root):
    popen, path = root
    popen.kill()
    wait_until(lambda: not path.exists(), "the socket has been removed")


def test_the_socket_of_a_root_that_ends_is_its_own_to_remove(root):
    popen, path = root
    popen.communicate()
    assert popen.returncode == 0
    assert path.exists()


def test_a_later_root_of_the_same_name_keeps_its_socket(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "name.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()
        sweep_main._remove_socket(path, 0)
        assert path.exists()
    sweep_main._remove_socket(path, 0)
    assert not path.exists()


def test_a_stop_sees_the_end_of_what_it_ended():
    said = subprocess.run(
        [sys.executable, "-c", STOP], capture_output=True, text=True, check=True, timeout=30
    )
    assert (said.stdout, said.stderr) == ("0 True\n", "")


@pytest.mark.parametrize(("ending", "n_looks"), [("", 4), ("~\n", 2)])
def test_where_all_are_being_ended_one_look_is_for_all(monkeypatch, ending, n_looks):
    """One at the start, for others' worlds; one for each that is gone; one at the end."""
    looks, handlers = [], {}
    monkeypatch.setattr(sweep_main, "sweep", looks.append)
    monkeypatch.setattr(sweep_main.signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(sys, "argv", ["sweep_main.py", "1.2", ""])
    words = f"+{2**22 + 1} 1\n+{2**22 + 2} 2\n{ending}-{2**22 + 1} 1\n-{2**22 + 2} 2\n.\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(words))
    sweep_main.main()
    assert len(looks) == n_looks
    # The end of a whole process group, as by a terminal, does not end its sweeper.
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    assert handlers == dict.fromkeys(ending, signal.SIG_IGN)
    assert looks[-1](9, "1.2.1")
    assert not looks[-1](9, "1.22.1")


def test_a_host_that_ends_its_ranks_says_so_before():
    said = subprocess.run(
        [sys.executable, "-c", ENDING], capture_output=True, text=True, check=True, timeout=30
    )
    assert said.stdout.split() == ["~", "-", "-", "."], said


def test_a_supervisor_leaves_without_taking_its_interpreter_down():
    code = (
        "import atexit, sys\nfrom phalanx.supervisor.processes.system import leave\n"
        "atexit.register(print, 'too late')\nsys.stdout.write('said')\nleave()"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, "said", "")
