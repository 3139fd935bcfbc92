"""Who takes part: hostfiles and lists of hosts, and the plan of a start made of them.

It reads files and asks this machine for its names and interfaces; it starts no rank, and imports
of phalanx only the records and errors.
"""

from __future__ import annotations

from ._host import Fault, Host, Hostfile, HostfileError
from ._interfaces import interface_addresses, own_addresses
from ._json_form import to_json
from ._plan import local_hosts, plan
from ._program import resolve
from ._read import read_hostfile, read_hosts_text
from ._settings import environment
from ._slurm import slurm_hosts
from ._text_form import parse_hosts

__all__ = [
    "Fault",
    "Host",
    "Hostfile",
    "HostfileError",
    "environment",
    "interface_addresses",
    "local_hosts",
    "own_addresses",
    "parse_hosts",
    "plan",
    "read_hostfile",
    "read_hosts_text",
    "resolve",
    "slurm_hosts",
    "to_json",
]
