"""`phalanx launch --max-restarts`: failed ranks are started again, and the others go on with them."""

from __future__ import annotations

import signal

import pytest
from support.programs.launching import launch, wait_gone

pytestmark = pytest.mark.slow

SAID = "phalanx launch: "
AGAIN = "it is started again"

# A rank that comes back gets step and total from the others, all of whom have the same.
LOOP = """
import os, signal, sys, numpy as np, phalanx as px

def die(): os.kill(os.getpid(), signal.SIGKILL)

again = int(os.environ["PHALANX_RESTART_COUNT"])
assert os.environ["PHALANX_MAX_RESTARTS"] == sys.argv[1]
rank, step, total = int(os.environ["RANK"]), 0, 0
world = px.init()

def agree():
    return [int(px.all_max(value)) for value in (step, total)]

step, total = agree()
while step < 6:
    {code}
    try:
        total += int(px.all_sum(rank + step))
        step += 1
    except px.RankFailure as error:
        print("lost", error.rank, flush=True)
        assert px.recover() is world
        step, total = agree()
print(again, world.rank(), world.size(), total, px.all_sum(1), flush=True)
"""


def loop(code):
    return LOOP.replace("{code}", code)


def total(n, steps=6):
    return sum(rank + step for rank in range(n) for step in range(steps))


def ends(counts):
    """Return what ranks print at their end that have been started again this often."""
    n = len(counts)
    return {f"[{rank}] {count} {rank} {n} {total(n)} {n}" for rank, count in enumerate(counts)}


def lines(said):
    return said.stdout.decode().splitlines()


def errors(said):
    return said.stderr.decode().splitlines()


KILLED = "killed by signal 9 (SIGKILL)"


@pytest.mark.parametrize("transport", ["any", "tcp"])
def test_the_others_go_on_with_a_rank_that_was_killed(script, transport):
    path = script(loop("if (rank, step, again) == (1, 3, 0): die()"))
    said = launch("-n", "3", "--max-restarts", "2", "--transport", transport, path, "2")
    assert said.returncode == 0, said.stderr
    assert errors(said) == [f"{SAID}rank 1 {KILLED}; {AGAIN} (1 of 2)"]
    assert set(lines(said)) == {"[0] lost 1", "[2] lost 1", *ends([0, 1, 0])}


def test_splits_without_the_rank_stay_and_new_ones_are_made(script):
    path = script(
        """
        import os, phalanx as px
        again = int(os.environ["PHALANX_RESTART_COUNT"])
        world = px.init()
        if not again:
            pair, single = world.split(world.rank() // 2), world.split(world.rank())
            try:
                world.barrier()
                if world.rank() == 3: os._exit(7)
                world.barrier()
            except px.RankFailure:
                px.recover()
            assert px.all_sum(2, group=single) == 2
            if world.rank() < 2: assert px.all_sum(1, group=pair) == 2
            else:
                try: pair.barrier()
                except px.DistributedError as error: print(error)
        pair = world.split(world.rank() // 2)
        print(px.all_sum(world.rank(), group=pair))
        """
    )
    said = launch("-n", "4", "--max-restarts", "1", path)
    assert said.returncode == 0, said.stderr
    lost = "[2] rank 3 has closed or lost this split; make the split anew"
    assert sorted(lines(said)) == sorted(["[0] 1", "[1] 1", "[2] 5", "[3] 5", lost])


def test_when_no_restart_is_left_the_launch_ends_as_without(script):
    path = script(loop("if rank == 1 and step == 2 + again: sys.exit(3 + again)"))
    said = launch("-n", "3", "--max-restarts", "2", "--grace", "0", path, "2")
    assert said.returncode == 5, said.stderr
    notices = [line for line in errors(said) if line.startswith(SAID)]
    assert notices[:2] == [
        f"{SAID}rank 1 exited with status 3; {AGAIN} (1 of 2)",
        f"{SAID}rank 1 exited with status 4; {AGAIN} (2 of 2)",
    ]
    assert notices[-1].startswith(f"{SAID}rank 1 exited with status 5")


