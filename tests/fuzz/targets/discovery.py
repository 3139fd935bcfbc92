"""What hosts may say of their cables and interfaces: cut, of another version, or made to mislead.

Whatever it is, it is read; a plan is made of it or refused in one line, and nothing of what was
said comes into a shell or a picture but as a name.
"""

from __future__ import annotations

import json
import re
from typing import Any

from fuzz.supply import Supply
from hosts.discovery.macs import wired

from phalanx.cli.config.networks import DiscoveryError
from phalanx.cli.config.planner import Discovery
from phalanx.cli.config.setup import setup_scripts
from phalanx.cli.config.surveys import Survey, read_survey
from phalanx.cli.probe.probe_main import survey_macos
from phalanx.hosts import Host, to_json

_LINUX = {
    "system": "Linux",
    "interfaces": [
        {
            "name": "ib0",
            "kind": "infiniband",
            "is_up": True,
            "addresses": ["10.0.0.1/24"],
            "speed_mbps": 100000,
        }
    ],
    "ports": [{"interface": "thunderbolt0", "domain": "U", "peers": ["V"]}],
    "rdma": [
        {
            "name": "mlx5_0",
            "interface": "ib0",
            "is_active": True,
            "fabric": "fe80:0000:0000:0001",
            "speed_mbps": 100000,
        }
    ],
    "has_sudo": False,
    "notes": [],
}
_COMMAND = re.compile(r"sudo (ifconfig|route|ip) [A-Za-z0-9_./ |-]*")


def _mac(supply: Supply, true: dict[str, str]) -> dict[str, Any]:
    """Edit one output of a Mac's commands, or put something else in its place."""
    name = supply.choice(sorted(true))
    data = supply.piece() if supply.below(4) == 3 else supply.edited(true[name].encode())
    notes: list[str] = []
    found = survey_macos({**true, name: data.decode("utf-8", "replace")}, notes)
    return {"system": "Darwin", **found, "notes": notes}


def _survey(supply: Supply, name: str, true: dict[str, Any]) -> Survey:
    """Edit the answer of a host; what is no survey then is refused."""
    data = supply.edited(json.dumps(true).encode())
    try:
        return read_survey(name, json.loads(data))
    except ValueError:
        return read_survey(name, true)


def _check_told(error: DiscoveryError) -> None:
    assert len(str(error).splitlines()) == 1, str(error)


def one(data: bytes) -> None:
    """Run one input."""
    supply = Supply(data)
    macs = [_mac(supply, mac.outputs()) for mac in wired(2, [(0, 1)])]
    worlds = (macs, [_LINUX, _LINUX], [macs[0], _LINUX])
    true = supply.choice(worlds)
    hosts = [Host("a"), Host("b")]
    found = Discovery(
        hosts, [_survey(supply, host.ssh, said) for host, said in zip(hosts, true, strict=True)]
    )
    for script in setup_scripts(found.surveys, found.cables):
        for command in (*script.commands, *script.undo):
            assert _COMMAND.fullmatch(command), command
    found.dot("any")
    over = supply.choice(("any", "thunderbolt", "ethernet"))
    try:
        plan = found.plan(over, supply.choice((None, "ring", "jaccl", "jaccl-ring")))
    except DiscoveryError as error:
        _check_told(error)
    else:
        assert {host.ssh for host in plan.hostfile.hosts} == {"a", "b"}
        json.loads(to_json(plan.hostfile))
        assert all(len(remark.splitlines()) == 1 for remark in plan.remarks)
