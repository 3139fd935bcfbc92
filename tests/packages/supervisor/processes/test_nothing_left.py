"""Kill anything, at any time: nothing is left behind."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest
from support.programs.leftovers import Created, Family
from support.promise import BOUND_S, PATIENCE_S, within
from support.runs.tiers import deep, deep_but
from support.waiting import wait_until

from phalanx.protocol import GRACE_S

pytestmark = pytest.mark.slow

CLIENT = """
import sys, threading
from phalanx.workspace import View, Workspace

class Never(View):
    def ask(self, question): return self
    def poll(self, timeout_s): return None
    def close(self): pass

def run():
    try:
        ws.run(sys.argv[2], view=Never())
    except BaseException as error:
        print(type(error).__name__, flush=True)

ws = Workspace.start(n=2, linger=float(sys.argv[1]), grace=0.5)
print("up", flush=True)
if sys.argv[2]:
    threading.Thread(target=run, daemon=True).start()
sys.stdin.read()
print("stopping", flush=True)
ws.stop()
"""
ATTACH = """
from phalanx.workspace import Workspace
ws = Workspace.attach()
print([rank.state for rank in ws.topology().ranks])
ws.detach()
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
    "controller": " controller",
    "rank": " rank-",
    "sweeper": "sweep_main.py",
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
    files = [family.places["tmp"] / f"ready-{rank}" for rank in range(2)]
    wait_until(lambda: all(file.exists() for file in files), "all ranks in their cell")
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


def assert_gone(family, *, but_client=False):
    """Hold all processes of one program to the time that their end may take."""
    with within():
        assert family.left(BOUND_S, but=(family.popen.pid,) if but_client else ()) == []


def cases(first, later):
    """Return parameters; those of ``later`` are deep, as they take the paths of the others."""
    return [
        pytest.param(
            *case, marks=[pytest.mark.promise] * (case[0] in MATTERS) + [deep] * (case in later)
        )
        for case in (*first, *later)
    ]


@pytest.mark.parametrize(
    ("victim", "phase"),
    cases(
        [
            ("client", "foreign"),
            ("client", "children"),
            ("root", "foreign"),
            ("controller", "collective"),
            ("rank", "large"),
            ("sweeper", "children"),
        ],
        [
            *(("client", phase) for phase in PHASES if phase not in {"foreign", "children"}),
            *(("root", phase) for phase in ("python", "input", "children")),
            *(("controller", phase) for phase in ("idle", "children")),
            ("rank", "children"),
        ],
    ),
)
def test_a_kill(tmp_path, victim, phase):
    with start(tmp_path, phase) as family:
        family.note_ports()
        assert family.files()  # the socket
        victim_of(family, victim).kill()
        if victim in MATTERS:
            assert_gone(family, but_client=True)
        if victim in MATTERS - {"client"} and PHASES[phase]:
            family.wait_line("RankFailure")  # who waited for the cell
        end(family, victim)
        assert family.left() == []


@pytest.mark.parametrize(
    ("victim", "number"),
    cases(
        [
            ("client", signal.SIGHUP),
            ("client", signal.SIGINT),
            ("root", signal.SIGTERM),
            ("rank", signal.SIGTERM),
        ],
        [
            ("client", signal.SIGTERM),
            ("root", signal.SIGHUP),
            ("controller", signal.SIGTERM),
            ("rank", signal.SIGHUP),
            ("sweeper", signal.SIGTERM),
            ("child", signal.SIGTERM),
        ],
    ),
)
def test_a_signal_while_subprocesses_run(tmp_path, victim, number):
    with start(tmp_path, "children") as family:
        family.note_ports()
        victim_of(family, victim).send_signal(number)
        if victim in MATTERS - {"root"} and number != signal.SIGINT:
            assert_gone(family, but_client=True)
        if victim == "root":  # the ranks wait at their end for what they have started
            assert family.left(GRACE_S + PATIENCE_S, but=(family.popen.pid,)) == []
        end(family, victim)
        assert family.left() == []


@pytest.mark.parametrize(
    "victim", deep_but(["client", "rank"], ["client", "root", "controller", "rank", "sweeper"])
)
def test_a_kill_while_booting(tmp_path, victim):
    with Family(tmp_path, "0", "", python=CLIENT) as family:
        victim_when_there(family, victim).kill()
        if victim == "client":
            assert_gone(family)
        end(family, victim)
        # A client that waits for a boot that fails says so and ends.
        assert family.left(2 * PATIENCE_S) == []


