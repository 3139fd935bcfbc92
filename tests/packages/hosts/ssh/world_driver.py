"""A workspace in a process of its own, driven by lines of JSON, as a notebook's kernel on a host.

A line that is a dict holds the options of `Workspace.start`; a text is a cell; ``null`` restarts the
ranks that are lost. The input's end stops the workspace. Each line is answered by one: values and
notices, or errors by rank, or why there is no workspace.
"""

from __future__ import annotations

import json
import sys
import time

from phalanx.errors import CellError, DistributedError
from phalanx.workspace import View, Workspace


class _NoticesView(View):
    """Keeps the notices of a cell."""

    def __init__(self):
        self.notices = []

    def notice(self, text):
        self.notices.append(text)


def _say(**words):
    print(json.dumps(words), flush=True)


def _start(options):
    """Return a workspace; None if it does not start."""
    news = []
    start = time.monotonic()
    try:
        workspace = Workspace.start(**options, progress=news.append)
    except DistributedError as error:
        _say(problem=str(error), news=[f"{n.name}: {n.state} {n.text}" for n in news])
        return None
    up_s = time.monotonic() - start
    devices = [host.device for host in workspace.topology().hosts]
    _say(up=up_s, news=[f"{n.name}: {n.state} {n.text}" for n in news], devices=devices)
    return workspace


def _run(workspace, code):
    start, view = time.monotonic(), _NoticesView()
    try:
        if code is None:
            workspace.restart()
            values = None
        else:
            values = [result.value for result in workspace.run(code, view=view)]
        _say(values=values, notices=view.notices, seconds=time.monotonic() - start)
    except CellError as error:
        failures = {rank: [name, text] for rank, (name, text, _) in error.failures.items()}
        _say(failures=failures, seconds=time.monotonic() - start)
    except DistributedError as error:
        _say(problem=str(error), seconds=time.monotonic() - start)


def main():
    workspace = None
    while line := sys.stdin.readline():
        asked = json.loads(line)
        if isinstance(asked, dict):
            workspace = _start(asked)
        else:
            _run(workspace, asked)
    if workspace is not None:
        start = time.monotonic()
        workspace.stop()
        _say(stopped=time.monotonic() - start)


main()
