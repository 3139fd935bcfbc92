"""`px.recover()` in scripts: all values right after it, what is missing named, nothing left behind."""

from __future__ import annotations

import json
import os
import sys

import pytest
from support.programs.launching import launch
from support.programs.memory import least_growth
from support.runs.tiers import deep


@pytest.fixture
def recovering(script):
    """Run a script with the farm's cells in reach; its end and what each rank has printed."""

    def run(code, n, *words):
        path = script("from distributed.cells import recover_cells\nimport phalanx as px\n" + code)
        paths = os.pathsep.join(filter(None, sys.path))
        ended = launch(
            "-n", str(n), *words, sys.executable, path, env={"PYTHONPATH": paths, "N": str(n)}
        )
        return ended.returncode, ended.stdout.decode(), ended.stderr.decode()

    return run


def test_a_script_goes_on_after_a_failure(recovering):
    code, out, err = recovering(
        "world = px.init()\n"
        "part = world.split(world.rank() % 2)\n"
        "print(recover_cells.fail('mismatch', 1).partition(':')[0])\n"
        "assert px.recover(20) is world\n"
        "recover_cells.check(world); recover_cells.check(part)\n"
        "assert px.recover(20) is world\n"
        "print(world.describe()['epoch'], part.size())\n",
        3,
    )
    assert (code, err) == (0, "")
    said = [f"[{rank}] CollectiveMismatch" for rank in range(3)]
    said += [f"[{rank}] 2 {size}" for rank, size in enumerate([2, 1, 2])]
    assert sorted(out.splitlines()) == sorted(said)


def test_who_fails_after_a_recovery_is_named_itself(recovering):
    """Rank 0 was freed because of rank 1, but what it fails of later is its own."""
    code, out, err = recovering(
        "import os, signal, time\nimport numpy as np\nworld = px.init()\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "recover_cells.fail('abort', 1)\n"
        "px.recover(20)\n"
        "pids = px.all_gather(np.array([os.getpid()]))\n"
        "if world.rank() == 0: os._exit(3)\n"
        "while os.path.exists(f'/proc/{pids[0]}'): time.sleep(0.005)\n"
        "os._exit(5)\n",
        2,
    )
    assert (code, out) == (3, ""), err
    assert "rank 0 exited with status 3" in err


WHY = (
    "1 has ended (exit status 0); the group cannot be formed without it: launch the ranks anew "
    "(with --keep-going the others can go on without it)"
)


def test_a_rank_that_had_ended_before_is_named_at_once(recovering):
    code, out, err = recovering(
        "import os, time\nimport numpy as np\nworld = px.init()\n"
        "pids = px.all_gather(np.array([os.getpid()]))\n"
        "if world.rank() != 1:\n"
        "    while os.path.exists(f'/proc/{pids[1]}'): time.sleep(0.005)\n"
        "    try: px.recover(20)\n"
        "    except px.RankFailure as error: print(error.rank, error.reason)\n",
        3,
    )
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [f"[{rank}] {WHY}" for rank in (0, 2)]


# -- with fewer ranks ---------------------------------------------------------------------------

GO_ON = ("--keep-going", "--grace", "0")
SAID = "phalanx launch: "


@pytest.mark.parametrize("transport", ["any", "tcp"])
def test_the_others_go_on_without_a_rank_that_was_killed(recovering, transport):
    code, out, err = recovering(
        "import os, signal\nworld = px.init()\n"
        "even, low = world.split(world.rank() % 2), world.split(world.rank() // 2)\n"
        "if world.rank() == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "try: px.all_sum(1)\n"
        "except px.RankFailure as error: print(error.rank)\n"
        "assert px.recover(20) is world is px.init()\n"
        "recover_cells.check(world); recover_cells.check(even)\n"
        "place = os.environ['RANK'], os.environ['WORLD_SIZE']\n"
        "assert place == (str(world.rank()), '2')\n"
        "print(world.rank(), world.size(), world.describe()['members'])\n"
        "recover_cells.check(world.split(0))\n"
        "if world.rank() == 0:\n"
        "    try: low.barrier()\n"
        "    except px.DistributedError as error: print(error)\n"
        # What goes wrong from here on names the ranks as the labels do.
        "print(recover_cells.fail('mismatch', 1))\n"
        "px.recover(20)\nrecover_cells.check(world)\n",
        3,
        *GO_ON,
        "--transport",
        transport,
    )
    assert code == 0, err
    assert err.splitlines() == [
        f"{SAID}rank 1 killed by signal 9 (SIGKILL); the others go on (--keep-going)",
        f"{SAID}the others have ended well without rank 1",
    ]
    lines = out.splitlines()
    said = {rank: [line[4:] for line in lines if line[1] == str(rank)] for rank in (0, 2)}
    gone = "rank 1 has closed or lost this split; make the split anew"
    assert said[0][:3] == ["1", "0 2 [0, 2]", gone]
    assert said[2][:2] == ["1", "1 2 [0, 2]"]
    for (mismatch,) in (said[0][3:], said[2][2:]):
        assert "rank 0: all_sum" in mismatch
        assert "rank 2: all_sum" in mismatch


