"""Check the guide: names and options of other tools and of ours exist, and none is left out."""

from __future__ import annotations

import argparse
import importlib
import inspect
import re

import pytest
from project.test_readme import FOR_USERS, KNOWN, PAGES, options_of, parser_of
from support import reference_page
from support.reference_page import COMMANDS

import phalanx

PAGE = PAGES["coming_from_other_tools.md"]
_OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")
# Of each table of options: its heading, and our command, which is also the name of MLX's module.
TABLES = {"mlx.launch": "launch", "mlx.distributed_config": "config"}


def rows(text: str) -> list[list[str]]:
    """Return the cells of the rows of all tables."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def options_of_rows(name: str) -> list[tuple[set[str], set[str]]]:
    """Return the options of each row of a table of options: MLX's, and ours."""
    (section,) = re.findall(rf"(?ms)^### The options of {re.escape(name)}$(.*?)(?=^#|\Z)", PAGE)
    head, *found = rows(section)
    assert head[:2] == [f"`{name}`", f"`phalanx {TABLES[name]}`"]
    return [(set(_OPTION.findall(row[0])), set(_OPTION.findall(row[1]))) for row in found]


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {*parser._option_string_actions} - {"-h", "--help"}


def parser_of_mlx(name: str, monkeypatch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    """Return the parser that a command of MLX makes before it reads its words."""
    module = importlib.import_module(f"mlx._distributed_utils.{TABLES[name]}")
    made = []

    def parse_known_args(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        made.append(parser)
        raise SystemExit

    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", parse_known_args)
    with pytest.raises(SystemExit):
        module.main()
    (parser,) = made
    return parser


@pytest.mark.parametrize("name", TABLES)
def test_every_option_of_ours_has_a_row(name):
    said = set().union(*(ours for _, ours in options_of_rows(name)))
    assert said == options(COMMANDS[TABLES[name]])


@pytest.mark.parametrize("name", TABLES)
def test_every_option_of_mlx_has_a_row(name, monkeypatch):
    pytest.importorskip("mlx.core")
    said = set().union(*(theirs for theirs, _ in options_of_rows(name)))
    assert said == options(parser_of_mlx(name, monkeypatch))


@pytest.mark.parametrize("name", TABLES)
def test_an_option_that_both_have_stands_in_one_row(name):
    ours = options(COMMANDS[TABLES[name]])
    assert [row for row in options_of_rows(name) if not row[0] & ours <= row[1]] == []


def typed_as_ours() -> list[str]:
    """Return the pieces of code of all columns but a table's first, and our commands elsewhere."""
    cells = [cell for row in rows(PAGE) for cell in row[1:]]
    of_tables = [span for cell in cells for span in re.findall(r"`([^`]+)`", cell)]
    rest = re.sub(r"(?m)^\|.*$", "", PAGE)
    return [*of_tables, *(span for span in re.findall(r"`([^`]+)`", rest) if parser_of(span))]


@pytest.mark.parametrize("piece", sorted({p for p in typed_as_ours() if options_of(p)}))
def test_every_option_named_as_ours_exists(piece):
    parser = parser_of(piece)
    known = KNOWN if parser is None else parser._option_string_actions
    assert set(options_of(piece)) <= set(known)


def names(of: str) -> list[str]:
    """Return the names behind ``px.``, ``ws.`` or ``px.init().`` on the pages, without their calls."""
    text = f"{PAGE}\n{FOR_USERS}"
    return sorted(set(re.findall(rf"(?<![\w.]){re.escape(of)}\.([a-zA-Z_.]*\w)", text)))


@pytest.mark.parametrize("name", names("px"))
def test_every_name_of_px_exists(name):
    first, *rest = name.split(".")
    assert first in phalanx.__all__
    thing = getattr(phalanx, first)
    for part in rest:
        thing = getattr(thing, part)


@pytest.mark.parametrize("name", sorted({*names("px.init()"), *names("Group"), *names("world")}))
def test_every_name_of_a_group_exists(name):
    assert hasattr(phalanx.Group, name)


@pytest.mark.parametrize("name", names("ws"))
def test_every_name_of_a_workspace_exists(name):
    of_objects = set().union(*map(inspect.get_annotations, phalanx.Workspace.__mro__))
    assert hasattr(phalanx.Workspace, name) or name in of_objects


def test_the_reference_is_up_to_date():
    """If not: PYTHONPATH=tests python -m support.reference_page."""
    assert PAGES["reference.md"] == reference_page.page()


def test_the_reference_does_not_depend_on_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert PAGES["reference.md"] == reference_page.page()


def test_the_reference_has_every_public_name():
    titles = set(re.findall(r"(?m)^### `px\.(\w+)`$", PAGES["reference.md"]))
    assert titles == {*phalanx.__all__}
