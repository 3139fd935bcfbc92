"""Run the processes beside the notebook: supervisors, controller and engines.

The exported names are those that a workspace and the command line need to start a root supervisor
or find a running one.
"""

from __future__ import annotations

from .boot import RootProcess, find_root, launch_root, list_records
from .launchers.remote_command import (
    HostUnreachable,
    LaunchSpec,
    RemoteCommand,
    far_script,
)
from .launchers.select import ssh_launch, start_words
from .processes.child import exit_reason
from .processes.system import (
    THREADS_VARIABLE,
    allow_descriptors,
    needed_descriptors,
    open_pidfd,
    threads_each,
    usable_cores,
)
from .runtime_dir import check_name
