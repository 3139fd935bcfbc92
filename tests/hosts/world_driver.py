"""A workspace in a process of its own, driven by lines of JSON, as a notebook's kernel on a host.

The first line holds the options of `Workspace.start`. Each further one is a cell, until the input
ends. It answers each with a line: values, or errors by rank, or why there is no workspace.
"""

from __future__ import annotations

import json
import sys
import time

from phalanx.errors import CellError, DistributedError
from phalanx.workspace import Workspace


def _say(**words):
    print(json.dumps(words), flush=True)


def _run(workspace, code):
    start = time.monotonic()
    try:
        values = [result.value for result in workspace.run(code)]
        _say(values=values, seconds=time.monotonic() - start)
    except CellError as error:
        failures = {rank: [name, text] for rank, (name, text, _) in error.failures.items()}
        _say(failures=failures, seconds=time.monotonic() - start)
    except DistributedError as error:
        _say(problem=str(error), seconds=time.monotonic() - start)


def main():
    options = json.loads(sys.stdin.readline())
    news = []
    start = time.monotonic()
    try:
        workspace = Workspace.start(**options, progress=news.append)
    except DistributedError as error:
        _say(problem=str(error), news=[f"{n.name}: {n.state} {n.text}" for n in news])
        return
    up_s = time.monotonic() - start
    devices = [host.device for host in workspace.topology().hosts]
    _say(up=up_s, news=[f"{n.name}: {n.state} {n.text}" for n in news], devices=devices)
    with workspace:
        while line := sys.stdin.readline():
            _run(workspace, json.loads(line))
        start = time.monotonic()
    _say(stopped=time.monotonic() - start)


main()
