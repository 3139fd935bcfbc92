"""Who takes part: hostfiles and lists of hosts, and the plan of a start made of them; and discovery.

It reads files, asks this machine for its names and interfaces, and over ssh other hosts for their
cables; it starts no rank, and imports of phalanx only the records and errors.
"""

from __future__ import annotations

from ._cables import Cable
from ._gather import gather
from ._host import Fault, Host, Hostfile, HostfileError, is_address
from ._interfaces import interface_addresses, own_addresses
from ._job_arguments import add_job_arguments, check_job, job_options, launcher_lines
from ._jobs import LAUNCHERS, TITLES, found_job, job_hosts, recognised
from ._json_form import to_json
from ._measured import cable_networks, measured_plan
from ._networks import Network
from ._order import order_ring
from ._plan import local_hosts, plan
from ._planning import Discovery, Over, Plan
from ._probes import PathTimes, measure
from ._program import resolve
from ._reach import DiscoveryError
from ._read import read_hostfile, read_hosts_text
from ._recording import load_outputs, save_outputs
from ._rings import RingSearch, find_ring
from ._script import read_survey
from ._settings import environment
from ._setup import SetupError, run_setup, setup_steps, undo_setup
from ._survey import Interface, Port, RdmaDevice, Survey
from ._text_form import parse_hosts

__all__ = [
    "LAUNCHERS",
    "TITLES",
    "Cable",
    "Discovery",
    "DiscoveryError",
    "Fault",
    "Host",
    "Hostfile",
    "HostfileError",
    "Interface",
    "Network",
    "Over",
    "PathTimes",
    "Plan",
    "Port",
    "RdmaDevice",
    "RingSearch",
    "SetupError",
    "Survey",
    "add_job_arguments",
    "cable_networks",
    "check_job",
    "environment",
    "find_ring",
    "found_job",
    "gather",
    "interface_addresses",
    "is_address",
    "job_hosts",
    "job_options",
    "launcher_lines",
    "load_outputs",
    "local_hosts",
    "measure",
    "measured_plan",
    "order_ring",
    "own_addresses",
    "parse_hosts",
    "plan",
    "read_hostfile",
    "read_hosts_text",
    "read_survey",
    "recognised",
    "resolve",
    "run_setup",
    "save_outputs",
    "setup_steps",
    "to_json",
    "undo_setup",
]
