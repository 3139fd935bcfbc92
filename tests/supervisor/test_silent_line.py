"""What is said of a line from which nothing comes: its addresses, and what else is known."""

from __future__ import annotations

import asyncio

import pytest
from support.promise import PATIENCE_S

from phalanx.supervisor import _silent_line
from phalanx.supervisor._reach import Reached
from phalanx.supervisor._silent_line import SilentLine

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
def test_what_answers_tells_a_card_from_a_host(monkeypatch, answering, said):
    async def reach(endpoints, timeout_s):
        (endpoint,) = endpoints
        address = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
        return Reached("", "", "refused", is_refused=address in answering)

    monkeypatch.setattr(_silent_line, "reach", reach)
    monkeypatch.setattr(_silent_line, "interface_of", lambda _: "eth0")
    line = SilentLine("192.0.2.11", "192.0.2.12", ["192.0.2.12", "198.51.100.12", "2001:db8::12"])
    asyncio.run(line.ask(1.0))
    assert str(line) == said
    assert line.is_asked
    line.forget()
    assert (str(line), line.is_asked) == (NOTHING, False)


def test_a_real_refusal_is_an_answer():
    assert asyncio.run(_silent_line._answers("127.0.0.1", PATIENCE_S))
