"""Read hostfiles, options and jobs, and plan starts on hosts.

The package reads files, this machine's names and interfaces; it asks no other host.
"""

from __future__ import annotations

from .host import Fault, Host, Hostfile, HostfileError, Rdma, bare_name, is_address
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
from .options import (
    add_host_arguments,
    check_job,
    count_of,
    host_options,
    idle_notes,
    job_options,
    launcher_lines,
    named_hosts,
    recognise_job,
    seconds,
    seconds_above_0,
    words_of,
)
from .start_plan import (
    environment,
    interface_addresses,
    interface_of,
    is_python,
    local_hosts,
    own_addresses,
    plan,
    resolve,
)
