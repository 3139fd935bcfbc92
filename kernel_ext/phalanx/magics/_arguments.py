"""The words after our magics, parsed.

argparse does the work; a mistake becomes one line with the nearest right word.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from phalanx.distributed.bench import DTYPES, OPERATIONS
from phalanx.workspace import MAX_LINES

from ._plans import add_plan_arguments
from ._start_arguments import add_start_arguments

__all__ = [
    "HelpShown",
    "UsageMistake",
    "auto_parser",
    "cell_parser",
    "line_parser",
    "local_parser",
    "parse",
    "subcommands",
]


class UsageMistake(Exception):
    """The words make no sense; the text says what to write instead."""


class HelpShown(Exception):
    """``--help`` was asked for and printed."""


class _Parser(argparse.ArgumentParser):
    """argparse that neither exits nor prints a usage block for a mistake."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting."""
        msg = f"{message}; see {self.prog} --help"
        raise UsageMistake(msg)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse what is not known here, where the options are: an action's parser has its own."""
        try:
            known, rest = super().parse_known_args(args, namespace)
        except UsageMistake:
            if not subcommands(self):  # which has seen to its own words
                self._refuse_option(args or ())
            raise
        self._refuse_option(rest)
        if rest:
            self.error(f"{self.prog} takes no {rest[0]!r}")
        return known, rest

    def _refuse_option(self, words: Sequence[str]) -> None:
        """Name the nearest option for the first word that looks like one and is none.

        What else is wrong, as a word that is missing, may follow from that.
        """
        for word in words:
            name, known = word.partition("=")[0], self._option_string_actions
            if re.match("--?[a-z]", name) and not any(one.startswith(name) for one in known):
                msg = f"{self.prog} has no {name}; {_nearest(name, known)}"
                raise UsageMistake(msg)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            name = "/".join(action.option_strings) or self.prog
            self.error(f"{name} is {' or '.join(map(str, action.choices))}, not {value!r}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Raise instead of exiting: only ``--help`` comes here."""
        raise HelpShown


def _nearest(word: str, known: Iterable[str]) -> str:
    """Name the right word that is nearest to a wrong one, or all."""
    nearest = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {nearest[0]}?" if nearest else f"there are: {', '.join(known)}"


def _count_of(what: str) -> Callable[[str], int]:
    """Parse a number of something."""

    def count(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = 0
        if number < 1:
            msg = f"the number of {what} is {text!r}; it must be a whole number, 1 or more"
            raise argparse.ArgumentTypeError(msg)
        return number

    return count


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        msg = f"{text!r} is not a number of seconds"
        raise argparse.ArgumentTypeError(msg)
    return number


def _rank(text: str) -> int:
    if not text.isdecimal():
        msg = f"a rank is a number; {text!r} is not"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _completed(action: argparse.Action, words: Iterable[str]) -> None:
    """Have an option's values complete; what it may be is checked where it is used."""
    action.completed = tuple(words)  # type: ignore[attr-defined]


def line_parser() -> argparse.ArgumentParser:
    """Build the parser of `%distributed`."""
    parser = _Parser(
        prog="%distributed",
        description="Start, watch and stop the ranks that %%distributed cells run on.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", parser_class=_Parser)

    def action(name: str, help_text: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=help_text, description=help_text)

    start = action("start", "Start ranks on this machine, or on several hosts.")
    add_start_arguments(start, _count_of("ranks"), _seconds)
    action("status", "Show the ranks and what they do, as text.")
    topology = action(
        "topology", "Show hosts, ranks and the paths between them, live; or those of a hostfile."
    )
    topology.add_argument("--still", action="store_true", help="a picture as of now, no widget")
    add_plan_arguments(topology, _count_of("ranks"))
    monitor = action(
        "monitor", "Show what each rank does and who holds the others up, over time, live."
    )
    monitor.add_argument(
        "--still", action="store_true", help="a picture of the last 10 s, no widget"
    )
    bandwidth = action("bandwidth", "Measure the bandwidth of an operation by size, live.")
    _completed(
        bandwidth.add_argument(
            "--op", default="all_sum", help="the operation, like all_gather (default all_sum)"
        ),
        OPERATIONS,
    )
    bandwidth.add_argument(
        "-b", "--begin", default="8", metavar="SIZE", help="first size, like 8, 1K or 64M bytes (8)"
    )
    bandwidth.add_argument("-e", "--end", default="16M", metavar="SIZE", help="last size (16M)")
    bandwidth.add_argument(
        "-f",
        "--factor",
        type=int,
        default=4,
        metavar="K",
        help="each size is K times the one before (4)",
    )
    _completed(
        bandwidth.add_argument("--dtype", default="float32", help="of the elements (float32)"),
        DTYPES,
    )
    bandwidth.add_argument("--iters", type=int, default=20, help="timed calls per size (20)")
    bandwidth.add_argument(
        "--wait",
        action="store_true",
        help="wait for a cell that runs (default: say which, and end)",
    )
    bandwidth.add_argument("--still", action="store_true", help="rows and a picture, no widget")
    bandwidth.add_argument(
        "--save", metavar="FILE", help="also write it to a file: .csv, .json or .svg"
    )
    output = action("output", "Show all that ranks have printed (the last MiB of each).")
    output.add_argument("ranks", metavar="RANKS", help="like 2 or 0,2-3")
    stacks = action("stacks", "Show where the ranks' Python code is, whatever it does.")
    stacks.add_argument("ranks", metavar="RANKS", nargs="?", help="like 2 or 0,2-3 (default: all)")
    trace = action(
        "trace", "Write what the ranks did last, for https://ui.perfetto.dev or chrome://tracing."
    )
    trace.add_argument(
        "file", metavar="FILE", nargs="?", default="trace.json", help="where (default trace.json)"
    )
    debug = action("debug", "Open a debugger on the last error of a rank (or of several).")
    debug.add_argument("ranks", metavar="RANKS", help="like 2 or 0,2-3")
    restart = action("restart", "Put new processes in the place of ranks that are dead.")
    restart.add_argument(
        "ranks", metavar="RANKS", nargs="?", help="like 2 or 0,2-3 (default: those that are dead)"
    )
    restart.add_argument("--all", action="store_true", help="all ranks")
    restart.add_argument(
        "--force", action="store_true", help="also ranks that live: their variables are lost"
    )
    restart.add_argument(
        "--from",
        type=_rank,
        dest="copy_from",
        metavar="R",
        help="copy what rank R has to the new ranks, and say what could not be copied",
    )
    restart.add_argument(
        "--init",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run the cells of %%%%distributed --every-start on the new ranks (default: yes)",
    )
    action("interrupt", "Stop the cell that runs, from another thread or a widget.")
    attach = action("attach", "Come back to ranks that run, and to the cell they run.")
    attach.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="which, as list shows it (may be left out where one is free)",
    )
    attach.add_argument(
        "--take", action="store_true", help="take them from another notebook, which is told"
    )
    attach.add_argument(
        "--watch",
        action="store_true",
        help="only look: the cell that runs, status, topology, output",
    )
    action("detach", "Let the ranks go on without this notebook, for attach.")
    action("list", "Show the ranks that run on this machine, by name.")
    action("config", "Find out how hosts are joined, and write their hostfile: config --help.")
    action("stop", "End all ranks.")
    return parser


def cell_parser(*, has_help: bool = True) -> argparse.ArgumentParser:
    """Build the parser of `%%distributed`; without help it prints nothing."""
    parser = _Parser(
        prog="%%distributed", description="Run this cell on the ranks.", add_help=has_help
    )
    parser.add_argument("--ranks", metavar="RANKS", help="where to run, like 0,2-3 (default: all)")
    parser.add_argument(
        "--timeout", type=_seconds, metavar="S", help="stop the ranks after S seconds"
    )
    parser.add_argument(
        "--label",
        choices=["rank", "host", "none"],
        default="rank",
        help="what stands before each line: [0-1], [alpha 0-1] with its host, nothing",
    )
    parser.add_argument(
        "--max-lines",
        type=_count_of("lines"),
        default=MAX_LINES,
        metavar="N",
        help=f"lines to show; the rest is kept for %%distributed output (default {MAX_LINES})",
    )
    parser.add_argument(
        "--every-start",
        action="store_true",
        help="keep this cell: a rank that is replaced runs it again, alone, before any other",
    )
    return parser


def auto_parser() -> argparse.ArgumentParser:
    """Build the parser of `%autodistributed`."""
    parser = _Parser(
        prog="%autodistributed",
        description="Run every cell on the ranks, but those that begin with %%local.",
    )
    parser.add_argument("state", choices=["on", "off"], metavar="on|off", help="from now on")
    return parser


def local_parser() -> argparse.ArgumentParser:
    """Build the parser of `%%local`."""
    return _Parser(
        prog="%%local",
        description="Run this cell in the notebook's own kernel while %autodistributed is on.",
    )


def parse(parser: argparse.ArgumentParser, line: str) -> argparse.Namespace:
    """Parse the words of a line.

    Raises
    ------
    UsageMistake
        One line that says what to write.
    HelpShown
        ``--help`` was printed.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        msg = f"{parser.prog}: {error} in {line!r}"
        raise UsageMistake(msg) from None
    _check_action(parser, words)
    return parser.parse_args(words)


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a parser's actions by name; empty where it has none."""
    return {
        name: choice
        for group in parser._actions
        if isinstance(group, argparse._SubParsersAction)
        for name, choice in group.choices.items()
    }


def _check_action(parser: argparse.ArgumentParser, words: list[str]) -> None:
    """Name the nearest action for one that does not exist."""
    actions = subcommands(parser)
    if not actions or (words and (words[0] in actions or words[0] in {"-h", "--help"})):
        return
    if not words:
        msg = f"{parser.prog} needs a word: {', '.join(actions)}"
        raise UsageMistake(msg)
    msg = f"{parser.prog} has no {words[0]!r}; {_nearest(words[0], [*actions, '--help'])}"
    raise UsageMistake(msg)
