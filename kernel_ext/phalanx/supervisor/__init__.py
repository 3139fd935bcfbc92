"""The processes beside the notebook: root and host supervisors, controller, engines.

The door is what a workspace needs to start them; the rest runs in processes of its own.
"""

from __future__ import annotations

from ._far_command import Heard, why_ended
from ._found_root import FoundRoot
from ._host_process import HostUnreachable
from ._in_job import start_words
from ._key_folder import job_folder
from ._launch import RootProcess, launch_root
from ._limits import needed_descriptors
from ._runtime_folder import check_name, claim_name, find_record, list_records
from ._ssh import ssh_command, why_not_in
from ._system import open_pidfd

__all__ = [
    "FoundRoot",
    "Heard",
    "HostUnreachable",
    "RootProcess",
    "check_name",
    "claim_name",
    "find_record",
    "job_folder",
    "launch_root",
    "list_records",
    "needed_descriptors",
    "open_pidfd",
    "ssh_command",
    "start_words",
    "why_ended",
    "why_not_in",
]
