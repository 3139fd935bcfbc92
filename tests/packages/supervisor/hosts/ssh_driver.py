"""A process that starts hosts over ssh, all at once, as the root supervisor does.

Reads lines of JSON: [plan, options, first line], then an empty one; writes one for each when it is
up or not, and another when it has ended. Another empty line kills them all.
"""

from __future__ import annotations

import asyncio
import json
import sys

import msgspec

from phalanx.protocol import HostPlan, RemoteOptions
from phalanx.supervisor.launchers.remote_command import HostStart, HostUnreachable
from phalanx.supervisor.launchers.select import launch_host


async def _serve(plan, remote, first_line, hosts):
    slow = []

    def say(**words):
        print(json.dumps({"name": plan.name, **words}), flush=True)

    try:
        host = await launch_host(HostStart(plan, first_line.encode(), remote, slow.append))
    except HostUnreachable as problem:
        say(is_up=False, text=problem.text, slow=slow)
        return
    hosts.append(host)
    say(is_up=True, slow=slow)
    say(ended=await host.ended())


async def _kill_all(hosts):
    await asyncio.to_thread(sys.stdin.readline)
    for host in hosts:
        host.kill()


async def main():
    jobs, hosts = [], []
    while line := sys.stdin.readline().strip():
        plan, remote, first_line = json.loads(line)
        words = msgspec.convert(plan, HostPlan), msgspec.convert(remote, RemoteOptions)
        jobs.append(_serve(*words, first_line, hosts))
    killer = asyncio.create_task(_kill_all(hosts))
    await asyncio.gather(*jobs)
    await killer


asyncio.run(main())
