"""Kill anything, at any time: nothing is left behind (design.md section 5, promise 6)."""

from __future__ import annotations

import re
import signal
import time

import pytest
from leftovers import Created, Family

pytestmark = pytest.mark.slow

BOUND_S = 2.0  # design.md section 5: on one machine
STOP_S = 10.0  # that the client ends by itself, on a machine with other things to do

CLIENT = """
import sys, threading
from phalanx.workspace import QuietView, Workspace

class Never(QuietView):
    def ask(self, question): return self
    def poll(self, timeout_s): return None
    def close(self): pass

def run():
    try:
        ws.run(sys.argv[2], view=Never())
    except BaseException as error:
        print(type(error).__name__, flush=True)

ws = Workspace.start(n=2, linger=float(sys.argv[1]))
print("up", flush=True)
if sys.argv[2]:
    threading.Thread(target=run, daemon=True).start()
sys.stdin.read()
print("stopping", flush=True)
ws.stop()
"""
READY = "open(f'ready-{rank}', 'w').close()\n"
# In the rank's process group, in a session of its own, in a group of the rank's session, a daemon,
# without the rank's environment.
CHILDREN = f"""
import multiprocessing, os, subprocess, sys, time
subprocess.Popen(["sleep", "1001"])
subprocess.Popen(["sleep", "1002"], start_new_session=True)
os.system("nohup sleep 1003 > /dev/null 2>&1 &")
os.system("bash -c 'set -m; sleep 1004 & disown'")
subprocess.run([sys.executable, "-c", '''if True:
    import os, time
    os.fork() and os._exit(0)
    os.setsid()
    os.fork() and os._exit(0)
    time.sleep(1005)
'''])
subprocess.Popen(["sh", "-c", "sleep 1006; :", os.environ["LEFTOVERS_FAMILY"]], env={{}})
multiprocessing.get_context("spawn").Process(target=time.sleep, args=(1007,)).start()
{READY}
subprocess.run(["sleep", "1008"])
"""
SLEEPS = (1001, 1002, 1003, 1004, 1006, 1008)  # the others are Python's
PHASES = {
    "idle": "",
    "python": READY + "while True: pass",
    "foreign": "import ctypes\n" + READY + "ctypes.PyDLL(None).sleep(1000)",
    "collective": "import time\n" + READY + "if rank: px.all_sum(1)\nelse: time.sleep(1000)",
    "large": READY + "x = np.ones(1 << 22)\nwhile True: px.all_sum(x)",
    "input": READY + "input('what? ')",
    "children": CHILDREN,
}
# victim, but client and root -> what its command line holds
VICTIMS = {
    "controller": "phalanx.supervisor._controller",
    "rank": "phalanx.supervisor._engine",
    "sweeper": "_sweep.py",
    "child": "sleep 1008",
}
MATTERS = {"client", "root", "controller"}  # the others' death is not the end


def start(folder, phase, linger_s=0.0):
    family = Family(folder, str(linger_s), PHASES[phase], python=CLIENT)
    family.wait_line("up")
    if PHASES[phase]:
        wait_ready(family)
    return family


def wait_ready(family):
    deadline_s = time.monotonic() + 20
    files = [family.places["tmp"] / f"ready-{rank}" for rank in range(2)]
    while not all(file.exists() for file in files):
        assert time.monotonic() < deadline_s
    for file in files:
        file.unlink()


def victim_of(family, name):
    if name == "client":
        return family.process
    if name == "root":
        (root,) = (p for p in family.process.children() if "phalanx.supervisor" in p.cmdline())
        return root
    return family.find(VICTIMS[name])[0]


def end(family, victim):
    """End what the death of this victim does not end."""
    if victim != "client":
        family.popen.stdin.close()


@pytest.mark.parametrize(
    ("victim", "phase"),
    [
        *(("client", phase) for phase in PHASES),
        *(("root", phase) for phase in ("python", "foreign", "input", "children")),
        *(("controller", phase) for phase in ("idle", "collective", "children")),
        *(("rank", phase) for phase in ("large", "children")),
        ("sweeper", "children"),
    ],
)
def test_a_kill(tmp_path, victim, phase):
    with start(tmp_path, phase) as family:
        family.note_ports()
        assert family.ports
        victim_of(family, victim).kill()
        if victim in MATTERS:
            assert family.left(BOUND_S, but=(family.popen.pid,)) == []
        if victim in MATTERS - {"client"} and PHASES[phase]:
            family.wait_line("RankFailure")  # who waited for the cell
        end(family, victim)
        assert family.left(STOP_S) == []


