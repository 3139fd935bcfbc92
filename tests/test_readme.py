"""What the README says can be typed: every word and option of it exists, and every word is in it."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from phalanx.cli._main import _parser
from phalanx.magics._arguments import (
    auto_parser,
    cell_parser,
    line_parser,
    local_parser,
    subcommands,
)

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
# What developers type is of other programs; so is what MPI's own options look like.
FOR_USERS = re.sub(r"(?s)## For developers.*?(?=\n## )", "", README)
COMMANDS = subcommands(_parser())
ACTIONS = subcommands(line_parser())
# `%distributed config` takes what `phalanx config` does.
PARSERS = {
    **{f"phalanx {name}": parser for name, parser in COMMANDS.items()},
    **{f"%distributed {name}": parser for name, parser in ACTIONS.items()},
    "%distributed config": COMMANDS["config"],
    "%%distributed": cell_parser(),
    "%autodistributed": auto_parser(),
    "%%local": local_parser(),
}
KNOWN = {option for parser in PARSERS.values() for option in parser._option_string_actions}


def typed() -> list[str]:
    """The pieces of code of the README, one a line, without comments."""
    blocks = re.findall(r"(?s)```\w*\n(.*?)```", FOR_USERS)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"(?s)```.*?```", "", FOR_USERS))
    lines = [line.partition("  #")[0] for block in blocks for line in block.splitlines()]
    return [re.sub(r"\s+", " ", piece).strip() for piece in [*lines, *spans]]


def options_of(piece: str) -> list[str]:
    """Options that are ours: what follows a script's name is the script's."""
    own = re.split(r"\S+\.py\b|ntasks-per-node=\S+", piece)
    return [
        option
        for part in own[:1] or [""]
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", part)
    ]


def parser_of(piece: str) -> argparse.ArgumentParser | None:
    """The parser that a whole line is for; None for an option alone."""
    found = [name for name in PARSERS if re.match(rf"{re.escape(name)}(?![\w-])", piece)]
    return PARSERS[max(found, key=len)] if found else None


@pytest.mark.parametrize("piece", [piece for piece in typed() if options_of(piece)])
def test_every_option_of_the_readme_exists(piece):
    if piece.startswith(("pip ", "salloc ", "chromium")):
        return
    parser = parser_of(piece)
    known = KNOWN if parser is None else parser._option_string_actions
    assert set(options_of(piece)) <= set(known)


def test_every_word_of_the_readme_exists():
    commands = set(re.findall(r"(?<![\w/])phalanx ([a-z]+)", " ".join(f"|{p}" for p in typed())))
    assert commands - {"as"} <= {*COMMANDS}  # import phalanx as px
    actions = {match[1] for p in typed() if (match := re.match(r"%distributed ([a-z]+)", p))}
    assert actions <= {*ACTIONS}


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_every_word_is_in_the_readme(name):
    word = name.rpartition(" ")[2]
    assert any(re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", piece) for piece in typed())


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_every_help_says_what_each_option_is_for(name):
    for action in PARSERS[name]._actions:
        assert action.help, f"{name} {action.option_strings or action.dest}"
    text = re.sub(r"\s+", " ", PARSERS[name].format_help())
    assert not re.search(r"\(default[^)]*\) \(default", text)  # said by hand, and by argparse


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_every_option_is_in_its_row_of_the_readme(name):
    options = [
        action.option_strings
        for action in PARSERS[name]._actions
        if action.option_strings and action.option_strings != ["-h", "--help"]
    ]
    if name == "%distributed config":  # as `phalanx config`
        return
    rows = [line for line in README.splitlines() if line.startswith(f"| `{name}")]
    if "as for `start`" in " ".join(rows):
        rows += [line for line in README.splitlines() if line.startswith("| `%distributed start`")]
    said = set(re.findall(r"(?<![\w-])-{1,2}[a-z][a-z-]*", " ".join(rows)))
    assert [names for names in options if not said & set(names)] == []
