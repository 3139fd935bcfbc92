"""Which of the root's addresses a host takes, and what it says where there is none."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from support.promise import PATIENCE_S, ROOM_S

from phalanx.supervisor.hosts.addresses import ReachResult, reach


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


def test_an_address_that_does_not_answer_does_not_hold_up_the_others():
    with contextlib.ExitStack() as undo:
        silent, (_, good) = swallowing(undo), listening(undo)
        found = asyncio.run(reached((silent, silent, good), 60.0))
        assert found == ReachResult(good, "127.0.0.1", "", is_refused=False)
        found = asyncio.run(reached((good, listening(undo)[1]), 60.0))
        assert found.endpoint == good


def test_why_no_address_answers_is_told_of_each_in_order():
    with contextlib.ExitStack() as undo:
        silent, refused = swallowing(undo), refusing(undo)
        one, two = (endpoint.removeprefix("tcp://") for endpoint in (silent, refused))
        found = asyncio.run(reached((silent, refused), ROOM_S / 5))
        words = f"{one} (no answer: blocked by a firewall?), {two} (refused)"
        assert found == ReachResult("", "", words, is_refused=False)
        found = asyncio.run(reached((refused, silent), 60.0, is_refusal_final=True))
        assert found.is_refused
        assert not found.endpoint
        good = listening(undo)[1]
        assert asyncio.run(reached((refused, good), 60.0)).endpoint == good
        assert asyncio.run(reached((), 60.0)).endpoint == ""