def test_when_no_restart_is_left_the_others_may_go_on(script):
    code = (
        "if rank == 1 and step == 2 + again: die()\n"
        "    if world.size() == 2 and step == 5: px.barrier(); break"
    )
    path = script(loop(code))
    said = launch("-n", "3", "--max-restarts", "1", "--keep-going", path, "1")
    assert said.returncode == 0, said.stderr
    assert errors(said) == [
        f"{SAID}rank 1 {KILLED}; {AGAIN} (1 of 1)",
        f"{SAID}rank 1 {KILLED}; the others go on (--keep-going)",
        f"{SAID}the others have ended well without rank 1",
    ]
    assert [line[:8] for line in lines(said)].count("[0] lost") == 2


INIT = {
    "meanwhile": (
        "import phalanx.distributed.bootstrap.supervised as joining\n"
        "if rank == 1 and not again: joining.next_epoch = lambda *_, **__: die()"
    ),
    "twice": "if rank in (1, 2) and again < 2: die()",
    "everywhere": "if not again: die()",
}


@pytest.mark.parametrize("how", INIT)
def test_a_death_in_init_disturbs_nobody(script, how):
    code = loop("").replace("world = px.init()", f"{INIT[how]}\nworld = px.init()")
    said = launch("-n", "3", "--max-restarts", "4", script(code), "4")
    assert said.returncode == 0, said.stderr
    counts = {"meanwhile": [0, 1, 0], "twice": [0, 2, 2]}
    assert set(lines(said)) == ends(counts.get(how, [1, 1, 1]))
    assert len(errors(said)) == sum(counts.get(how, [1, 1, 1]))


def test_a_rank_that_was_started_again_waits_for_the_others(script, tmp_path):
    """They may compute for longer than the time for joining."""
    gate = tmp_path / "gate"
    path = script(
        f"""
        import logging, os, time, phalanx as px
        gate = {str(gate)!r}
        if os.environ["PHALANX_RESTART_COUNT"] == "0":
            world = px.init()
            try:
                world.barrier()
                if world.rank() == 1: os._exit(7)
                world.barrier()
            except px.RankFailure:
                while not os.path.exists(gate): time.sleep(0.005)
                px.recover()
        else:
            class Opener(logging.StreamHandler):
                def emit(self, record):
                    super().emit(record)
                    open(gate, "w").close()
            logging.getLogger("phalanx").addHandler(Opener())
            world = px.init(timeout=0.1)
        print(px.all_sum(1))
        """
    )
    said = launch("-n", "3", "--max-restarts", "1", path)
    assert said.returncode == 0, said.stderr
    assert sorted(lines(said)) == ["[0] 3", "[1] 3", "[2] 3"]
    waits = "[1] px.init() timed out after 0.1 s; missing: rank 0, rank 2; "
    assert errors(said)[1:] == [f"{waits}this rank was started again and goes on waiting"]


AGAIN_DIES = {
    "as it starts": "if rank == 1 and again == 1: die()",
    "as it joins": (
        "import phalanx.distributed.bootstrap.supervised as joining\n"
        "if rank == 1 and again == 1: joining.next_epoch = lambda *_, **__: die()"
    ),
    # Rank 2 dies while rank 1 waits in px.init().
    "while another one waits": (
        "import phalanx.distributed.bootstrap.supervised as joining\n"
        "enter = joining.next_epoch\n"
        "def count_and_enter(spec, *args, **options):\n"
        "    if rank == 2 and spec.epoch > 1: die()\n"
        "    return enter(spec, *args, **options)\n"
        "if not again: joining.next_epoch = count_and_enter"
    ),
}


@pytest.mark.parametrize("how", AGAIN_DIES)
def test_a_death_while_a_rank_is_started_again(script, how):
    """`px.recover()` of the others waits for the next start."""
    code = loop("if (rank, step, again) == (1, 3, 0): die()")
    code = code.replace("world = px.init()", f"{AGAIN_DIES[how]}\nworld = px.init()")
    said = launch("-n", "3", "--max-restarts", "3", script(code), "3")
    assert said.returncode == 0, said.stderr
    counts = [0, 1, 1] if how == "while another one waits" else [0, 2, 0]
    assert set(lines(said)) >= ends(counts)
    assert lines(said).count("[0] lost 1") == 1
    assert len(errors(said)) == 2


