"""The input of a script's ranks."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from phalanx.protocol.host import CommandInput, InputCut
from phalanx.supervisor.hosts.commands import HostCommands
from phalanx.supervisor.processes.streams import InputLog

STEPS = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=8),
        st.tuples(st.integers(0, 2), st.integers(1, 5)),  # a rank takes so many bytes
        st.integers(0, 2),  # a rank ends
    ),
    max_size=60,
)


@given(STEPS)
def test_every_rank_gets_every_byte_at_its_own_pace(steps):
    log = InputLog(range(3))
    got = dict.fromkeys(range(3), b"")
    said = b""
    for step in [*steps, b""]:
        if isinstance(step, bytes):
            log.append(step)
            said += step
        elif isinstance(step, tuple):
            rank, n = step
            if rank in got and (piece := log.next(rank)) is not None:
                got[rank] += piece[:n]
                log.advance(rank, len(piece[:n]))
        else:
            log.drop(step)
            got.pop(step, None)
        assert log.n_taken >= max(map(len, got.values()), default=0)
    for rank, text in got.items():
        rest = b""
        while (piece := log.next(rank)) is not None:
            rest += piece
            log.advance(rank, len(piece))
        assert log.is_at_end(rank)
        assert text + rest == said
    assert not log._pieces


def test_who_is_far_behind_is_named_but_not_who_waits_like_all():
    log = InputLog(range(2), max_behind=10)
    log.append(b"x" * 10)
    assert log.laggards() == []
    log.advance(1, 10)
    log.append(b"x")
    assert log.laggards() == [(0, 11)]
    log.drop(0)
    assert log.laggards() == []


def test_input_for_nobody_is_not_kept():
    log = InputLog([0])
    log.drop(0)
    log.append(b"x")
    assert log.next(0) is None
    assert not log._pieces


def test_a_rank_that_was_started_again_gets_what_nobody_has_got():
    log = InputLog([0, 1])
    log.append(b"abc")
    log.advance(0, 2)
    log.drop(1)
    log.rejoin(1)
    assert bytes(log.next(1)) == b"c"
    log.drop(0)
    log.drop(1)
    log.append(b"lost")
    log.rejoin(0)
    log.append(b"new")
    assert bytes(log.next(0)) == b"new"
    log.append(b"")
    log.advance(0, 3)
    assert log.is_at_end(0)
    assert not log._pieces


def test_the_input_of_a_rank_that_is_given_up_ends():
    said = []
    commands = HostCommands(SimpleNamespace(ranks=(0, 1)), said.append, "/")
    commands._log = InputLog([0, 1], max_behind=10)
    commands._inputs[1] = mock.Mock()
    commands._log.append(b"x" * 10)
    commands._log.advance(0, 10)
    commands.take(CommandInput(b"x"))
    assert said == [InputCut(1, 11)]
    assert commands._inputs[1].close.called
    assert bytes(commands._log.next(0)) == b"x"
