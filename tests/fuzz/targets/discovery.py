"""What hosts may say of their cables and interfaces: cut, of another version, or made to mislead.

Whatever it is, it is read; a plan is made of it or refused in one line, and nothing of what was
said comes into a shell or a picture but as a name.
"""

from __future__ import annotations

import json
import re

from fuzz.supply import Supply
from hosts.discovery.macs import wired

from phalanx.hosts import Host, to_json
from phalanx.hosts.discovery import Discovery, DiscoveryError, read_survey, setup_steps
from phalanx.hosts.discovery.remote_exec import marked_results

__all__ = ["one"]

_LINUX = {
    "uname": "Linux\n",
    "ip_addr": json.dumps(
        [
            {
                "ifname": "ib0",
                "addr_info": [{"local": "10.0.0.1", "prefixlen": 24, "scope": "global"}],
            }
        ]
    ),
    "sys_net": "name=ib0\toperstate=up\tspeed=100000\ttype=32\tdriver=mlx5_core\tphysical=1\n",
    "sys_thunderbolt": "name=0-0\tunique_id=u\nname=0-1\tunique_id=v\tspeed=20.0 Gb/s\n"
    "name=0-1.1\tnet=thunderbolt0\n",
    "sys_infiniband": "name=mlx5_0\tport=1\tstate=4: ACTIVE\trate=100 Gb/sec (4X EDR)\t"
    "link_layer=InfiniBand\tgid=fe80:0000:0000:0001:0000:0000:0000:0001\tnet=ib0\n",
}
_MARK = "0123456789abcdef"
_COMMAND = re.compile(r"sudo (ifconfig|route|ip) [A-Za-z0-9_./ |-]*")


def _said(supply: Supply, true: dict[str, str]) -> dict[str, str]:
    """Edit one output of a host, or put something else in its place."""
    name = supply.choice(sorted(true))
    data = supply.piece() if supply.below(4) == 3 else supply.edited(true[name].encode())
    return {**true, name: data.decode("utf-8", "replace")}


def _script(supply: Supply, true: dict[str, str]) -> None:
    whole = "".join(f"\n{_MARK} begin\n{output}\n{_MARK} end 0\n" for output in true.values())
    assert marked_results(whole, _MARK) == tuple((0, output) for output in true.values())
    marked_results(supply.edited(whole.encode()).decode("utf-8", "replace"), _MARK)


def _check_told(error: DiscoveryError) -> None:
    assert len(str(error).splitlines()) == 1, str(error)


def one(data: bytes) -> None:
    """Run one input."""
    supply = Supply(data)
    macs = [mac.outputs() for mac in wired(2, [(0, 1)])]
    worlds = (macs, [_LINUX, _LINUX], [macs[0], _LINUX])
    outputs = [_said(supply, true) for true in supply.choice(worlds)]
    _script(supply, outputs[0])
    hosts = [Host("a"), Host("b")]
    found = Discovery(
        hosts, [read_survey(host.ssh, said) for host, said in zip(hosts, outputs, strict=True)]
    )
    for steps in setup_steps(found.surveys, found.cables):
        for step in steps:
            assert _COMMAND.fullmatch(step.command), step
            assert not step.undo or _COMMAND.fullmatch(step.undo), step
    found.dot("any")
    over = supply.choice(("any", "thunderbolt", "ethernet"))
    try:
        plan = found.plan(over, supply.choice((None, "ring", "jaccl", "jaccl-ring")))
    except DiscoveryError as error:
        _check_told(error)
    else:
        assert sorted(plan.order) == [0, 1]
        json.loads(to_json(plan.hostfile))
        assert all(len(remark.splitlines()) == 1 for remark in plan.remarks)
