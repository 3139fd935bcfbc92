"""`phalanx list`: the user's ranks on this machine, by name. It prints; the workspace room knows."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from phalanx.workspace import format_workspaces, list_workspaces

__all__ = ["DESCRIPTION", "HELP", "PASSES_ON", "add_arguments", "run"]

HELP = "show the ranks that run on this machine"
DESCRIPTION = (
    "Shows your workspaces on this machine by name: those of notebooks, which %distributed attach "
    "comes back to, and scripts that phalanx launch --detach has started."
)
PASSES_ON = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare nothing: there are no options."""


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:  # noqa: ARG001
    """Print the table."""
    print(format_workspaces(list_workspaces()))
    return 0
