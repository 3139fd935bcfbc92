"""Why a host's supervisor ends: as it was asked to, or with words for whoever reads its status."""

from __future__ import annotations

import asyncio
import types

import pytest
from support.promise import PATIENCE_S

from phalanx.protocol.hosts import HostBoot, StopHost
from phalanx.supervisor._host_role import HostRole

ROOT = "tcp://127.0.0.1:1"


def why_ended(tmp_path, run, *, linger_s=0.0):
    """Let a host serve a root that is heard by ``run(role, hear)``; the problem it ends with."""

    async def main():
        boot = HostBoot("1", "w", 0, "b", (0,), 1, (ROOT,), "a", b"", b"", b"", "/", linger_s, 1.0)

        async def serve(hear):
            return await run(role, hear)

        root = types.SimpleNamespace(
            run=serve, say=lambda _: None, address="127.0.0.1", is_joined=True, doubt=lambda: None
        )
        role = HostRole(boot, root, ("127.0.0.1",), str(tmp_path))
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
        role._clock = asyncio.get_running_loop().call_soon(role._give_up_silent)
        role.end()  # SIGTERM
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
