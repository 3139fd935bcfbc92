"""Commands `phalanx list` and `phalanx stop`: show and end ranks by name."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from phalanx.workspace import format_workspaces, list_workspaces, say_stopped, stop_workspace


class ListCommand:
    """List the user's ranks on this machine."""

    DESCRIPTION = (
        "Shows your workspaces on this machine by name, which %distributed attach comes back to."
    )
    PASSES_ON = False

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Declare no options."""

    @staticmethod
    def run(options: argparse.Namespace, rest: Sequence[str]) -> int:  # noqa: ARG004
        """Print the table."""
        print(format_workspaces(list_workspaces()))
        return 0


class StopCommand:
    """End ranks by name."""

    DESCRIPTION = "Ends workspaces of yours on this machine, and waits until they are gone."
    PASSES_ON = False

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Declare the argument ``NAME``."""
        parser.add_argument("names", metavar="NAME", nargs="+", help="as phalanx list shows it")

    @staticmethod
    def run(options: argparse.Namespace, rest: Sequence[str]) -> int:  # noqa: ARG004
        """Stop the named workspaces in turn."""
        for name in options.names:
            print(say_stopped(name, stop_workspace(name)), flush=True)
        return 0
