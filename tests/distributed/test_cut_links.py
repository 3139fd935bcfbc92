"""A link that breaks while both its ends live is named as that link, by everyone."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cutting import cut
from distributed import cells
from distributed.cells import Case
from support.promise import PATIENCE_S, after_silence_s, check, within
from support.tiers import deep
from support.waiting import wait_until

import phalanx as px
from phalanx.distributed import AbortKind


def pid(world, rank):
    return world._farm.members[rank].process.pid


@pytest.mark.promise
@pytest.mark.parametrize("with_memory", [True, False])
def test_a_cut_link_is_named_and_each_end_accuses_the_other(rank_pool, with_memory, tmp_path):
    world = rank_pool(3, transport="tcp", with_memory=with_memory)
    world.run(cells.call, Case("all_sum"))
    world.start(cells.announced, str(tmp_path), cells.call, Case("all_sum"), ranks=[0, 1])
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "both are about to sum")
    for rank in (0, 1):
        world.wait_asleep(rank)
    assert cut(pid(world, 1), pid(world, 2))
    with within():
        errors = world.outcomes([0, 1])
    # Without memory, it may have got all it needs for the operation that the others gave up.
    world.start(cells.endless_sums, 3, ranks=[2])
    errors += world.outcomes([2])
    for error, accused in zip(errors, (2, 2, 1), strict=True):
        assert isinstance(error, px.RankFailure), error
        assert error.rank == accused
        assert re.search(
            r"the link between rank 1 and rank 2 broke \(.+\) during ", error.reason
        ), error.reason
    if with_memory:
        assert {notice.kind for _, notice in world.notices()} == {AbortKind.LINK_BROKEN}


@pytest.mark.promise
def test_a_message_that_waits_is_freed_by_a_cut(rank_pool):
    world = rank_pool(2, transport="tcp")
    world.run(cells.call, Case("all_sum"))
    world.start(cells.receive_for_ever, 1, ranks=[0])
    world.wait_in("recv", [0])
    assert cut(pid(world, 0), pid(world, 1))
    with within():
        (error,) = world.outcomes([0])
    assert isinstance(error, px.RankFailure), error
    assert error.rank == 1
    assert "the link between rank 0 and rank 1 broke (127.0.0.1 to 127.0.0.1: " in error.reason


class TwoHosts:
    """This network namespace and another one, joined by a cable that can be pulled."""

    def __init__(self) -> None:
        self.name = f"px{time.monotonic_ns() % 10**7}"
        number = time.monotonic_ns() // 7 % 250 + 1
        self.addresses = (f"10.213.{number}.1", f"10.213.{number}.2")
        here, there = f"{self.name}a", f"{self.name}b"
        self.cable = here
        for command in (
            f"netns add {self.name}",
            f"link add {here} type veth peer name {there} netns {self.name}",
            f"addr add {self.addresses[0]}/24 dev {here}",
            f"link set {here} up",
            f"-n {self.name} addr add {self.addresses[1]}/24 dev {there}",
            f"-n {self.name} link set {there} up",
            f"-n {self.name} link set lo up",
        ):
            self.ip(command)

    def ip(self, command: str) -> None:
        done = subprocess.run(["ip", *command.split()], capture_output=True, check=False)
        if done.returncode:
            self.close()
            pytest.skip(f"no network namespaces here: {done.stderr.decode().strip()}")

    def pull(self) -> None:
        """Let the other host vanish without a word: no packet comes or goes."""
        # Not `link set down`: of that the kernel here would know.
        self.ip(f"-n {self.name} link set {self.name}b down")

    def close(self) -> None:
        for command in (["link", "del", self.cable], ["netns", "del", self.name]):
            subprocess.run(["ip", *command], capture_output=True, check=False)


@pytest.fixture
def hosts():
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` here")
    pair = TwoHosts()
    yield pair
    pair.close()


SCRIPT = """
import functools, pathlib, sys, time
import numpy as np
import phalanx as px
from phalanx.distributed import _environment
if len(sys.argv) > 3:
    spec = functools.partial(_environment.WorldSpec, silence_s=float(sys.argv[3]))
    _environment.WorldSpec = spec
world = px.init(strict=True, backend="ring")
here = pathlib.Path(sys.argv[1])
px.all_sum(1)
(here / f"ready{world.rank()}").touch()
calls = {
    "recv": lambda: px.recv((3,), "float32", 1),
    "send": lambda: px.send(np.ones(50_000_000, "float32"), 1),
    "all_sum": lambda: px.all_sum(np.ones(3)),
}
if world.rank():
    time.sleep(60)
while sys.argv[2] == "all_sum" and not (here / "gone").exists():
    time.sleep(0.005)
try:
    calls[sys.argv[2]]()
except px.RankFailure as error:
    print(error.rank, time.time(), error.reason)
"""


def is_asleep(process):
    """Whether the main thread of a process that is ready sleeps: it is in its call."""
    status = Path(f"/proc/{process.pid}/task/{process.pid}/stat")
    return status.read_text().rpartition(") ")[2].startswith("S")


def has_full_window(process):
    """Whether the kernel holds bytes that the other end of a connection has no room for."""
    said = subprocess.run(["ss", "-tonpH"], capture_output=True, text=True, check=True).stdout
    ours = [line for line in said.splitlines() if f"pid={process.pid}," in line]
    return any("timer:(persist" in line for line in ours)


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize(
    ("what", "silence_s"),
    [
        *(("recv", 2.0), ("all_sum", 2.0), ("send", 2.0)),
        pytest.param("recv", None, marks=deep),  # of a world that no supervisor formed: 5 s
    ],
)
def test_a_host_that_vanishes_without_a_word_is_noticed(hosts, what, silence_s, tmp_path):
    """Waiting with nothing under way, with a question under way, and with a full window."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    hostfile = tmp_path / "hosts.json"
    hostfile.write_text(str([[f"{address}:5000"] for address in hosts.addresses]).replace("'", '"'))
    command = [sys.executable, str(script), str(tmp_path), what]
    command += [] if silence_s is None else [str(silence_s)]
    ranks = []
    for rank, prefix in enumerate(([], ["ip", "netns", "exec", hosts.name])):
        said = [f"MLX_RANK={rank}", f"MLX_HOSTFILE={hostfile}", "PHALANX_INSECURE=1"]
        words = [*prefix, "env", *said, *command]
        ranks.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    try:
        signs = [tmp_path / "ready0", tmp_path / "ready1"]
        wait_until(lambda: all(sign.exists() for sign in signs), "both ranks have summed")
        if what == "recv":
            wait_until(lambda: is_asleep(ranks[0]), "rank 0 waits")
        if what == "send":
            wait_until(lambda: has_full_window(ranks[0]), "rank 1 has no more room")
        hosts.pull()
        pulled_s = time.time()
        (tmp_path / "gone").touch()
        said, _ = ranks[0].communicate(timeout=PATIENCE_S + 10)
        accused, at_s, reason = said.decode().split(" ", 2)
        assert accused == "1", said
        here, there = hosts.addresses
        way = f"{here} on {hosts.cable} to {there}"
        limit_s = silence_s or 5.0
        # Of an idle connection the kernel may say it first: it has asked as often by then.
        why = f"(no answer for {limit_s:g} s{'|Connection timed out' if what == 'recv' else ''})"
        assert re.search(rf"the link between rank 0 and rank 1 broke \({way}: {why}\)", reason)
        check(float(at_s) - pulled_s, after_silence_s(limit_s))
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
