"""Parse the words after our magics.

The parsers are argparse's. A mistake becomes one line that names the nearest right word.
`%distributed config` runs `phalanx config` in a process of its own.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from IPython.core.error import UsageError

from phalanx import widgets
from phalanx.distributed.bench import DTYPES, OPERATIONS
from phalanx.errors import did_you_mean
from phalanx.hosts import (
    add_host_arguments,
    count_of,
    host_options,
    launcher_lines,
    seconds,
)
from phalanx.protocol import GRACE_S, WorldTopology
from phalanx.workspace import MAX_LINES, resolve_placement

# The picture has a path for each pair of ranks. Half a million paths (1,024 ranks) are drawn in 5 s
# on two slow cores. The paths of 60,000 ranks would kill this kernel, and its variables with it.
MOST_DRAWN = 1024

Options = dict[tuple[str, ...], dict[str, Any]]  # arguments of `add_argument`, by names


def planned_world(options: Any) -> WorldTopology | None:
    """Return the world of a plan; None if no plan is named.

    Raises
    ------
    ValueError
        The hosts or the hostfile are not valid, or there are too many ranks; says so in one line.
    """
    if options.hosts is None and options.hostfile is None:
        if options.n is not None:
            msg = (
                "-n is the number of ranks per host of a plan: name them with --hosts or --hostfile"
            )
            raise ValueError(msg)
        return None
    plan = resolve_placement(options.n, hosts=options.hosts, hostfile=options.hostfile)
    n_ranks = sum(host.ranks for host in plan.hosts)
    if n_ranks > MOST_DRAWN:
        msg = (
            f"{n_ranks} ranks are too many for a picture, which shows at most {MOST_DRAWN}: "
            "draw fewer with a smaller -n, or some of the hosts with --hosts"
        )
        raise ValueError(msg)
    name = "plan" if options.hostfile is None else Path(options.hostfile).name
    return widgets.planned(plan.hosts, name=name)


def start_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of `Workspace.start`.

    Raises
    ------
    ValueError
        The quotes of the words for ssh do not match, or scheduler options have no scheduler.
    """
    names = (
        "name", "linger", "heartbeat_timeout", "transport", "detach", "auto_restart", "grace",
    )  # fmt: skip
    return {**host_options(options), **{name: getattr(options, name) for name in names}}


class HelpShown(Exception):
    """Raised after ``--help`` was printed."""


