"""`phalanx stop`: end ranks by name, whoever has started them. The workspace room does it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from phalanx.workspace import stop_workspace

__all__ = ["DESCRIPTION", "HELP", "PASSES_ON", "add_arguments", "run"]

HELP = "end ranks by name"
DESCRIPTION = "Ends workspaces of yours on this machine, and waits until they are gone."
PASSES_ON = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the names."""
    parser.add_argument("names", metavar="NAME", nargs="+", help="as phalanx list shows it")


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:  # noqa: ARG001
    """End one after the other."""
    for name in options.names:
        stop_workspace(name)
    return 0
