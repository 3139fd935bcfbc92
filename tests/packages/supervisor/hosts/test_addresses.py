"""Which of the root's addresses a host takes, and what is said where nothing comes from one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys

import pytest
from support.promise import PATIENCE_S, ROOM_S
from support.ranks.loops import in_asyncio

from phalanx.supervisor.hosts import addresses as addresses_module
from phalanx.supervisor.hosts.addresses import ReachResult, diagnose_path, reach


def listening(undo, backlog=8):
    listener = undo.enter_context(socket.create_server(("127.0.0.1", 0), backlog=backlog))
    return listener, f"tcp://127.0.0.1:{listener.getsockname()[1]}"


def swallowing(undo):
    """Return an endpoint that does not answer: its queue is full."""
    listener, endpoint = listening(undo, backlog=0)
    for _ in range(4):
        other = undo.enter_context(socket.socket())
        other.setblocking(False)
        other.connect_ex(listener.getsockname())
    return endpoint


def refusing(undo):
    bound = undo.enter_context(socket.socket())  # bound, so that nobody else listens there
    bound.bind(("127.0.0.1", 0))
    return f"tcp://127.0.0.1:{bound.getsockname()[1]}"


async def reached(*arguments, **options):
    return await asyncio.wait_for(reach(*arguments, **options), PATIENCE_S)


@in_asyncio
async def test_an_address_that_does_not_answer_does_not_hold_up_the_others():
    with contextlib.ExitStack() as undo:
        silent, (_, good) = swallowing(undo), listening(undo)
        found = await reached((silent, silent, good), 60.0)
        assert found == ReachResult(good, "127.0.0.1", "", is_refused=False)
        found = await reached((good, listening(undo)[1]), 60.0)
        assert found.endpoint == good


@in_asyncio
async def test_why_no_address_answers_is_told_of_each_in_order():
    with contextlib.ExitStack() as undo:
        silent, refused = swallowing(undo), refusing(undo)
        one, two = (endpoint.removeprefix("tcp://") for endpoint in (silent, refused))
        found = await reached((silent, refused), ROOM_S / 5)
        words = f"{one} (no answer: blocked by a firewall?), {two} (refused)"
        assert found == ReachResult("", "", words, is_refused=False)
        found = await reached((refused, silent), 60.0, is_refusal_final=True)
        assert found.is_refused
        assert not found.endpoint
        good = listening(undo)[1]
        assert (await reached((refused, good), 60.0)).endpoint == good
        assert (await reached((), 60.0)).endpoint == ""


NOTHING = ": nothing comes from 192.0.2.12 to 192.0.2.11 on eth0"
LIVES = "the host lives, a card, cable or switch of that network does not"


@pytest.mark.parametrize(
    ("answering", "said"),
    [
        ((), NOTHING),
        (("198.51.100.12",), f"{NOTHING}, while it answers at 198.51.100.12: {LIVES}"),
        (
            ("192.0.2.12", "198.51.100.12"),
            " at 192.0.2.12: its machine answers there, its supervisor is stopped or far too busy",
        ),
    ],
)
@in_asyncio
async def test_what_answers_tells_a_card_from_a_host(monkeypatch, answering, said):
    async def reach(endpoints, timeout_s):
        (endpoint,) = endpoints
        address = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
        return ReachResult("", "", "refused", is_refused=address in answering)

    monkeypatch.setattr(addresses_module, "reach", reach)
    monkeypatch.setattr(addresses_module, "interface_of", lambda _: "eth0")
    others = ["192.0.2.12", "198.51.100.12", "2001:db8::12"]
    path = await diagnose_path("192.0.2.11", "192.0.2.12", others, timeout_s=1.0)
    assert path == (said, "192.0.2.12" not in answering)


SYN_RECV, ESTABLISHED = "03", "01"


def listed(last):
    """Return 192.0.2.``last`` as Linux lists it in the table of IPv6."""
    words = bytes(4), bytes(4), b"\0\0\xff\xff", bytes([192, 0, 2, last])
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


ONE_WAY = ": nothing comes from 192.0.2.11 on eth0 to 192.0.2.12, but its packets do come here"


@pytest.mark.parametrize(
    ("remote", "state", "said"),
    [(12, SYN_RECV, ONE_WAY), (12, ESTABLISHED, NOTHING), (13, SYN_RECV, NOTHING)],
)
@in_asyncio
async def test_who_tries_to_connect_in_vain_tells_the_direction(
    monkeypatch, tmp_path, remote, state, said
):
    async def reach(endpoints, timeout_s):
        return ReachResult("", "", "no answer", is_refused=False)

    table = tmp_path / "tcp6"
    ends = f"{listed(11)}:1F90 {listed(remote)}:C350"
    table.write_text(f"  sl  local_address ...\n   0: {ends} {state} 00000000:00000000\n")
    monkeypatch.setattr(addresses_module, "_TABLES", (tmp_path / "none", table))
    monkeypatch.setattr(addresses_module, "reach", reach)
    monkeypatch.setattr(addresses_module, "interface_of", lambda _: "eth0")
    assert await diagnose_path("192.0.2.11", "192.0.2.12", timeout_s=1.0) == (said, True)
    assert await diagnose_path("127.0.0.1", "127.0.0.1", timeout_s=1.0) == ("", False)


@in_asyncio
async def test_a_real_refusal_is_an_answer():
    assert await addresses_module._answers("127.0.0.1", PATIENCE_S)
