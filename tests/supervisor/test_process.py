"""A child process of a supervisor: when it counts as ended."""

from __future__ import annotations

import asyncio
import os

from support.promise import PATIENCE_S

from phalanx.supervisor import _process
from phalanx.supervisor._output import OutputPipe
from phalanx.supervisor._process import ChildProcess
from phalanx.supervisor._streams import ForwardedPipe


def test_a_tied_child_whose_pipes_have_ended_is_not_waited_for(monkeypatch):
    """As ssh's, at the end of every host: last words of others come only while a pipe is held."""
    monkeypatch.setattr(_process, "LAST_WORDS_S", 60.0)

    async def main():
        heard = []
        stdout, stderr = ForwardedPipe(heard.append), OutputPipe()
        child = ChildProcess(
            ["sh", "-c", "echo heard; echo last >&2"],
            env=os.environ, cwd="/", pass_fds=(), stdout=stdout, stderr=stderr,
            on_exit=lambda status: None, tied=True,
        )  # fmt: skip
        await asyncio.wait_for(child.exited.wait(), PATIENCE_S)
        assert (child.status, b"".join(heard), child.tail) == (0, b"heard\n", "last\n")

    asyncio.run(main())
