"""Run the subcommand, and report a user's mistake in one line.

Exit codes: 0 success, 1 failure, 2 wrong arguments, 130 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import phalanx
from phalanx.errors import DistributedError, did_you_mean, is_refused, say_refusal

# Each command's module, or a class of one, and its line in ``phalanx --help``. Only the module of
# the command that is asked for is imported: all of them take 0.4 s.
_COMMANDS = {
    "lab": ("lab", "open JupyterLab on the tutorials"),
    "launch": ("launch.command", "run a script on ranks"),
    "list": ("workspaces:ListCommand", "show the ranks that run on this machine"),
    "stop": ("workspaces:StopCommand", "end ranks by name"),
    "bench": ("bench", "measure an operation by size"),
    "doctor": ("doctor.command", "check this machine, or hosts, before ranks are started on them"),
    "config": ("config.command", "find out how hosts are joined, and write their hostfile"),
}


# Every other file that a command writes is named in the error.
_UNNAMED = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class _CliParser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        hint = "" if "; see phalanx " in message else f" (see {self.prog} --help)"
        self.exit(2, f"{self.prog}: {message}{hint}\n")


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults where they exist; keeps examples line by line."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        has_default = action.default not in (None, False) and action.default != []
        return super()._get_help_string(action) if has_default else action.help

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


def _command(name: str) -> Any:
    file, _, class_name = _COMMANDS[name][0].partition(":")
    module = importlib.import_module(f".{file}", __package__)
    return getattr(module, class_name) if class_name else module


def _parser(*names: str) -> argparse.ArgumentParser:
    """Return a parser for the commands ``names``; by default for all."""
    parser = _CliParser(
        prog="phalanx",
        description="One notebook cell, run by every rank, with collectives that never hang.",
        epilog="phalanx COMMAND --help says what a command takes. In a notebook: %load_ext phalanx, "
        "then %distributed --help.",
    )
    parser.add_argument("--version", action="version", version=f"phalanx {phalanx.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (_, line) in _COMMANDS.items():
        if names and name not in names:
            commands.add_parser(name, help=line)
            continue
        command = _command(name)
        sub = commands.add_parser(
            name,
            help=line,
            description=command.DESCRIPTION,
            epilog=getattr(command, "EPILOG", None),
            formatter_class=_Help,
        )
        command.add_arguments(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``phalanx`` and return its exit code.

    The arguments are ``argv``, or those of the process.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # as stderr does: a path may be no text
        sys.stdout.reconfigure(errors="backslashreplace")
    asked = next((word for word in words if not word.startswith("-")), None)
    parser = _parser(asked if asked in _COMMANDS else "--help")
    if not words:
        parser.print_help(sys.stderr)
        return 2
    if asked is not None and asked not in _COMMANDS:
        parser.error(f"there is no command '{asked}'; {did_you_mean(asked, _COMMANDS)}")
    try:
        words, kept = _split(words, asked)
    except ValueError as error:
        parser.error(f"{asked}: {error}")
    options, rest = parser.parse_known_args(words)
    rest += kept
    command = _command(options.command)
    if rest and not getattr(command, "PASSES_ON", False):
        parser.error(f"{options.command}: {_unknown(rest[0], parser, options.command)}")
    try:
        code: int = command.run(options, rest)
        print(end="", flush=True)  # a full disk is named here, not by Python at its end
        return code
    except BrokenPipeError:
        _print_nothing_more()  # the reader of the pipe has gone (`phalanx bench | head`)
        return 1
    except KeyboardInterrupt:
        print(f"phalanx {options.command}: interrupted", file=sys.stderr)
        return 130
    except (DistributedError, OSError, ValueError) as error:
        print(f"phalanx {options.command}: {_one_line(error)}", file=sys.stderr)
        is_asked_wrongly = isinstance(error, ValueError) and not isinstance(error, DistributedError)
        return 2 if is_asked_wrongly else 1
    except (MemoryError, RuntimeError) as error:
        if not is_refused(error):
            raise
        print(f"phalanx {options.command}: {say_refusal(error)}", file=sys.stderr)
        return 1


def _unknown(word: str, parser: argparse.ArgumentParser, command: str) -> str:
    """Report an unknown word and name the nearest option."""
    if not word.startswith("-"):
        return f"unknown argument '{word}'"
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    known = commands.choices[command]._option_string_actions
    return f"there is no option '{word}'; {did_you_mean(word.partition('=')[0], known)}"


def _split(words: list[str], asked: str | None) -> tuple[list[str], list[str]]:
    """Split off passed-on words, to hide them from argparse."""
    split_words = None if asked is None else getattr(_command(asked), "split_words", None)
    if asked is None or split_words is None:
        return words, []
    place = words.index(asked) + 1
    own, kept = split_words(words[place:])
    return [*words[:place], *own], kept


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, DistributedError) and error.strerror:
        if error.filename is None and error.errno in _UNNAMED:
            error.filename = "standard output"
            _print_nothing_more()
        return say_refusal(error)
    return " ".join(str(error).split()) or type(error).__name__


def _print_nothing_more() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