def victim_when_there(family, victim):
    if victim == "client":
        family.find(VICTIMS["rank"])
    elif victim == "root":
        family.find("phalanx.supervisor")
    return victim_of(family, victim)


@pytest.mark.parametrize("victim", deep_but(["root"], ["root", "rank", "sweeper"]))
def test_a_kill_while_stopping(tmp_path, victim):
    with start(tmp_path, "children") as family:
        process = victim_of(family, victim)
        family.popen.stdin.close()
        family.wait_line("stopping")
        process.kill()
        assert family.left() == []


@pytest.mark.promise
@pytest.mark.parametrize("phase", deep_but(["idle"], ["idle", "children"]))
def test_ranks_of_a_killed_client_end_after_the_linger_time(tmp_path, phase):
    with start(tmp_path, phase, linger_s=0.3) as family:
        victim_of(family, "client").kill()
        assert_gone(family)


@pytest.mark.promise
def test_ranks_of_a_killed_client_stay_for_the_linger_time_and_end_with_their_root(tmp_path):
    with start(tmp_path, "children", linger_s=600.0) as family:
        root = victim_of(family, "root")
        family.process.kill()
        wait_until(lambda: owner_of(family) == 0, "a root that knows that its client is gone")
        words = [sys.executable, "-c", ATTACH]
        said = subprocess.run(words, env=family.env, capture_output=True, timeout=60, check=False)
        assert said.stdout == b"['busy', 'busy']\n", said.stderr.decode()
        family.find("sleep 100", 2 * len(SLEEPS))
        root.kill()
        assert_gone(family)


OWNER = "from phalanx.workspace import Workspace; print(*(w.owner_pid for w in Workspace.list()))"


def owner_of(family):
    """Return the process that uses the workspace, as its root says; 0 for none."""
    words = [sys.executable, "-c", OWNER]
    said = subprocess.run(words, env=family.env, capture_output=True, timeout=60, check=True)
    return int(said.stdout)


@pytest.mark.promise
def test_what_a_rank_started_ends_with_the_rank(tmp_path):
    with start(tmp_path, "children") as family:
        family.find("sleep 100", 2 * len(SLEEPS))
        first, _ = family.find(VICTIMS["rank"], 2)
        first.kill()
        with within():
            wait_until(
                lambda: all(len(family.find(f"sleep {n}")) == 1 for n in SLEEPS),
                "the end of what one rank has started, and of nothing else",
            )
        family.popen.stdin.close()
        assert family.left() == []


@pytest.mark.promise
def test_a_start_ends_what_nobody_was_left_to_end_and_nothing_of_other_worlds(tmp_path):
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    with start(folders[0], "children") as living, start(folders[1], "children") as orphaned:
        before = {process.pid for process in living.find("sleep 100", 2 * len(SLEEPS))}
        victims = [victim_of(orphaned, name) for name in ("sweeper", "root", "client")]
        for victim in victims:
            victim.suspend()
        for victim in victims:
            victim.kill()
        assert orphaned.left(0.0) != []
        with start(folders[2], "children") as other:
            with within():
                wait_until(lambda: all(map(may_stay, orphaned.left(0.0))), "a sweep at the start")
            other.popen.stdin.close()
            assert other.left() == []
        assert before <= {process.pid for process in living.processes()}


def may_stay(word):
    """Whether a next start may leave this.

    What has neither the mark nor anybody who knew its group; and a socket, in a folder of its own:
    the next start looks into another one.
    """
    return "sh -c sleep 1006" in word or word.endswith(".sock")


def test_nothing_with_a_name_is_written_but_the_socket(tmp_path):
    """So that a start has little to clean but processes, whatever happened before."""
    with Family(tmp_path, "0", "import time; time.sleep(1000)", python=CLIENT) as family:
        watches = [Created(family.places[name]) for name in ("tmp", "run")]
        family.wait_line("up")
        assert family.named() == []
        (sock,) = family.files()
        family.popen.stdin.close()
        assert family.left() == []
        # But for what Python tries a folder with, in `tempfile.gettempdir`.
        made = [name for watch in watches for name in watch.names()]
        assert [name for name in made if not re.fullmatch(r"[a-z0-9_]{8}", name)] == ["phalanx"]
        assert sock.endswith(".sock")
        for watch in watches:
            watch.close()
