"""The processes beside the notebook: root and host supervisors, controller, engines.

The door is what a workspace needs to start them; the rest runs in processes of its own.
"""

from __future__ import annotations

from ._launch import RootProcess, launch_root

__all__ = ["RootProcess", "launch_root"]
