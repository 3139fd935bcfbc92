"""Read hostfiles, plan starts and discover networks.

The package reads files, this machine's names and interfaces, and other hosts' cables over ssh. Each
module is loaded when one of its names is first used (PEP 562), because a start on one machine needs
few of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .discovery import (
        Discovery,
        Over,
        Plan,
    )
    from .host import (
        Fault,
        Host,
        Hostfile,
        HostfileError,
        Interface,
        Port,
        RdmaDevice,
        Survey,
        is_address,
    )
    from .hostfile import parse_hosts, read_hostfile, read_hosts_text, to_json
    from .jobs import (
        LAUNCHERS,
        TITLES,
        check_launcher_name,
        found_job,
        job_hosts,
        recognised,
        uses_job,
    )
    from .networks import Cable, DiscoveryError
    from .options import (
        add_host_arguments,
        check_job,
        count_of,
        idle_notes,
        job_options,
        launcher_lines,
        recognise_job,
        seconds,
        seconds_above_0,
        ssh_words,
    )
    from .remote_exec import gather, load_outputs, save_outputs
    from .ring_search import RingSearch, find_ring
    from .ssh import explain_ssh, ssh_command
    from .start_plan import (
        environment,
        interface_addresses,
        interface_of,
        local_hosts,
        own_addresses,
        plan,
        resolve,
    )
    from .survey import read_survey
    from .thunderbolt.setup import SetupError, run_setup, setup_steps, undo_setup

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
    "Over",
    "Plan",
    "Port",
    "RdmaDevice",
    "RingSearch",
    "SetupError",
    "Survey",
    "add_host_arguments",
    "check_job",
    "check_launcher_name",
    "count_of",
    "environment",
    "explain_ssh",
    "find_ring",
    "found_job",
    "gather",
    "idle_notes",
    "interface_addresses",
    "interface_of",
    "is_address",
    "job_hosts",
    "job_options",
    "launcher_lines",
    "load_outputs",
    "local_hosts",
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
    "seconds",
    "seconds_above_0",
    "setup_steps",
    "ssh_command",
    "ssh_words",
    "to_json",
    "undo_setup",
    "uses_job",
]

_FILES = {
    "LAUNCHERS": "jobs",
    "TITLES": "jobs",
    "Cable": "networks",
    "Discovery": "discovery",
    "DiscoveryError": "networks",
    "Fault": "host",
    "Host": "host",
    "Hostfile": "host",
    "HostfileError": "host",
    "Interface": "host",
    "Over": "discovery",
    "Plan": "discovery",
    "Port": "host",
    "RdmaDevice": "host",
    "RingSearch": "ring_search",
    "SetupError": "thunderbolt.setup",
    "Survey": "host",
    "add_host_arguments": "options",
    "check_job": "options",
    "check_launcher_name": "jobs",
    "count_of": "options",
    "environment": "start_plan",
    "explain_ssh": "ssh",
    "find_ring": "ring_search",
    "found_job": "jobs",
    "gather": "remote_exec",
    "idle_notes": "options",
    "interface_addresses": "start_plan",
    "interface_of": "start_plan",
    "is_address": "host",
    "job_hosts": "jobs",
    "job_options": "options",
    "launcher_lines": "options",
    "load_outputs": "remote_exec",
    "local_hosts": "start_plan",
    "own_addresses": "start_plan",
    "parse_hosts": "hostfile",
    "plan": "start_plan",
    "read_hostfile": "hostfile",
    "read_hosts_text": "hostfile",
    "read_survey": "survey",
    "recognise_job": "options",
    "recognised": "jobs",
    "resolve": "start_plan",
    "run_setup": "thunderbolt.setup",
    "save_outputs": "remote_exec",
    "seconds": "options",
    "seconds_above_0": "options",
    "setup_steps": "thunderbolt.setup",
    "ssh_command": "ssh",
    "ssh_words": "options",
    "to_json": "hostfile",
    "undo_setup": "thunderbolt.setup",
    "uses_job": "jobs",
}


def __getattr__(name: str) -> Any:
    """Load the module of a public name on first use."""
    if name not in _FILES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg, name=name, obj=importlib.import_module(__name__))
    value = getattr(importlib.import_module(f".{_FILES[name]}", __name__), name)
    globals()[name] = value  # later look-ups bypass this function
    return value
