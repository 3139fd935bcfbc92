"""Chooses the subcommand and says a user's mistake in one line.

Exit codes: 0 done, 1 it could not be done, 2 it was asked wrongly, 130 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import phalanx
from phalanx.errors import DistributedError

from . import _bench, _config, _doctor, _lab, _launch, _list, _stop

__all__ = ["main"]

_COMMANDS: dict[str, Any] = {
    "lab": _lab,
    "launch": _launch,
    "list": _list,
    "stop": _stop,
    "bench": _bench,
    "doctor": _doctor,
    "config": _config,
}


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Defaults named where there are any, examples line by line as they are."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        is_told = action.default not in (None, False) and action.default != []
        return super()._get_help_string(action) if is_told else action.help

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="phalanx",
        description="One notebook cell, run by every rank, with collectives that never hang.",
        epilog="phalanx COMMAND --help says what a command takes. In a notebook: %load_ext phalanx, "
        "then %distributed --help.",
    )
    parser.add_argument("--version", action="version", version=f"phalanx {phalanx.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in _COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command.HELP,
            description=command.DESCRIPTION,
            epilog=getattr(command, "EPILOG", None),
            formatter_class=_Help,
        )
        command.add_arguments(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``phalanx`` with the given arguments.

    Parameters
    ----------
    argv : sequence of str, optional
        None: those of the process.

    Returns
    -------
    int
        The exit code.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    if not words:
        parser.print_help(sys.stderr)
        return 2
    asked = next((word for word in words if not word.startswith("-")), None)
    if asked is not None and asked not in _COMMANDS:
        near = difflib.get_close_matches(asked, _COMMANDS, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(_COMMANDS)}"
        parser.error(f"there is no command '{asked}'; {hint}")
    try:
        words, kept = _split(words, asked)
    except ValueError as error:
        parser.error(f"{asked}: {error}")
    options, rest = parser.parse_known_args(words)
    rest += kept
    command = _COMMANDS[options.command]
    if rest and not command.PASSES_ON:
        parser.error(f"{options.command}: {_unknown(rest[0], parser, options.command)}")
    try:
        code: int = command.run(options, rest)
        return code
    except BrokenPipeError:
        # The reader of a pipe went away (`phalanx bench | head`): nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print(f"phalanx {options.command}: interrupted", file=sys.stderr)
        return 130
    except (DistributedError, OSError, ValueError) as error:
        print(f"phalanx {options.command}: {_one_line(error)}", file=sys.stderr)
        is_asked_wrongly = isinstance(error, ValueError) and not isinstance(error, DistributedError)
        return 2 if is_asked_wrongly else 1


def _unknown(word: str, parser: argparse.ArgumentParser, command: str) -> str:
    """Say that a command has no such word, and which option is the nearest."""
    if not word.startswith("-"):
        return f"unknown argument '{word}'"
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    known = commands.choices[command]._option_string_actions
    near = difflib.get_close_matches(word.partition("=")[0], known, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(known)}"
    return f"there is no option '{word}'; {hint}"


def _split(words: list[str], asked: str | None) -> tuple[list[str], list[str]]:
    """Keep from argparse what a command says is not its own, whatever it looks like."""
    if asked is None or not hasattr(_COMMANDS[asked], "split_words"):
        return words, []
    place = words.index(asked) + 1
    own, kept = _COMMANDS[asked].split_words(words[place:])
    return [*words[:place], *own], kept


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