def test_one_after_the_other_is_left_behind(recovering):
    """Also before the first group, and until one is alone."""
    code, out, err = recovering(
        "import os\nrank = int(os.environ['PHALANX_RANK'])\n"
        "if rank == 0: os._exit(7)\n"
        "try: px.init()\n"
        "except px.RankFailure as error: print(error.rank, error.reason)\n"
        "world = px.recover(20)\nrecover_cells.check(world)\n"
        "if rank == 2: os._exit(8)\n"
        "try: px.all_sum(1)\n"
        "except px.RankFailure as error: print(error.rank, error.reason)\n"
        "px.recover(20)\nprint(world.rank(), world.size(), px.all_sum(5))\n",
        3,
        *GO_ON,
    )
    assert code == 0, err
    first, second = "0 exited with status 7", "2 exited with status 8"
    said = [f"[1] {first}", f"[1] {second}", "[1] 0 1 5", f"[2] {first}"]
    assert sorted(out.splitlines()) == sorted(said)
    assert err.splitlines()[-1] == f"{SAID}the others have ended well without ranks 0,2"


def test_a_rank_that_has_returned_is_left_behind_and_not_waited_for(recovering):
    code, out, err = recovering(
        "import time\nworld = px.init()\n"
        "if world.rank() != 1:\n"
        "    try: px.all_sum(1)\n"
        "    except px.RankFailure as error: print(error.rank)\n"
        "    px.recover(20)\n"
        # Long enough for the supervisor to look for operations that cannot complete.
        "    time.sleep(0.5 * world.rank())\n"
        "    print(px.all_sum(1))\n",
        3,
        *GO_ON,
    )
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == ["[0] 1", "[0] 2", "[2] 1", "[2] 2"]


@pytest.mark.parametrize(
    ("handled", "status", "why"),
    [
        ("", 7, "rank 1 exited with status 7"),  # it may save and end, but the work is not done
        ("px.recover(20); os._exit(5 * world.rank())", 5, "rank 2 exited with status 5"),
    ],
)
def test_the_exit_status_is_that_of_who_failed_in_the_last_group(recovering, handled, status, why):
    code, out, err = recovering(
        "import os\nworld = px.init()\n"
        "if world.rank() == 1: os._exit(7)\n"
        "try: px.all_sum(1)\n"
        f"except px.RankFailure as error:\n    print('saved')\n    {handled}\n",
        3,
        *GO_ON,
    )
    assert (code, sorted(out.splitlines())) == (status, ["[0] saved", "[2] saved"])
    assert err.splitlines()[-1] == SAID + why


STORM = """
import json
found = recover_cells.storm({seed}, {times})
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("n", "transport", "seed", "times"),
    [
        (2, "any", 1, 48),
        (3, "tcp", 3, 48),
        pytest.param(4, "any", 2, 200, marks=deep),
        pytest.param(4, "tcp", 4, 200, marks=deep),
    ],
)
def test_many_recoveries_in_a_row(recovering, n, transport, seed, times):
    code, out, err = recovering(STORM.format(seed=seed, times=times), n, "--transport", transport)
    assert (code, err) == (0, ""), err
    said = [json.loads(line.partition(" ")[2]) for line in out.splitlines()]
    assert len(said) == n
    for epoch, *quarters in said:
        assert epoch == times + 1
        assert len(quarters) == 4
        assert quarters[-1][:2] == quarters[0][:2]  # descriptors, threads
        assert least_growth([kib for *_, kib in quarters]) < 2048
