"""Strangers at every port of a workspace: they learn nothing, do nothing, and disturb nothing."""

from __future__ import annotations

import os

import pytest
from security.strangers import (
    OtherUser,
    listening,
)
from support.inside import root_pid

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
