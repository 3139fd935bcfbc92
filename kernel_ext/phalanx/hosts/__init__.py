"""Who takes part: hostfiles and lists of hosts, and the plan of a start made of them; and discovery.

It reads files, asks this machine for its names and interfaces, and over ssh other hosts for their
cables; it starts no rank, and imports of phalanx only the records and errors. Each file is loaded
when one of its names is used (PEP 562): who starts ranks on one machine needs next to none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._cables import Cable
    from ._gather import gather
    from ._host import Fault, Host, Hostfile, HostfileError, is_address
    from ._interfaces import interface_addresses, interface_of, own_addresses
    from ._job_arguments import (
        add_far_arguments,
        check_job,
        job_options,
        launcher_lines,
        recognise_job,
        ssh_words,
    )
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
    "add_far_arguments",
    "cable_networks",
    "check_job",
    "environment",
    "find_ring",
    "found_job",
    "gather",
    "interface_addresses",
    "interface_of",
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
    "recognise_job",
    "recognised",
    "resolve",
    "run_setup",
    "save_outputs",
    "setup_steps",
    "ssh_words",
    "to_json",
    "undo_setup",
]

_FILES = {
    "LAUNCHERS": "_jobs",
    "TITLES": "_jobs",
    "Cable": "_cables",
    "Discovery": "_planning",
    "DiscoveryError": "_reach",
    "Fault": "_host",
    "Host": "_host",
    "Hostfile": "_host",
    "HostfileError": "_host",
    "Interface": "_survey",
    "Network": "_networks",
    "Over": "_planning",
    "PathTimes": "_probes",
    "Plan": "_planning",
    "Port": "_survey",
    "RdmaDevice": "_survey",
    "RingSearch": "_rings",
    "SetupError": "_setup",
    "Survey": "_survey",
    "add_far_arguments": "_job_arguments",
    "cable_networks": "_measured",
    "check_job": "_job_arguments",
    "environment": "_settings",
    "find_ring": "_rings",
    "found_job": "_jobs",
    "gather": "_gather",
    "interface_addresses": "_interfaces",
    "interface_of": "_interfaces",
    "is_address": "_host",
    "job_hosts": "_jobs",
    "job_options": "_job_arguments",
    "launcher_lines": "_job_arguments",
    "load_outputs": "_recording",
    "local_hosts": "_plan",
    "measure": "_probes",
    "measured_plan": "_measured",
    "order_ring": "_order",
    "own_addresses": "_interfaces",
    "parse_hosts": "_text_form",
    "plan": "_plan",
    "read_hostfile": "_read",
    "read_hosts_text": "_read",
    "read_survey": "_script",
    "recognise_job": "_job_arguments",
    "recognised": "_jobs",
    "resolve": "_program",
    "run_setup": "_setup",
    "save_outputs": "_recording",
    "setup_steps": "_setup",
    "ssh_words": "_job_arguments",
    "to_json": "_json_form",
    "undo_setup": "_setup",
}


def __getattr__(name: str) -> Any:
    """Load the file of a public name when the name is first used."""
    if name not in _FILES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg, name=name, obj=importlib.import_module(__name__))
    value = getattr(importlib.import_module(f".{_FILES[name]}", __name__), name)
    globals()[name] = value  # the next look-up does not come here
    return value
