"""Hosts with two cards: links use both at once, and one that goes away is named."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time

import pytest
from support.hosts.hosts_bed import own_bed
from support.promise import after_silence_s, check
from support.runs.tiers import deep

SILENCE_S = 2.0
NBYTES = 16 << 20  # of an array; two ranks send each other as much for its sum
SCRIPT = """
import pathlib, sys, time
import numpy as np
import phalanx as px
world = px.init(strict=True)
x = np.ones(1 << 22, np.float32)
px.all_sum(x)
print(world.describe()["engine"]["stripes"], flush=True)
try:
    while sys.argv[1] == "on":
        px.all_sum(x)
except px.RankFailure as error:
    print(time.time(), error.rank, error, flush=True)
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two_cards():
    with own_bed(2) as bed:
        bed.add_cables()
        yield bed


@pytest.fixture
def launch(two_cards, tmp_path):
    """Start the script with one rank on host a and on b, each with both its addresses."""
    hosts = [{"ssh": h.name, "ips": [h.address, h.address1]} for h in two_cards.hosts]
    (tmp_path / "hosts.json").write_text(json.dumps(hosts))
    (tmp_path / "script.py").write_text(SCRIPT)
    started = []

    def start(*options, until="once"):
        words = ["--hostfile", "hosts.json", "--silence", str(SILENCE_S), *options]
        command = [sys.executable, "-m", "phalanx", "launch", *words, "script.py", until]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(two_cards.popen(0, command, cwd=tmp_path, **pipes))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.communicate()


def test_both_cards_are_used_at_once(two_cards, launch):
    before = [two_cards.sent_nbytes(1, card) for card in range(2)]
    said, _ = launch("--connections-per-ip", "2").communicate(timeout=60)
    ways = ["10.77.0.12 to 10.77.0.11", "10.77.1.12 to 10.77.1.11"] * 2
    assert f"[1] {{0: {ways}}}" in said.splitlines(), said
    sent = [two_cards.sent_nbytes(1, card) - before[card] for card in range(2)]
    assert all(0.45 * NBYTES < nbytes < 0.7 * NBYTES for nbytes in sent), sent


@deep
@pytest.mark.promise
def test_a_card_that_goes_away_is_named(two_cards, launch):
    ranks = launch(until="on")
    said = [ranks.stdout.readline() for _ in range(2)]
    assert all("10.77.1.11" in line for line in said), said
    try:
        two_cards.cut(1, card=1)
        cut_s = time.time()
        more, _ = ranks.communicate(timeout=60)
    finally:
        two_cards.mend(1, card=1)
    lines = sorted(line for line in more.splitlines() if "RankFailure" in line or "broke" in line)
    assert len(lines) == 2, more
    for rank, line in enumerate(lines):
        own, at_s, culprit_rank, text = line.split(" ", 3)
        assert (own, culprit_rank) == (f"[{rank}]", str(1 - rank)), line
        check(float(at_s) - cut_s, after_silence_s(SILENCE_S))
        # A rank that gets the other's notice before its own limit is over names the other's way.
        assert re.search(
            r"the link between rank 0 and rank 1 broke \(connection 2 of 2, "
            r"(10.77.1.11 on eth1 to 10.77.1.12|10.77.1.12 on eth1 to 10.77.1.11): ",
            text,
        ), text


@deep
def test_the_card_of_the_supervisors_line_is_told_from_its_host(two_cards, launch):
    ranks = launch(until="on")
    said = [ranks.stdout.readline() for _ in range(2)]
    try:
        two_cards.cut(1, card=0)
        more, _ = ranks.communicate(timeout=60)
    finally:
        two_cards.mend(1, card=0)
    assert (
        "lost its host: it has not answered for 2 s: nothing comes from 10.77.0.12 to " in more
    ), (said, more)
    assert "10.77.0.11 on eth0, while it answers at 10.77.1.12: the host lives" in more


@deep
def test_a_card_that_is_down_at_the_start_is_gone_around_and_told(two_cards, launch):
    two_cards.run(1, ["ip", "link", "set", "eth1", "down"])
    try:
        said, _ = launch().communicate(timeout=60)
    finally:
        two_cards.run(1, ["ip", "link", "set", "eth1", "up"])
    assert "rank 1: a path to rank 0 cannot be used (10.77.1.11 port " in said, said
    assert "over 10.77.0.11 as well, and is slower" in said, said
    assert "[1] {0: ['10.77.0.12 to 10.77.0.11', '10.77.0.12 to 10.77.0.11']}" in said, said
