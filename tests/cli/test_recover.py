"""`px.recover()` in scripts: all values right after it, what is missing named, nothing left behind."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from launching import launch
from support.tiers import deep

TESTS = str(Path(__file__).parents[1])


@pytest.fixture
def recovering(script):
    """Run a script with the farm's cells in reach; its end and what each rank has printed."""

    def run(code, n, *words):
        path = script("from distributed import recover_cells\nimport phalanx as px\n" + code)
        paths = os.pathsep.join([TESTS, *filter(None, sys.path)])
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


WHY = (
    "1 has ended (exit status 0); the group cannot be formed without it: "
    "%distributed restart, or start the ranks anew"
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


def test_a_rank_that_ends_meanwhile_is_named_at_once(recovering):
    code, out, err = recovering(
        "import time\nworld = px.init()\n"
        "if world.rank() == 1:\n"
        "    for peer in (0, 2): px.recv((), 'int64', peer)\n"
        # Too short on a busy machine, rank 1 has ended before: the test above.
        "    time.sleep(0.5)\n"
        "else:\n"
        "    px.send(0, 1)\n"
        "    try: px.recover(20)\n"
        "    except px.RankFailure as error: print(error.rank, error.reason)\n",
        3,
    )
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [f"[{rank}] {WHY}" for rank in (0, 2)]


def test_a_peer_that_waits_or_is_missing_in_recover_is_named(recovering, tmp_path):
    gate = tmp_path / "gate"
    code, out, err = recovering(
        "import os, time\nworld = px.init()\n"
        # Who waits for a rank in recover is freed, and both recover.
        "if world.rank() == 1:\n    px.recover(20)\n"
        "else:\n"
        "    try: px.all_sum(1)\n"
        "    except px.RankFailure as error: print(error.rank, error.reason)\n"
        "    px.recover(20)\n"
        "recover_cells.check(world)\n"
        # Who is missing in recover is named, with what it does.
        "recover_cells.fail('mismatch', 1)\n"
        "if world.rank() == 1:\n"
        "    try: px.recover(0.3)\n"
        "    except px.CollectiveTimeout as error: print(error)\n"
        f"    open({str(gate)!r}, 'w').close()\n"
        "else:\n"
        f"    while not os.path.exists({str(gate)!r}): time.sleep(0.005)\n"
        "px.recover(20)\nrecover_cells.check(world)\n",
        2,
    )
    assert (code, err) == (0, "")
    freed = "1 waits in px.recover(); all_sum #1, in which rank 0 waits, can never complete"
    missing = "px.recover() timed out after 0.3 s; missing: rank 0"
    assert sorted(out.splitlines()) == [f"[0] {freed}", f"[1] {missing}"]


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
        (2, "any", 1, 50),
        (3, "tcp", 3, 50),
        pytest.param(4, "any", 2, 200, marks=deep),
        pytest.param(4, "tcp", 4, 200, marks=deep),
    ],
)
def test_many_recoveries_in_a_row(recovering, n, transport, seed, times):
    code, out, err = recovering(STORM.format(seed=seed, times=times), n, "--transport", transport)
    assert (code, err) == (0, ""), err
    said = [json.loads(line.partition(" ")[2]) for line in out.splitlines()]
    assert len(said) == n
    for epoch, early, late in said:
        assert epoch == times + 1
        assert late[:2] == early[:2]  # descriptors, threads
        assert late[2] - early[2] < 8192  # KiB