class _MagicParser(argparse.ArgumentParser):
    """An argument parser that raises exceptions instead of exiting.

    A mistake prints no usage block.
    """

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError` instead of exiting."""
        msg = f"{message}; see {self.prog} --help"
        raise UsageError(msg)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            name = "/".join(action.option_strings) or self.prog
            self.error(f"{name} is {' or '.join(map(str, action.choices))}, not {value!r}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Raise `HelpShown` instead of exiting: only ``--help`` calls this."""
        raise HelpShown


def _rank(text: str) -> int:
    if not text.isdecimal():
        msg = f"a rank is a number; {text!r} is not"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _flag(text: str) -> dict[str, Any]:
    return {"action": "store_true", "help": text}


def _ranks(default: str) -> Options:
    text = f"like 2, 0,2-3 or ::2 (default: {default})"
    return {("ranks",): {"metavar": "RANKS", "nargs": "?", "help": text}}


_START: Options = {
    ("--linger",): {
        "type": seconds, "default": 600.0, "metavar": "S",
        "help": "seconds that the ranks outlive a restart, crash or kill of this kernel: so long "
        "attach finds them (default 600)",
    },
    ("--name",): {"help": "what to call them, for attach (default: by the process)"},
    ("--detach",): _flag(
        "the ranks outlive an orderly end, too, by --linger: a kernel's shutdown, a "
        "terminal's exit"
    ),
    ("--heartbeat-timeout", "--silence"): {
        "type": seconds, "default": 5.0, "metavar": "S",
        "help": "seconds after which a frozen rank is named and the others are freed (default 5)",
    },
    ("--transport",): {
        "choices": ["any", "tcp"],
        "help": "tcp: do not share memory between the ranks of this machine (default: "
        "PHALANX_TRANSPORT, else any)",
    },
    ("--grace",): {
        "type": seconds, "default": GRACE_S, "metavar": "S",
        "help": "seconds that the ranks have to end (finally, atexit) at a stop, or at a restart "
        f"--force, before they are killed (default {GRACE_S:g})",
    },
    ("--auto-restart",): _flag("replace a rank that dies at once, and say so"),
}  # fmt: skip
_N_RANKS = "number of ranks (default 4), or of ranks on each host (default: its slots, else 1)"
_PLAN: Options = {
    ("--hosts",): {"metavar": "A,B", "help": "draw what a start on these hosts would make"},
    ("--hostfile",): {
        "metavar": "FILE", "help": "the same from a file of MLX's, Open MPI's or MPICH's",
    },
    ("-n",): {
        "type": count_of("the number of ranks"),
        "help": "ranks per host (default: the hostfile's slots, else 1)",
    },
}  # fmt: skip
# By name: the help text, and the options besides those of hosts (start) and of a plan (topology).
_ACTIONS: dict[str, tuple[str, Options]] = {
    "start": ("Start ranks on this machine, or on several hosts.", _START),
    "status": ("Show the ranks and what they do, as text.", {}),
    "topology": (
        "Show hosts, ranks and the paths between them, live; or those of a hostfile.",
        {("--still",): _flag("a picture as of now, no widget")},
    ),
    "monitor": (
        "Show what each rank does and who holds the others up, over time, live.",
        {("--still",): _flag("a picture of the last 10 s, no widget")},
    ),
    "bandwidth": (
        "Measure the bandwidth of an operation by size, live.",
        {
            ("--op",): {
                "default": "all_sum", "completed": OPERATIONS,
                "help": "the operation, like all_gather (default all_sum)",
            },
            ("-b", "--begin"): {
                "default": "8", "metavar": "SIZE", "help": "first size, like 8, 1K or 64M bytes (8)",
            },
            ("-e", "--end"): {"default": "16M", "metavar": "SIZE", "help": "last size (16M)"},
            ("-f", "--factor"): {
                "type": int, "default": 4, "metavar": "K",
                "help": "each size is K times the one before (4)",
            },
            ("--dtype",): {
                "default": "float32", "completed": DTYPES, "help": "of the elements (float32)",
            },
            ("--iters",): {"type": int, "default": 20, "help": "timed calls per size (20)"},
            ("--wait",): _flag("wait for a cell that runs (default: say which, and end)"),
            ("--still",): _flag("rows and a picture, no widget"),
            ("--save",): {
                "metavar": "FILE", "help": "also write it to a file: .csv, .json or .svg",
            },
        },
    ),
    "output": ("Show all that ranks have printed (the last MiB of each).", _ranks("all")),
    "stacks": ("Show where the ranks' Python code is, whatever it does.", _ranks("all")),
    "trace": (
        "Write what the ranks did last, for https://ui.perfetto.dev or chrome://tracing.",
        {
            ("file",): {
                "metavar": "FILE", "nargs": "?", "default": "trace.json",
                "help": "where (default trace.json)",
            },
        },
    ),
    "debug": (
        "Open a debugger on the last error of a rank (or of several).",
        _ranks("those that failed in the last cell"),
    ),
    "restart": (
        "Put new processes in the place of ranks that are dead.",
        {
            **_ranks("those that are dead"),
            ("--all",): _flag("all ranks"),
            ("--force",): _flag(
                "also ranks that live: their cell is interrupted, and they have start's "
                "--grace to end; their variables are lost"
            ),
            ("--from",): {
                "type": _rank, "dest": "copy_from", "metavar": "R",
                "help": "copy what rank R has to the new ranks, and say what could not be copied",
            },
            ("--init",): {
                "action": argparse.BooleanOptionalAction, "default": True,
                "help": "run the cells of %%%%distributed --every-start on the new ranks "
                "(default: yes)",
            },
        },
    ),
    "interrupt": (
        "Stop the cell that runs (from another thread), or a callback of a widget.", {},
    ),
    "attach": (
        "Come back to ranks that run, and to the cell they run.",
        {
            ("name",): {
                "metavar": "NAME", "nargs": "?",
                "help": "which, as list shows it (may be left out where one is free)",
            },
            ("--take",): _flag("take them from another notebook, which shows a notice"),
        },
    ),
    "detach": ("Let the ranks go on without this notebook, for attach.", {}),
    "list": ("Show the ranks that run on this machine, by name.", {}),
    "config": ("Find out how hosts are joined, and write their hostfile: config --help.", {}),
    "stop": ("End all ranks.", {}),
}  # fmt: skip
_STOP = (
    "End all ranks. A running cell is interrupted (finally), then atexit runs, all within the "
    "--grace of start; who has not ended by then is killed and named. The stop button, or "
    "another stop, kills them at once."
)
_CELL: Options = {
    ("--ranks",): {"metavar": "RANKS", "help": "where to run, like 0,2-3 or ::2 (default: all)"},
    ("--timeout",): {"type": seconds, "metavar": "S", "help": "stop the ranks after S seconds"},
    ("--label",): {
        "choices": ["rank", "host", "none"], "default": "rank",
        "help": "what stands before each line: [0-1], [alpha 0-1] with its host, nothing",
    },
    ("--view",): {
        "choices": ["list", "tabs"], "default": "list",
        "help": "how ranks' output is shown: one below the other, or a tab for each rank",
    },
    ("--max-lines",): {
        "type": count_of("the number of lines"), "default": MAX_LINES, "metavar": "N",
        "help": "lines to show; the rest is kept for %%distributed output "
        f"(default {MAX_LINES})",
    },
    ("--every-start",): _flag(
        "keep this cell: a rank that is replaced runs it again, alone, before any other"
    ),
}  # fmt: skip


def _add(group: argparse._ActionsContainer, options: Options) -> None:
    """Add options; ``completed`` are values that are checked where they are used."""
    for names, its in options.items():
        action = group.add_argument(*names, **{k: its[k] for k in its if k != "completed"})
        action.completed = its.get("completed", action.choices)  # type: ignore[attr-defined]


def line_parser() -> argparse.ArgumentParser:
    parser = _MagicParser(
        prog="%distributed",
        description="Start, watch and stop the ranks that %%distributed cells run on. "
        "Without a word it is status.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", parser_class=_MagicParser)
    for name, (text, options) in _ACTIONS.items():
        action = actions.add_parser(name, help=text, description=text)
        _add(action, options)
        if name == "start":
            action.epilog = launcher_lines()
            action.formatter_class = argparse.RawDescriptionHelpFormatter
            hosts = action.add_argument_group("where the ranks run")
            add_host_arguments(hosts.add_argument, helps={"-n": _N_RANKS})
        elif name == "topology":
            _add(action.add_argument_group("a plan, on which nothing is started"), _PLAN)
        elif name == "stop":
            action.description = _STOP
    return parser


def cell_parser(*, has_help: bool = True) -> argparse.ArgumentParser:
    """Build the parser of `%%distributed`.

    Without ``has_help`` the parser has no ``--help`` and prints nothing.
    """
    parser = _MagicParser(
        prog="%%distributed", description="Run this cell on the ranks.", add_help=has_help
    )
    _add(parser, _CELL)
    return parser


def auto_parser() -> argparse.ArgumentParser:
    parser = _MagicParser(
        prog="%autodistributed",
        description="Run every cell on the ranks, but those that begin with %%local.",
    )
    parser.add_argument("state", choices=["on", "off"], metavar="on|off", help="from now on")
    return parser


def local_parser() -> argparse.ArgumentParser:
    return _MagicParser(
        prog="%%local",
        description="Run this cell in the notebook's own kernel while %autodistributed is on.",
    )


def parse(parser: argparse.ArgumentParser, line: str) -> argparse.Namespace:
    """Parse the words of a line.

    Raises
    ------
    UsageError
        The words are wrong; one line says what to write.
    HelpShown
        ``--help`` was printed.
    """
    words = _split(line, parser.prog)
    chosen = argparse.Namespace()
    if (actions := subcommands(parser)) and words and words[0] not in ("-h", "--help"):
        chosen.action = words.pop(0)
        if chosen.action not in actions:
            hint = did_you_mean(chosen.action, [*actions, "--help"])
            msg = f"{parser.prog} has no {chosen.action!r}; {hint}"
            raise UsageError(msg)
        parser = actions[chosen.action]
    try:
        options, rest = parser.parse_known_args(words, chosen)
    except UsageError:
        _refuse_option(parser, words)  # a missing word, for example, may follow from it
        raise
    _refuse_option(parser, rest)
    if rest:
        parser.error(f"{parser.prog} takes no {rest[0]!r}")
    return options


def _refuse_option(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Name the nearest option for the first unknown option."""
    for word in words:
        name, known = word.partition("=")[0], parser._option_string_actions
        if re.match("--?[a-z]", name) and not any(one.startswith(name) for one in known):
            msg = f"{parser.prog} has no {name}; {did_you_mean(name, known)}"
            raise UsageError(msg)


def _split(line: str, magic: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        msg = f"{magic}: {error} in {line!r}"
        raise UsageError(msg) from None


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a parser's actions by name.

    The result is empty for a parser without actions.
    """
    return {
        name: choice
        for group in parser._actions
        if isinstance(group, argparse._SubParsersAction)
        for name, choice in group.choices.items()
    }


def next_words(parser: argparse.ArgumentParser, typed: str) -> tuple[str, list[str]]:
    """Complete the text typed after a magic's name.

    Returns
    -------
    fragment : str
        The end of ``typed`` that is completed.
    words : list of str
        The words that can replace the fragment.

    Examples
    --------
    >>> from phalanx.magics.arguments import auto_parser
    >>> next_words(auto_parser(), "of")
    ('of', ['off'])
    """
    found = re.search(r"\S*\Z", typed)
    fragment = found[0] if found else ""
    before = typed[: len(typed) - len(fragment)].split()
    return fragment, [word for word in _candidates(parser, before) if word.startswith(fragment)]


def _candidates(parser: argparse.ArgumentParser, before: list[str]) -> Iterable[str]:
    actions = subcommands(parser)
    if actions and before:
        chosen = actions.get(before[0])
        return () if chosen is None else _candidates(chosen, before[1:])
    options = parser._option_string_actions
    if before and before[-1] in options and options[before[-1]].nargs is None:
        option = options[before[-1]]
        return map(str, getattr(option, "completed", option.choices) or ())
    positional = [
        str(choice)
        for action in parser._actions
        if not action.option_strings and not before
        for choice in action.choices or ()
    ]
    unused = [
        action.option_strings[-1]  # the long form
        for action in parser._actions
        if action.option_strings and not set(action.option_strings) & set(before)
    ]
    return [*positional, *sorted(unused, key="--help".__eq__)]


def show_config(line: str) -> None:
    """Run `phalanx config` with these words; show its text.

    The command runs as a process, so that a host that hangs can be interrupted like any cell.
    Options and texts are those of the command line.

    Raises
    ------
    UsageError
        The command failed; the text is the command's own.
    """
    words = _split(line, "%distributed config")
    status, said = _run([sys.executable, "-m", "phalanx", "config", *words])
    if status:
        raise UsageError(said or f"phalanx config has ended with status {status}")


def _run(command: list[str]) -> tuple[int, str]:
    """Run a command; return its exit status and last line of stderr.

    The last line is printed only if the command succeeds: otherwise the error shows it.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, text=True
        )
        last = ""
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if last:
                    sys.stderr.write(last)
                last = line
            status = process.wait()
        finally:
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
        if not status and last:
            sys.stderr.write(last)
        out.seek(0)
        sys.stdout.write(out.read())
    return status, last.strip().removeprefix("phalanx config: ")
