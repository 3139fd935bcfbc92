"""The supervisor's hand on the process that sweeps: how its own stop ends."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own, which the one that sweeps takes for a supervisor.
STOP = """
import asyncio, os
from phalanx.supervisor._sweeper import Sweeper

async def main():
    said = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    sweeper = Sweeper("")
    sweeper.start(dict(os.environ))
    await sweeper.stop()
    print(len(said), sweeper._gone.is_set())
    await sweeper.stop()

asyncio.run(main())
"""


def test_a_stop_sees_the_end_of_what_it_ended():
    said = subprocess.run(
        [sys.executable, "-c", STOP], capture_output=True, text=True, check=True, timeout=30
    )
    assert (said.stdout, said.stderr) == ("0 True\n", "")
