"""The supervisor's hand on the process that sweeps: how its own stop ends."""

from __future__ import annotations

import io
import signal
import subprocess
import sys

import pytest

from phalanx.supervisor import _sweep

# In a process of its own, which the one that sweeps takes for a supervisor.
STOP = """
import asyncio, os
from phalanx.supervisor._sweeper import Sweeper

async def main():
    said = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    sweeper = Sweeper("")
    sweeper.start(dict(os.environ))
    await sweeper.stop()
    print(len(said), sweeper._gone.is_set())
    await sweeper.stop()

asyncio.run(main())
"""

# What is said at the stop of a host with two ranks.
ENDING = """
import asyncio, os
from phalanx.supervisor._host import HostSupervisor
from phalanx.supervisor._output import OutputPipe

class Events:
    def on_message(self, rank, message): pass
    def on_lost(self, rank, reason, tail): pass

async def main():
    host = HostSupervisor((0, 1), Events())
    for rank in host.ranks:
        host.spawn_command(
            rank, ["sleep", "9"], env=os.environ, cwd="/", stdin=None,
            stdout=OutputPipe(), stderr=OutputPipe(),
        )
    said = []
    host._sweeper._say = lambda line, say=host._sweeper._say: (said.append(line[0]), say(line))
    await host.stop()
    print(*said)

asyncio.run(main())
"""


def test_a_stop_sees_the_end_of_what_it_ended():
    said = subprocess.run(
        [sys.executable, "-c", STOP], capture_output=True, text=True, check=True, timeout=30
    )
    assert (said.stdout, said.stderr) == ("0 True\n", "")


@pytest.mark.parametrize(("ending", "n_looks"), [("", 4), ("~\n", 2)])
def test_where_all_are_being_ended_one_look_is_for_all(monkeypatch, ending, n_looks):
    """One at the start, for others' worlds; one for each that is gone; one at the end."""
    looks, handlers = [], {}
    monkeypatch.setattr(_sweep, "sweep", looks.append)
    monkeypatch.setattr(_sweep.signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(sys, "argv", ["_sweep.py", "1.2", ""])
    words = f"+{2**22 + 1} 1\n+{2**22 + 2} 2\n{ending}-{2**22 + 1} 1\n-{2**22 + 2} 2\n.\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(words))
    _sweep.main()
    assert len(looks) == n_looks
    # Whoever ends all of a group, as a terminal does, does not end who sweeps up after it.
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
        "import atexit, sys\nfrom phalanx.supervisor._leave import leave\n"
        "atexit.register(print, 'too late')\nsys.stdout.write('said')\nleave()"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, "said", "")