@pytest.mark.parametrize(
    ("victim", "number"),
    [
        ("client", signal.SIGTERM),
        ("client", signal.SIGHUP),
        ("client", signal.SIGINT),
        ("root", signal.SIGTERM),
        ("root", signal.SIGHUP),
        ("controller", signal.SIGTERM),
        ("rank", signal.SIGTERM),
        ("rank", signal.SIGHUP),
        ("sweeper", signal.SIGTERM),
        ("child", signal.SIGTERM),
    ],
)
def test_a_signal_while_subprocesses_run(tmp_path, victim, number):
    with start(tmp_path, "children") as family:
        family.note_ports()
        victim_of(family, victim).send_signal(number)
        if victim in MATTERS and number != signal.SIGINT:
            assert family.left(BOUND_S, but=(family.popen.pid,)) == []
        end(family, victim)
        assert family.left(STOP_S) == []


@pytest.mark.parametrize("victim", ["client", "root", "controller", "rank", "sweeper"])
def test_a_kill_while_booting(tmp_path, victim):
    with Family(tmp_path, "0", "", python=CLIENT) as family:
        victim_when_there(family, victim).kill()
        end(family, victim)
        # A client that waits for a boot that fails says so and ends.
        assert family.left(BOUND_S if victim == "client" else 2 * STOP_S) == []


def victim_when_there(family, victim):
    if victim == "client":
        family.find(VICTIMS["rank"])
    elif victim == "root":
        family.find("phalanx.supervisor")
    return victim_of(family, victim)


@pytest.mark.parametrize("victim", ["root", "rank", "sweeper"])
def test_a_kill_while_stopping(tmp_path, victim):
    with start(tmp_path, "children") as family:
        process = victim_of(family, victim)
        family.popen.stdin.close()
        family.wait_line("stopping")
        process.kill()
        assert family.left(STOP_S) == []


@pytest.mark.parametrize("phase", ["idle", "children"])
def test_a_killed_client_with_a_linger(tmp_path, phase):
    with start(tmp_path, phase, linger_s=1.0) as family:
        victim_of(family, "client").kill()
        assert family.left(0.5) != []
        assert family.left(0.5 + BOUND_S) == []


def test_what_a_rank_started_ends_with_the_rank(tmp_path):
    with start(tmp_path, "children") as family:
        family.find("sleep 100", 2 * len(SLEEPS))
        first, _ = family.find(VICTIMS["rank"], 2)
        first.kill()
        deadline_s = time.monotonic() + BOUND_S
        while len(family.find("sleep 1002")) > 1:
            assert time.monotonic() < deadline_s
        for n in SLEEPS:
            assert len(family.find(f"sleep {n}")) == 1
        family.popen.stdin.close()
        assert family.left(STOP_S) == []


def test_what_nobody_was_left_to_end_ends_with_the_next_start(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with start(tmp_path / "a", "children") as family:
        victims = [victim_of(family, name) for name in ("sweeper", "root", "client")]
        for victim in victims:
            victim.suspend()
        for victim in victims:
            victim.kill()
        assert family.left(0.5) != []
        with start(tmp_path / "b", "idle") as other:
            left = family.left(BOUND_S)
            other.popen.stdin.close()
            assert other.left(STOP_S) == []
        # What has neither the mark nor anybody who knew its group; and a record, in this family's
        # own folder: the next start looks into another one.
        assert all("sh -c sleep 1006" in word or word.endswith(".json") for word in left)


def test_another_worlds_processes_are_left_alone(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with start(tmp_path / "a", "children") as family:
        before = {process.pid for process in family.find("sleep 100", 2 * len(SLEEPS))}
        with start(tmp_path / "b", "children") as other:
            other.popen.stdin.close()
            assert other.left(STOP_S) == []
        assert before <= {process.pid for process in family.processes()}


def test_nothing_with_a_name_is_written_but_the_record(tmp_path):
    """So that a start has little to clean but processes, whatever happened before."""
    with Family(tmp_path, "0", "import time; time.sleep(1000)", python=CLIENT) as family:
        watches = [Created(family.places[name]) for name in ("tmp", "run")]
        family.wait_line("up")
        assert family.named() == []
        (record,) = family.files()
        family.popen.stdin.close()
        assert family.left(STOP_S) == []
        # But for what Python tries a folder with, in `tempfile.gettempdir`.
        made = [name for watch in watches for name in watch.names()]
        assert [name for name in made if not re.fullmatch(r"[a-z0-9_]{8}", name)] == ["phalanx"]
        assert record.endswith(".json")
        for watch in watches:
            watch.close()
