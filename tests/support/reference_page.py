"""Write `notebooks/guide/reference.md` from the parsers and the docstrings of the public names.

Run it from the repository, with an installed phalanx: ``PYTHONPATH=tests python -m support.reference_page``.
`tests/system/project/test_guide.py` compares its text with the page.
"""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from support.places import ROOT

import phalanx
from phalanx.cli.main import _parser
from phalanx.magics.arguments import (
    auto_parser,
    cell_parser,
    line_parser,
    local_parser,
    subcommands,
)

PAGE = ROOT / "notebooks" / "guide" / "reference.md"
COMMANDS = subcommands(_parser())
ACTIONS = subcommands(line_parser())
MAGICS = {
    "%distributed": line_parser(),
    **{f"%distributed {name}": parser for name, parser in ACTIONS.items()},
    "%%distributed": cell_parser(),
    "%autodistributed": auto_parser(),
    "%%local": local_parser(),
}
# One width for every terminal; `COLUMNS` has no effect.
_WIDTH = 120
_UNDERLINE = re.compile(r"(?m)^(\w[\w ]*)\n-{3,}$\n?")
_FIELDS = ("Parameters", "Returns", "Raises", "Attributes", "Yields")

_INTRODUCTION = """\
# Reference

Every command, magic and public name, with its options. A script writes this page from the help texts and the
docstrings of the installed package: `PYTHONPATH=tests python -m support.reference_page`.

- [Commands](#commands): what you type in a terminal.
- [Magics](#magics): what you type in a notebook.
- [Python names](#python-names): `import phalanx as px`.

Every command and magic also takes `-h` and `--help`.
"""


def _wrap(text: str, first: str = "", rest: str = "") -> str:
    return textwrap.fill(
        re.sub(r"\s+", " ", text).strip(),
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _plain(text: str) -> str:
    """Turn the markup of docstrings into Markdown's."""
    parts = text.replace("``", "`").split("`")
    return "`".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(parts))


def _paragraphs(text: str, indent: str = "") -> Iterator[str]:
    """Yield the paragraphs of a docstring, each wrapped; items of a list stay items."""
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        items = re.split(r"\n(?=\s*- )", block)
        yield "\n".join(
            _wrap(_plain(item.strip()[2:]), f"{indent}- ", f"{indent}  ")
            if item.lstrip().startswith("- ")
            else _wrap(_plain(item), indent, indent)
            for item in items
        )


def _fields(text: str) -> Iterator[str]:
    """Yield an item for each field of a numpydoc section: its name, its type, its text."""
    for entry in re.split(r"\n(?=\S)", text.strip("\n")):
        head, _, body = entry.partition("\n")
        name, colon, kind = head.partition(" : ")
        title = f"`{name}` ({_plain(kind)})" if colon else f"`{head.replace('`', '')}`"
        body = inspect.cleandoc(body)
        first, *more = re.split(r"\n\s*\n", body)
        yield _wrap(f"{title}: {_plain(first)}" if body else title, "- ", "  ")
        yield from (f"\n{paragraph}" for part in more for paragraph in _paragraphs(part, "  "))


def docstring(thing: Any) -> Iterator[str]:
    """Yield the blocks of Markdown that a numpydoc docstring becomes."""
    summary, *sections = _UNDERLINE.split(inspect.getdoc(thing) or "")
    if summary.strip():
        yield from _paragraphs(summary)
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        yield f"**{title}**"
        if title == "Examples":
            code = re.sub(r" *# doctest: \S+", "", body.strip())
            yield f"```python\n{code}\n```"
        elif title in _FIELDS:
            yield "\n".join(_fields(body))
        else:
            yield from _paragraphs(body)


