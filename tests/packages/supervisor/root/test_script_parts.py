"""What the root of a script keeps in mind: input for all ranks, and who failed first."""

from __future__ import annotations

import asyncio
import fcntl
import os
from contextlib import suppress
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from support.ranks.loops import in_asyncio

from phalanx.supervisor.processes.pipes import MAX_BEHIND, SharedInput

PAGE = 4096
STEPS = st.lists(
    st.one_of(
        st.integers(1, 2 * PAGE),  # so many bytes are written
        st.tuples(st.integers(0, 2), st.integers(1, 2 * PAGE)),  # a rank reads so many
        st.tuples(st.integers(0, 2)),  # a rank ends
    ),
    max_size=30,
)


class Reader:
    """A rank that reads its input when a test says so; a page waits in its pipe."""

    def __init__(self, pipe):
        self.pipe, self.got = pipe, b""
        os.set_blocking(pipe.read_fd, False)

    async def read(self, nbytes):
        if self.pipe.read_fd >= 0:
            with suppress(BlockingIOError):
                self.got += os.read(self.pipe.read_fd, nbytes)
        for _ in range(3):  # the loop finds that the pipe takes more
            await asyncio.sleep(0)

    def end(self):
        if self.pipe.read_fd >= 0:
            self.pipe.child_started()


class Shared(SharedInput):
    """Notes what it tells, and has pipes of a page."""

    def __init__(self, n_ranks, max_behind=MAX_BEHIND):
        self.taken, self.cut = [0], []
        super().__init__(self.taken.append, lambda *its: self.cut.append(its), max_behind)
        self.readers = [self.start(rank) for rank in range(n_ranks)]

    def start(self, rank):
        with mock.patch.object(os, "pipe", _pipe_of_a_page):
            return Reader(self.open(rank))


def _pipe_of_a_page(pipe=os.pipe):
    ends = pipe()
    fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, PAGE)
    return ends


@given(STEPS)
def test_every_rank_gets_every_byte_at_its_own_pace(steps):
    async def main():
        shared, said, ended = Shared(3), b"", set()
        for step in steps:
            if isinstance(step, int):
                data = bytes((len(said) + n) % 251 for n in range(step))
                said += data
                shared.write(data)
            elif len(step) == 1:
                shared.readers[step[0]].end()
                ended |= {*step}
            else:
                await shared.readers[step[0]].read(step[1])
            assert len(said) >= shared.taken[-1] >= max(len(its.got) for its in shared.readers)
        shared.write(b"")
        for rank, reader in enumerate(shared.readers):
            while rank not in ended and (reader.pipe.is_open or len(reader.got) < len(said)):
                await reader.read(PAGE)
            assert rank in ended or reader.got == said
            reader.end()
        assert shared.cut == []
        assert not shared._new or len(ended) == 3

    asyncio.run(main())


@in_asyncio
async def test_the_input_of_who_is_far_behind_ends():
    shared = Shared(2, max_behind=PAGE + 10)
    for _ in range(2):
        shared.write(b"x" * PAGE)
        await shared.readers[1].read(PAGE)
    shared.write(b"x" * 10)
    assert (shared.cut, shared.taken[-1]) == ([], 2 * PAGE + 10)
    shared.write(b"x")
    assert shared.cut == [(0, PAGE + 11)]
    assert [reader.pipe.is_open for reader in shared.readers] == [False, True]
    shared.close()


@in_asyncio
async def test_a_rank_that_was_started_again_gets_what_nobody_has_got():
    shared = Shared(2)
    shared.write(b"a" * PAGE + b"bc")
    shared.readers[1].end()
    again = shared.start(1)
    await again.read(PAGE)
    assert again.got == b"bc"
    for reader in shared.readers[0], again:
        reader.end()
    shared.write(b"x" * 2 * PAGE)  # who has ended is found out by that
    shared.write(b"lost")
    again = shared.start(0)
    shared.write(b"new")
    shared.write(b"")
    await again.read(PAGE)
    assert (again.got, again.pipe.is_open) == (b"new", False)
    late = shared.start(1).pipe  # its input ends at once, when its process begins
    assert (late.is_open, os.read(late.read_fd, 1)) == (False, b"")
    shared.close()
