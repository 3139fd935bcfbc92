"""Commands `phalanx list` and `phalanx stop`: show and end ranks by name."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from phalanx.workspace import format_workspaces, list_workspaces, ranks_of, stop_workspace


class ListCommand:
    """List the user's ranks on this machine."""

    DESCRIPTION = (
        "Shows your workspaces on this machine by name, which %distributed attach comes back to."
    )

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

    DESCRIPTION = (
        "Ends workspaces of yours on this machine, and waits until they are gone: a running cell is "
        "interrupted (finally), then atexit runs. Ranks that have not ended within the workspace's "
        "--grace are killed and named. Ctrl-C kills them at once."
    )

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Declare the argument ``NAME``."""
        parser.add_argument("names", metavar="NAME", nargs="+", help="as phalanx list shows it")

    @staticmethod
    def run(options: argparse.Namespace, rest: Sequence[str]) -> int:  # noqa: ARG004
        """Stop the named workspaces in turn."""
        for name in options.names:
            size, cut_off = stop_workspace(name)
            print(f"stopped {ranks_of(name, size)}", flush=True)
            if cut_off:
                print(f"phalanx: {cut_off}", file=sys.stderr)
        return 0
