"""Strangers at every port of a workspace: they learn nothing, do nothing, and disturb nothing."""

from __future__ import annotations

import os

import pytest
from security.strangers import (
    OtherUser,
    Pest,
    listening,
)
from support.inside import root_pid
from support.runs.tiers import deep
from support.waiting import wait_until

from phalanx.supervisor.runtime_dir import socket_paths
from phalanx.workspace import Workspace

CELL = "print('word', rank); px.all_sum(np.arange(1000.0) + rank).sum().item()"
SUM = sum(3 * i + 3 for i in range(1000))  # of three ranks


def check(ws: Workspace) -> None:
    assert [result.value for result in ws.run(CELL)] == [repr(float(SUM))] * 3


@pytest.fixture(scope="module")
def ws():
    with Workspace.start(n=3, transport="tcp") as workspace:
        yield workspace


@deep
@pytest.mark.slow
def test_a_world_forms_while_garbage_comes_to_every_port(tmp_path):
    bomb = tmp_path / "bomb"
    with Pest(os.getpid(), bomb) as pest, Workspace.start(n=3, transport="tcp") as workspace:
        for _ in range(3):
            check(workspace)
        addresses = set(listening(root_pid(workspace)))

        def is_everywhere():
            check(workspace)
            return addresses <= pest.visited

        wait_until(is_everywhere, "each port has been spoken to", timeout_s=60.0)
    assert len(addresses) > 8  # the supervisor's, and the controller's sockets
    assert not bomb.exists()
    assert pest.n_heard == 0


def test_no_port_is_open_and_all_sockets_are_for_our_user(ws):
    assert [a for a in listening(root_pid(ws)) if not isinstance(a, str)] == []
    for rank in ws.topology().ranks:
        assert listening(rank.pid) == []


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may be another user")
def test_another_user_hears_nothing_and_is_not_heard(ws, tmp_path):
    tmp_path.chmod(0o777)
    bomb = tmp_path / "bomb"
    (own,) = (path for path in socket_paths(ws.name))  # has another name in the table of sockets
    names = [*listening(root_pid(ws)), str(own)]
    with OtherUser() as other:
        assert other.say("zmq", names, bomb) == 0
        for _ in range(3):
            check(ws)
            assert other.say("garbage", names, bomb) == 0
        assert other.say("heard", [], bomb) == 0
    check(ws)
    assert not bomb.exists()
