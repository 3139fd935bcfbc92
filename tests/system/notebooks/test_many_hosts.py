"""The tutorial on many hosts, executed top to bottom on three hosts with an sshd each."""

from __future__ import annotations

import re

import numpy as np
import pytest
from notebooks.with_outputs import MANY_HOSTS, WIDGET, run_on_bed
from support.notebooks.tutorials import of, pictures, read, saved
from support.promise import PATIENCE_S
from support.runs.tiers import deep, deep_but

from phalanx.workspace import parse_ranks

_HOSTS = ["a", "b", "c"]
_NAMES = ["a", "a", "b", "b", "c", "c"]
_DARTS = 1_000_000


@pytest.fixture(scope="module")
def executed(bed, tmp_path_factory):
    """What the cells show in a run, what is left of it, and the lines that came and went."""
    copy = tmp_path_factory.mktemp("hosts") / "copy.ipynb"
    copy.write_bytes(MANY_HOSTS.read_bytes())
    lines = run_on_bed(bed, copy)
    return saved(copy)[0], bed.left(PATIENCE_S), lines


@pytest.fixture(params=deep_but(["saved"], ["executed", "saved"]))
def shown(request):
    """What is asked of this run is asked of what the packaged notebook says, too."""
    if request.param == "executed":
        return request.getfixturevalue("executed")
    return saved(MANY_HOSTS)


def _from_pi(ranks: range) -> str:
    """What the darts of these ranks say."""
    hits = sum(
        np.count_nonzero((np.random.default_rng(rank).random((2, _DARTS)) ** 2).sum(axis=0) < 1)
        for rank in ranks
    )
    return f"{4 * hits / (len(ranks) * _DARTS):.4f}"


def _who_said(text: str, words: str) -> dict[str, list[int]]:
    """The ranks whose lines are these words, by host: equal lines come once if they come at once."""
    said: dict[str, set[int]] = {}
    for label in re.findall(rf"^\[(.+)\] {re.escape(words)}$", text, re.MULTILINE):
        for host, ranks in re.findall(r"(\w) ([\d,-]*\d)", label):
            said.setdefault(host, set()).update(parse_ranks(ranks, 6))
    return {host: sorted(ranks) for host, ranks in said.items()}


_ALL = {"a": [0, 1], "b": [2, 3], "c": [4, 5]}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_the_saved_one_shows_a_run_and_nothing_of_its_machine():
    notebook = read(MANY_HOSTS)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    text = MANY_HOSTS.read_text(encoding="utf-8")
    assert WIDGET not in text
    assert "widgets" not in notebook.metadata
    addresses = set(re.findall(r"\b\d+\.\d+\.\d+\.\d+\b", text))
    # The doctor checks the loopback interface of each host.
    assert addresses - {"127.0.0.1"} == {f"10.77.0.{number}" for number in (11, 12, 13)}
    paths = set(re.findall(r"(?<![\w.<:/])/(?:\w[\w.-]*/)+\w[\w.-]*", text))
    assert paths == {"/home/ada/notebooks", "/home/ada/venv/bin/python"}


def test_the_hosts_are_looked_at_first(shown):
    said = of(shown, "phalanx doctor").text.splitlines()
    assert {line.split()[0] for line in said} <= {"ok", "note"}
    assert "without a prompt to b, c" in said[0]
    ring = of(shown, "phalanx config").text
    assert re.findall(r'"ssh": "(\w)", "ips": \["10.77.0.1\d"\]', ring) == _HOSTS


@deep
def test_the_boot_is_watched(executed):
    boot = [line for line in executed[2] if "up: " in line]
    assert boot
    assert {name for line in boot for name in re.findall(r"\b([abc]) \(", line)} >= {"b", "c"}


def test_the_hosts_are_told_apart(shown):
    assert "6 ranks on 3 hosts" in of(shown, "%distributed start").text
    said = of(shown, "os.getpid()}").text
    for rank, name in enumerate(_NAMES):
        assert re.search(rf"^\[{name} {rank}\] I am process \d+ of {name}$", said, re.MULTILINE)
    assert _who_said(said, "Out: '6 of us run this cell'") == _ALL
    assert of(shown, "ws.pull").text == f"{_NAMES}\n"


def test_sums_go_over_hosts_and_within(shown):
    said = of(shown, "mine say").text
    for rank, name in enumerate(_NAMES):
        assert f"[{name} {rank}] mine say {_from_pi(range(rank, rank + 1))}\n" in said
    assert _who_said(said, f"Out: 'all 6,000,000 say {_from_pi(range(6))}'") == _ALL
    parts = of(shown, ".split(").text
    for name, ranks in _ALL.items():
        words = f"Out: 'the 2 of us say {_from_pi(range(ranks[0], ranks[1] + 1))}'"
        assert _who_said(parts, words) == {name: ranks}


def test_the_picture_has_the_hosts(shown):
    cell = of(shown, "%distributed topology")
    (svg,) = pictures(cell.outputs)
    assert svg.count('class="px-host"') == 3
    assert svg.count('class="px-arena"') == 3
    assert svg.count('class="px-tile"') == 6
    assert "12 tcp links" in svg
    for words in (cell.text, of(shown, "%distributed status").text):
        found = re.findall(
            r"^  (\w) \((10\.77\.0\.1\d)(?: on eth0)?, \d+ cores?\)", words, re.MULTILINE
        )
        assert found == [("a", "10.77.0.11"), ("b", "10.77.0.12"), ("c", "10.77.0.13")]
        assert re.findall(r"rank (\d) ", words) == list("012345")


@deep
def test_the_picture_is_alive(executed):
    live, still = of(executed, "%distributed topology").outputs
    assert WIDGET in live.data
    assert WIDGET not in still.data


def test_a_rank_of_another_host_is_named_and_replaced(shown):
    said = of(shown, "SIGKILL").text
    lost = r"^\[([\d,-]+)\] lost rank 3 of host b: killed by signal 9 \(SIGKILL\)$"
    told = [
        rank for label in re.findall(lost, said, re.MULTILINE) for rank in parse_ranks(label, 6)
    ]
    assert sorted(told) == [0, 1, 2, 4, 5]
    assert "`%distributed restart 3` replaces it" in said
    assert (
        of(shown, "%distributed restart").text == "rank 3 is new; ranks 0-2,4-5 have all they had\n"
    )
    after = of(shown, "begins anew").text
    assert _who_said(after, "begins anew") == {"b": [3]}
    assert _who_said(after, "has its darts") == {**_ALL, "b": [2]}
    assert _who_said(after, "Out: '6 of us'") == _ALL


def test_a_script_runs_on_the_same_hosts(shown):
    said = of(shown, "phalanx launch").text.splitlines()
    # Of a host that is slow to come up, a line says so.
    ranks = [line for line in said if line and not line.startswith("phalanx launch: ")]
    assert ranks == [f"[a 0] 6 ranks say {_from_pi(range(6))}"]


@deep
def test_nothing_is_left_on_any_host(executed):
    assert of(executed, "%distributed stop").text.startswith("stopped the 6 ranks of ")
    assert executed[1] == []
