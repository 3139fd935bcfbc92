"""A workspace in a process of its own, for schedulers' jobs: its hosts and sums, or why there is none.

The options of `Workspace.start` are its argument; its answer is one line of JSON, its progress goes
to the standard error.
"""

from __future__ import annotations

import json
import sys

WORLD = """
import json, sys
from phalanx.errors import DistributedError
from phalanx.workspace import Workspace
try:
    news = lambda its: print(f"{its.name}: {its.state} {its.text}", file=sys.stderr)
    options = json.loads(sys.argv[1])
    with Workspace.start(**options, linger=0, progress=news) as workspace:
        code = "import socket; socket.gethostname(), int(px.all_sum(rank))"
        print(json.dumps([result.value for result in workspace.run(code)]))
except (DistributedError, ValueError) as error:
    print(json.dumps(str(error)))
"""


def run_world(cluster, *job, **options):
    """Run it on a cluster, within a ``job`` if there is one; returns its answer and its progress."""
    done = cluster.run(*job, sys.executable, "-c", WORLD, json.dumps(options))
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.stderr


def hosts_of(said):
    """Return the hosts of all ranks, and their sums."""
    return [value.split("'")[1] for value in said], {value.split()[-1] for value in said}


def wait_line(stream, words):
    """Read lines until these words have come."""
    said = ""
    for line in stream:
        said += line
        if words in line:
            return
    raise AssertionError(said)
