"""Check the README and the guide: every word and option in them exists, and every link resolves.

The README is short, and has one table at most.
"""

from __future__ import annotations

import argparse
import re

import pytest
from support.places import ROOT
from support.reference_page import COMMANDS, MAGICS

_GUIDE = ROOT / "notebooks" / "guide"
_FOLDERS = {"README.md": ROOT, **{path.name: _GUIDE for path in _GUIDE.glob("*.md")}}
PAGES = {name: (folder / name).read_text(encoding="utf-8") for name, folder in _FOLDERS.items()}
README = PAGES["README.md"]
# Pages with other programs' options: developers' tools, other tools' commands (`test_guide` reads
# the columns that are ours), and the page that is written from the parsers themselves.
_OTHERS = {"for_developers.md", "coming_from_other_tools.md", "reference.md"}
FOR_USERS = "\n".join(text for name, text in PAGES.items() if name not in _OTHERS)
# `%distributed config` takes what `phalanx config` does.
PARSERS = {
    **{f"phalanx {name}": parser for name, parser in COMMANDS.items()},
    **{name: parser for name, parser in MAGICS.items() if name != "%distributed"},
    "%distributed config": COMMANDS["config"],
}
KNOWN = {option for parser in PARSERS.values() for option in parser._option_string_actions}
MOST_WORDS = 900
MOST_COLUMNS = 120


def typed() -> list[str]:
    """Return the pieces of code of the pages, one a line, without comments."""
    blocks = re.findall(r"(?s)```\w*\n(.*?)```", FOR_USERS)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"(?s)```.*?```", "", FOR_USERS))
    lines = [line.partition("  #")[0] for block in blocks for line in block.splitlines()]
    pieces = {re.sub(r"\s+", " ", piece).strip() for piece in [*lines, *spans]}
    return sorted(pieces)


def options_of(piece: str) -> list[str]:
    """Return the options that are ours: what follows a script's name is the script's."""
    own = re.split(r"\S+\.py\b|ntasks-per-node=\S+", piece)
    return [
        option
        for part in own[:1] or [""]
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", part)
    ]


def parser_of(piece: str) -> argparse.ArgumentParser | None:
    """Return the parser that a whole line is for; None for an option alone."""
    found = [name for name in PARSERS if re.match(rf"{re.escape(name)}(?![\w-])", piece)]
    return PARSERS[max(found, key=len)] if found else None


@pytest.mark.parametrize("piece", [piece for piece in typed() if options_of(piece)])
def test_every_option_of_the_pages_exists(piece):
    if piece.startswith(("pip ", "salloc ")):
        return
    parser = parser_of(piece)
    known = KNOWN if parser is None else parser._option_string_actions
    assert set(options_of(piece)) <= set(known)


def test_every_word_of_the_pages_exists():
    commands = set(re.findall(r"(?<![\w/])phalanx ([a-z]+)", " ".join(f"|{p}" for p in typed())))
    assert commands - {"as"} <= {*COMMANDS}  # import phalanx as px
    actions = {match[1] for p in typed() if (match := re.match(r"%distributed ([a-z]+)", p))}
    assert actions <= {name.rpartition(" ")[2] for name in MAGICS}


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_every_word_is_explained_on_a_page(name):
    word = name.rpartition(" ")[2]
    assert any(re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", piece) for piece in typed())


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_every_help_says_what_each_option_is_for(name):
    for action in PARSERS[name]._actions:
        assert action.help, f"{name} {action.option_strings or action.dest}"
    text = re.sub(r"\s+", " ", PARSERS[name].format_help())
    assert not re.search(r"\(default[^)]*\) \(default", text)  # said by hand, and by argparse


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_every_option_is_in_its_section_of_the_reference(name):
    title = "phalanx config" if name == "%distributed config" else name
    (section,) = re.findall(
        rf"(?ms)^### `{re.escape(title)}`$(.*?)(?=^#{{2,3}} |\Z)", PAGES["reference.md"]
    )
    said = set(re.findall(r"(?<![\w-])-{1,2}[a-z][a-z-]*", section))
    options = {*PARSERS[name]._option_string_actions} - {"-h", "--help"}
    assert options <= said


def test_the_readme_is_short():
    assert len(README.split()) <= MOST_WORDS
    assert [line for line in README.splitlines() if len(line) > MOST_COLUMNS] == []
    assert len(re.findall(r"(?m)^\|[-:| ]+\|$", README)) <= 1


def test_the_readme_links_to_each_page_of_the_guide():
    names = {*_FOLDERS} - {"README.md"}
    assert {f"notebooks/guide/{name}" for name in names} <= set(links(README))


def links(text: str) -> list[str]:
    """Return the targets of the links and pictures of a page, those in code left out."""
    prose = re.sub(r"(?s)```.*?```|`[^`\n]*`", "", text)
    return re.findall(r"\]\(([^)\s]+)\)", prose)


def anchors(text: str) -> set[str]:
    """Return the names that GitHub gives to the headings of a page."""
    titles = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?s)```.*?```", "", text))
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", sorted(PAGES))
def test_every_relative_link_resolves(name):
    relative = [link for link in links(PAGES[name]) if not re.match(r"\w+:", link)]
    for link in relative:
        path, _, anchor = link.partition("#")
        target = (_FOLDERS[name] / path) if path else _FOLDERS[name] / name
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link


@pytest.mark.parametrize("name", sorted({*PAGES} - {"README.md"}))
def test_the_pages_of_the_guide_link_inside_the_notebooks_only(name):
    """`phalanx lab` copies the notebooks' folder without the rest of the repository."""
    outside = [link for link in links(PAGES[name]) if link.startswith("../../")]
    assert outside == []
