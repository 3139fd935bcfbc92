"""How ranks of `phalanx launch` end: statuses, failures, signals, and nothing left behind."""

from __future__ import annotations

import signal
import time

import psutil
import pytest
from support.own_frames import own_frames
from support.programs.idle import assert_idle
from support.programs.launching import ENDLESS, launch, wait_gone, wait_held_up
from support.promise import BOUND_S, PATIENCE_S, check
from support.runs.tiers import deep, deep_but, each_with_first, pairwise

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("code", "status", "how"),
    [
        ("os.kill(os.getpid(), 9)", 137, "killed by signal 9 (SIGKILL)"),
        pytest.param("os.abort()", 134, "killed by signal 6 (SIGABRT)", marks=deep),
    ],
)
def test_the_status_of_the_first_that_failed(script, code, status, how):
    path = script(
        f"""
        import os, sys, phalanx as px
        world = px.init()
        if world.rank() == 2: {code}
        px.all_sum(1)
        """
    )
    said = launch("-n", "3", path)
    assert said.returncode == status
    lines = said.stderr.decode().splitlines()
    assert lines[-1] == f"phalanx launch: rank 2 {how}"  # the others ended by themselves
    assert sum("RankFailure: rank 2 on " in line for line in lines) == 2
    assert not own_frames(said.stderr.decode())


LEFT = {
    "returns": ("sys.exit()", 7, "exited with status 7; rank 1 had ended while it was waited for"),
    "raises": ("raise ValueError", 1, "rank 1 exited with status 1"),
    "exits": ("sys.exit(5)", 5, "rank 1 exited with status 5"),
    "is killed": ("os.kill(os.getpid(), 9)", 137, "rank 1 killed by signal 9 (SIGKILL)"),
}


@pytest.mark.parametrize(
    ("how", "transport"), each_with_first({"how": list(LEFT), "transport": ["any", "tcp"]})
)
def test_the_others_handle_the_failure_of_a_rank(script, how, transport):
    code, status, text = LEFT[how]
    path = script(
        f"""
        import os, sys, numpy as np, phalanx as px
        world = px.init()
        for step in range(3):
            if (world.rank(), step) == (1, 2): {code}
            try:
                px.all_sum(np.ones(1000))
            except px.RankFailure as error:
                print("saved without", error.rank, flush=True)
                sys.exit(7)
        """
    )
    said = launch("-n", "3", "--transport", transport, path)
    assert said.returncode == status
    saved = [f"[{rank}] saved without 1" for rank in (0, 2)]
    assert sorted(said.stdout.decode().splitlines()) == saved
    last = said.stderr.decode().splitlines()[-1]
    assert last.startswith("phalanx launch: ")
    assert last.endswith(text)


def test_last_words_before_a_crash_come(script):
    path = script("import os; os.write(1, b'x' * 50_000 + b' last'); os.kill(os.getpid(), 9)")
    said = launch("-n", "2", path)
    assert b"x" * 50_000 + b" last\n" in said.stdout
    assert said.returncode == 137


def test_last_words_of_what_a_program_left_behind_come():
    until_it_has_ended = r"while grep -qsE '^State:\s+[^Z]' /proc/$$/status; do sleep 0.01; done"
    said = launch("-n", "2", "--", "bash", "-c", f"echo words > >({until_it_has_ended}; cat)")
    assert (said.returncode, said.stderr) == (0, b"")
    assert sorted(said.stdout.splitlines()) == [b"[0] words", b"[1] words"]


LEAVE = {"exits": "sys.exit(0)", "vanishes": "os._exit(0)"}


@pytest.mark.parametrize(
    ("transport", "how", "is_recv"),
    pairwise({"transport": ["any", "tcp"], "how": list(LEAVE), "is_recv": [True, False]}),
)
def test_a_message_that_a_rank_left_for_good(script, transport, how, is_recv):
    path = script(
        f"""
        import os, sys, time, numpy as np, phalanx as px
        world = px.init()
        pids = px.all_gather(np.array([os.getpid()]))
        if world.rank() == 1:
            for i in range(3): px.send(np.full(2000, i), 0)  # in all less than 64 KiB: nobody waits
            {LEAVE[how]}
        if world.rank() == 0:
            # What it has sent is there when rank 1 has ended and its parent knows.
            while os.path.exists(f"/proc/{{pids[1]}}"): time.sleep(0.005)
            for i in range(3): assert (px.recv((2000,), np.int64, 1) == i).all()
            begin_s = time.monotonic()
            try:
                if {is_recv}: px.recv((2000,), np.int64, 1)
                else: px.send(np.zeros(40_000_000, np.uint8), 1)
            finally:
                print(time.monotonic() - begin_s < {PATIENCE_S}, flush=True)
        """
    )
    said = launch("-n", "3", "--transport", transport, path)
    assert said.stdout == b"[0] True\n"
    assert said.returncode == 1
    what = b"recv #4 from rank 1" if is_recv else b"send #1 to rank 1"
    last = said.stderr.strip().splitlines()[-2]
    assert b"rank 1 " in last
    assert what in last
    assert not own_frames(said.stderr.decode())


def test_what_a_rank_had_queued_when_it_vanished_is_not_waited_for(script):
    path = script(
        """
        import os, time, numpy as np, phalanx as px
        world = px.init()
        if world.rank() == 1:
            works = [px.all_sum(np.ones(3), async_op=True) for _ in range(3)]
            os._exit(0)
        if world.rank() == 0: px.all_sum(np.ones(3))
        time.sleep(600)  # rank 2: that it closes the group would be a reason as well
        """
    )
    said = launch("-n", "3", path)  # which waits a minute for it, no longer
    assert said.returncode == 1
    assert b"in which rank 0 waits, can never complete" in said.stderr


