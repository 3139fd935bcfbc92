"""Why a host's supervisor ends: as it was asked to, or with a reason in its status."""

from __future__ import annotations

import asyncio
import types

import pytest
from support.promise import PATIENCE_S

from phalanx.distributed.control import AbortKind
from phalanx.protocol import WorldConfig
from phalanx.protocol.host import HostBoot, HostPing, StopHost
from phalanx.supervisor.hosts import addresses
from phalanx.supervisor.hosts.addresses import ReachResult
from phalanx.supervisor.hosts.agent import HostAgent

ROOT = "tcp://127.0.0.1:1"


def why_ended(tmp_path, run, *, linger_s=0.0):
    """Let a host serve a root that is heard by ``run(role, hear)``; the problem it ends with."""

    async def main():
        world = WorldConfig("w", 1, heartbeat_timeout_s=1.0)
        boot = HostBoot("1", world, 0, "b", (0,), (ROOT,), "a", b"", b"", b"", "/", linger_s)

        async def serve(hear):
            return await run(role, hear)

        root = types.SimpleNamespace(
            run=serve, send=lambda _: None, send_unreliable=lambda _: None, has_received=True,
            own="192.0.2.12", address="192.0.2.11", port=1,
        )  # fmt: skip
        role = HostAgent(boot, root, ("127.0.0.1",), str(tmp_path))
        await asyncio.wait_for(role.run(), PATIENCE_S)
        return role.problem

    return asyncio.run(main())


def test_a_host_that_is_asked_to_end_has_no_problem(tmp_path):
    async def run(role, hear):
        hear(StopHost())
        return True

    assert why_ended(tmp_path, run) == ""


def test_a_host_that_is_ended_while_its_root_is_silent_has_no_problem(tmp_path):
    async def run(role, _hear):
        role.end()  # SIGTERM
        role._give_up("has sent nothing for 9 s")
        await asyncio.Event().wait()

    assert why_ended(tmp_path, run) == ""


@pytest.mark.parametrize(
    ("is_in", "why"),
    [(True, "does not listen there any more"), (False, "has not let this host in")],
)
def test_a_root_that_is_gone_or_lets_nobody_in_is_why(tmp_path, is_in, why):
    async def run(_role, _hear):
        return is_in

    assert why_ended(tmp_path, run).startswith(f"the supervisor at {ROOT} {why}")


def test_a_task_that_fails_is_why(tmp_path):
    async def run(_role, _hear):
        msg = "of ours"
        raise RuntimeError(msg)

    assert why_ended(tmp_path, run) == (
        "a task of this host's supervisor failed: RuntimeError('of ours')"
    )


GONE = "the supervisor of this workspace, on a,"
NOT_HEARD = f"{GONE} has sent nothing for 1 s at 192.0.2.11: its machine answers there"
CUT_OFF = (
    "its host has received nothing from a for 1 s: nothing comes from 192.0.2.11 to 192.0.2.12"
)


@pytest.mark.parametrize(
    ("is_silent", "answers", "kind", "culprit", "why"),
    [
        (True, True, AbortKind.ERROR, -1, NOT_HEARD),
        (True, False, AbortKind.RANK_FAILURE, 0, CUT_OFF),
        (False, False, AbortKind.ERROR, -1, f"{GONE} is gone"),
    ],
)
def test_why_ranks_are_freed(monkeypatch, tmp_path, is_silent, answers, kind, culprit, why):
    """Where not even the root's machine answers a rank of this host is lost for the others."""

    async def reach(endpoints, timeout_s):
        assert endpoints == ["tcp://192.0.2.11:1"]
        return ReachResult("", "", "no answer", is_refused=answers)

    async def run(role, hear):
        hear(HostPing(1))
        while is_silent and not await role._silence.look():
            await asyncio.sleep(0.1)
        found.append(role._why_freed())
        return True

    monkeypatch.setattr(addresses, "reach", reach)
    found = []
    why_ended(tmp_path, run, linger_s=60.0)
    ((its_kind, its_culprit, text),) = found
    assert (its_kind, its_culprit) == (kind, culprit)
    assert text.startswith(why)