def test_who_ends_because_of_another_is_not_started_again(script):
    path = script(
        """
        import os, phalanx as px
        world = px.init()
        if world.rank() == 1 and os.environ["PHALANX_RESTART_COUNT"] == "0": os._exit(7)
        px.all_sum(1)
        """
    )
    said = launch("-n", "3", "--max-restarts", "5", "--grace", "0.2", path)
    assert said.returncode == 1
    notices = [line for line in errors(said) if line.startswith(SAID)]
    assert notices[0] == f"{SAID}rank 1 exited with status 7; {AGAIN} (1 of 5)"
    assert notices[-1].startswith(f"{SAID}rank ")
    assert len(notices) == 2
    assert any("RankFailure: rank 1 on " in line and AGAIN in line for line in errors(said))


def test_programs_without_phalanx_and_their_streams():
    """A rank gets the input that came since its start; a cut line gets an end."""
    code = 'if [ $PHALANX_RESTART_COUNT = 0 ]; then read x; printf "half $x"; exit 9; fi; echo whole; cat'
    said = launch("-n", "2", "--max-restarts", "2", "--", "sh", "-c", code, stdin=b"line\n")
    assert said.returncode == 0, said.stderr
    whole = [f"[{rank}] {text}" for rank in (0, 1) for text in ("half line", "whole")]
    assert sorted(lines(said)) == sorted(whole)
    assert sorted(line[-8:] for line in errors(said)) == ["(1 of 2)", "(2 of 2)"]


def test_a_program_that_is_gone_is_not_started_again(tmp_path):
    path = tmp_path / "program"
    path.write_text("#!/bin/sh\nrm $0; exit 4\n")
    path.chmod(0o700)
    said = launch("-n", "1", "--max-restarts", "3", "--", str(path))
    assert said.returncode == 1
    gone = f"could not be started again: {path}: No such file or directory"
    assert errors(said)[1:] == [f"{SAID}rank 0 {gone}"] * 2


def test_a_signal_ends_a_launch_whose_rank_was_started_again(running, script):
    path = script(
        """
        import os, signal, time
        if os.environ["PHALANX_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1": os.abort()
        print("ready", flush=True)
        time.sleep(600)
        """
    )
    launcher = running("-n", "2", "--max-restarts", "9", path)
    launcher.wait_lines("[0] ready", "[1] ready")
    processes = launcher.processes()
    launcher.popen.send_signal(signal.SIGTERM)
    code, said = launcher.end()
    assert code == 143
    assert said.count(AGAIN) == 1
    assert wait_gone(processes) == []


# -- several hosts ------------------------------------------------------------------------------

HOSTS = ("--hosts", "x,y", "--launcher", "local", "-n", "2")


def test_a_rank_of_another_host_is_started_again_there(script):
    code = loop("if (rank, step) in ((1, 2), (3, 4)) and not again: die()")
    code = code.replace(
        "print(again,", 'assert os.environ["LOCAL_RANK"] == str(rank % 2)\nprint(again,'
    )
    said = launch(*HOSTS, "--max-restarts", "2", script(code), "2")
    assert said.returncode == 0, said.stderr
    assert set(lines(said)) >= ends([0, 1, 0, 1])


def test_input_of_a_rank_that_was_started_again_on_another_host():
    code = "if [ $PHALANX_RESTART_COUNT = 0 ]; then read x; exit 9; fi; echo whole; cat"
    said = launch(*HOSTS, "--max-restarts", "4", "--", "sh", "-c", code, stdin=b"line\n")
    assert said.returncode == 0, said.stderr
    assert sorted(lines(said)) == [f"[{rank}] whole" for rank in range(4)]


def test_ranks_of_a_lost_host_are_not_started_again(script):
    path = script(
        """
        import os, signal, phalanx as px
        world = px.init()
        if world.rank() == 3: os.kill(os.getppid(), signal.SIGKILL)
        px.all_sum(1)
        """
    )
    said = launch(*HOSTS, "--max-restarts", "3", "--grace", "0.2", path)
    assert said.returncode == 137, said.stderr
    assert AGAIN not in said.stderr.decode()