def _help_of(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    values = {**vars(action), "prog": parser.prog}
    if action.choices is not None:
        values["choices"] = ", ".join(map(str, action.choices))
    text = parser._get_formatter()._get_help_string(action) or ""  # adds the default
    if isinstance(action, argparse.BooleanOptionalAction):  # Python 3.10 adds it to the text itself
        text = text.removesuffix(" (default: %(default)s)")
    return text % values


def _value_of(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if action.metavar is not None:
        return f" {action.metavar}"
    if action.choices is not None:
        return f" {{{','.join(map(str, action.choices))}}}"
    return f" {action.dest.upper()}"


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if action.dest == "help" or isinstance(action, argparse._SubParsersAction):
            continue
        if action.option_strings:
            name = ", ".join(f"`{option}{_value_of(action)}`" for option in action.option_strings)
        else:
            name = f"`{_value_of(action).strip()}`"
        yield _wrap(f"{name}: {_quoted(_help_of(parser, action))}", "- ", "  ")


def _quoted(text: str) -> str:
    """Put options into code, so that Markdown leaves their dashes as they are."""
    return re.sub(r"(?<![\w`-])(--[a-z][a-z-]*(?:='[^']*')?)(?![\w`])", r"`\1`", text)


def described(title: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the blocks for a parser: its description, its options, its examples."""
    yield f"### `{title}`"
    if parser.usage:
        yield f"```text\n{parser.usage % {'prog': parser.prog}}\n```"
    if parser.description:
        yield _wrap(_quoted(parser.description))
    options = "\n".join(_options(parser))
    if options:
        yield options
    if parser.epilog:
        yield f"```text\n{textwrap.dedent(parser.epilog).strip()}\n```"


def _signature(name: str, thing: Any) -> str:
    """Return a block with the names and defaults of the arguments, without types."""
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(thing).parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    return f"```python\n{_wrap(f'{name}{inspect.Signature(parameters)}', '', '    ')}\n```"


def _methods(owner: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that phalanx gives a class."""
    found = {
        name: value
        for base in reversed(owner.__mro__)
        if base.__module__.startswith("phalanx")
        for name, value in vars(base).items()
        if not name.startswith("_")
    }
    for name, value in sorted(found.items()):
        method = getattr(value, "__func__", value)
        if inspect.getdoc(method) and (inspect.isfunction(method) or isinstance(value, property)):
            yield name, method


def _public(name: str) -> Iterator[str]:
    thing = getattr(phalanx, name)
    if inspect.isfunction(thing):
        yield f"### `px.{name}`"
        yield _signature(f"px.{name}", thing)
        yield from docstring(thing)
        return
    yield f"### `px.{name}`"
    if isinstance(thing, type) and issubclass(thing, Exception):
        bases = ", ".join(f"`{base.__name__}`" for base in thing.__bases__)
        yield f"An exception, derived from {bases}."
    yield from docstring(thing)
    if thing is phalanx.nn:
        for each in thing.__all__:
            member = getattr(thing, each)
            yield f"#### `px.nn.{each}`"
            if inspect.isfunction(member):
                yield _signature(f"px.nn.{each}", member)
            yield from docstring(member)
    elif inspect.ismodule(thing):
        for each in ("Topology", "Bandwidth", "Monitor"):
            yield f"#### `px.{name}.{each}(ws)`"
            yield from docstring(getattr(thing, each))
    elif not issubclass(thing, Exception):
        for method_name, method in _methods(thing):
            yield f"#### `{name}.{method_name}`"
            if inspect.isfunction(method):
                yield _signature(f"{name}.{method_name}", method)
            yield from docstring(method)


def page() -> str:
    """Return the text of the reference page."""
    blocks = [_INTRODUCTION.strip(), "## Commands"]
    for name, parser in sorted(COMMANDS.items()):
        blocks += described(f"phalanx {name}", parser)
    blocks.append("## Magics")
    for name, parser in MAGICS.items():
        blocks += described(name, parser)
        if name == "%distributed config":
            blocks.append("The options are those of `phalanx config`.")
    blocks.append("## Python names")
    for name in phalanx.__all__:
        blocks += _public(name)
    lines = (line.rstrip() for line in "\n\n".join(blocks).splitlines())
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