def test_a_rank_that_ends_early_does_not_disturb_the_others(script):
    path = script(
        """
        import os, time, numpy as np, phalanx as px
        world = px.init()
        pids = px.all_gather(np.array([os.getpid()]))
        if world.rank() == 1: os._exit(0)
        while os.path.exists(f"/proc/{pids[1]}"): time.sleep(0.005)  # until its parent knows
        time.sleep(0.5)  # in which nothing may come of that
        print("done")
        """
    )
    said = launch("-n", "2", path)
    assert (said.returncode, said.stdout, said.stderr) == (0, b"[0] done\n", b"")


STUCK = """
import os, time, phalanx as px
world = px.init()
print("ready", flush=True)
if world.rank() == 1: time.sleep(60)
px.all_sum(1)
"""
READY = ("[0] ready", "[1] ready", "[2] ready")


@pytest.mark.promise
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_all_ranks(running, script, number, status):
    launcher = running("-n", "3", script(STUCK))
    launcher.wait_lines(*READY)
    processes = launcher.processes()
    begin_s = time.monotonic()
    launcher.popen.send_signal(number)
    code, said = launcher.end()
    check(time.monotonic() - begin_s)
    assert code == status
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in said
        assert all(f"[{rank}] Traceback" in said for rank in range(3))  # of that, or a peer's end
    assert wait_gone(processes) == []


HANDLERS = """
import signal, phalanx as px
def handle(number, frame): print("got", signal.Signals(number).name, flush=True)
for number in {numbers}: signal.signal(number, handle)
px.init()
print("ready", flush=True)
while True: signal.pause()
"""


@pytest.mark.parametrize(
    "number", deep_but([signal.SIGHUP], [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
)
def test_signals_reach_the_ranks_as_themselves_and_users_ones_end_nothing(running, script, number):
    names = ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGURG", "SIGXCPU", "SIGCONT", "SIGWINCH")
    users = [signal.Signals[name] for name in names]
    caught = [int(each) for each in (*users, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    launcher = running("-n", "3", "--grace", "0.3", script(HANDLERS.format(numbers=caught)))
    launcher.wait_lines(*READY)
    for each in (*users, number):
        launcher.popen.send_signal(each)
        launcher.wait_lines(*(f"[{rank}] got {each.name}" for rank in range(3)))
    code, said = launcher.end()
    assert code == 128 + number
    assert "did not end within 0.3 s of the stop" in said


@pytest.mark.promise
def test_a_second_ctrl_c_kills(running, script):
    path = script(
        """
        import signal, time
        signal.signal(signal.SIGINT, lambda *_: print("no", flush=True))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", flush=True)
        while True: time.sleep(60)
        """
    )
    launcher = running("-n", "3", path)
    launcher.wait_lines(*READY)
    processes = launcher.processes()
    launcher.popen.send_signal(signal.SIGINT)
    launcher.wait_lines("[0] no", "[1] no", "[2] no")
    begin_s = time.monotonic()
    launcher.popen.send_signal(signal.SIGINT)
    code, _ = launcher.end()
    check(time.monotonic() - begin_s)
    assert code == 130
    assert wait_gone(processes) == []


@pytest.mark.promise
def test_a_second_ctrl_c_does_not_wait_for_who_reads_the_output(running, script, tmp_path):
    launcher = running("-n", "2", script(ENDLESS), str(tmp_path))
    wait_held_up(tmp_path, 2)
    ranks = launcher.ranks
    launcher.popen.send_signal(signal.SIGINT)
    assert wait_gone(ranks) == []
    assert launcher.popen.poll() is None  # it has output to write
    launcher.popen.send_signal(signal.SIGINT)
    assert launcher.popen.wait(PATIENCE_S) == 130


@pytest.mark.promise
def test_a_killed_launcher_leaves_nothing(running):
    command = "sleep 1000 & trap '' TERM INT; echo ready; wait"
    launcher = running("-n", "3", "--", "sh", "-c", command)
    launcher.wait_lines(*READY)
    processes = launcher.processes()
    assert len(processes) == 8  # launcher, sweeper, three shells with a child each
    launcher.popen.kill()
    launcher.end()
    assert wait_gone(processes) == []


@pytest.mark.promise
def test_a_killed_rank_ends_the_others_even_if_they_refuse(running, script):
    path = script(
        """
        import signal, time
        signal.signal(signal.SIGTERM, lambda *_: print("asked to end", flush=True))
        print("ready", flush=True)
        time.sleep(60)
        """
    )
    launcher = running("-n", "3", "--grace", "0.3", path)
    launcher.wait_lines(*READY)
    processes = launcher.processes()
    launcher.ranks[1].kill()
    begin_s = time.monotonic()
    launcher.wait_lines("[0] asked to end", "[2] asked to end")
    code, said = launcher.end()
    check(time.monotonic() - begin_s, 0.3 + BOUND_S)
    assert code == 137
    assert said == ("phalanx launch: rank 1 killed by signal 9 (SIGKILL); the others were ended\n")
    assert wait_gone(processes) == []


def test_a_time_limit(script):
    said = launch("-n", "2", "--timeout", "0.6", script("import time; time.sleep(60)"))
    assert said.returncode == 124
    assert b"did not end within 0.6 s" in said.stderr


def test_a_time_limit_that_is_over_before_the_supervisor_is_ready():
    said = launch("-n", "2", "--timeout", "0", "--", "sleep", "1000")
    assert (said.returncode, said.stderr.count(b"\n")) == (124, 1)


def test_idle_ranks_wake_nobody(running, script):
    launcher = running("-n", "3", script(STUCK))
    launcher.wait_lines(*READY)
    assert_idle([psutil.Process(launcher.popen.pid)], wakeups_per_s=15)
