"""Stand-ins for commands: shell scripts in a folder of the PATH."""

from __future__ import annotations

import os
from pathlib import Path


def write_command(path: Path, script: str) -> Path:
    """Write a shell script that can be run; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def make_commands(folder: Path, **scripts: str) -> str:
    """Write commands by name; return the PATH on which they come first."""
    for name, script in scripts.items():
        write_command(folder / name, script)
    return f"{folder}:{os.environ['PATH']}"
