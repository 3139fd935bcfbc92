"""Find how hosts are connected, and set up their cables."""

from __future__ import annotations

from .networks import Cable, DiscoveryError
from .planner import Discovery, Over, Plan
from .records import Interface, Port, RdmaDevice, Survey
from .remote_exec import HostShells
from .ring_search import RingSearch, find_ring
from .setup import SetupError, run_setup, setup_steps, undo_setup
from .survey import gather, load_outputs, read_survey, save_outputs

__all__ = [
    "Cable",
    "Discovery",
    "DiscoveryError",
    "HostShells",
    "Interface",
    "Over",
    "Plan",
    "Port",
    "RdmaDevice",
    "RingSearch",
    "SetupError",
    "Survey",
    "find_ring",
    "gather",
    "load_outputs",
    "read_survey",
    "run_setup",
    "save_outputs",
    "setup_steps",
    "undo_setup",
]
