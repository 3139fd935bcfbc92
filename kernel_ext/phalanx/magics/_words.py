"""The words that may come next after one of our magics, from its parser.

It knows argparse's parsers, nothing of IPython.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable

from ._arguments import subcommands

__all__ = ["next_words"]


def next_words(parser: argparse.ArgumentParser, typed: str) -> tuple[str, list[str]]:
    """Complete what was typed after a magic's name.

    Returns
    -------
    fragment : str
        The end of ``typed`` that is completed.
    words : list of str
        What may stand in its place.

    Examples
    --------
    >>> from phalanx.magics._arguments import auto_parser
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
        return map(str, getattr(option, "completed", None) or option.choices or ())
    positional = [
        str(choice)
        for action in parser._actions
        if not action.option_strings and not before
        for choice in action.choices or ()
    ]
    unused = [
        action.option_strings[-1]  # the long one
        for action in parser._actions
        if action.option_strings and not set(action.option_strings) & set(before)
    ]
    return [*positional, *sorted(unused, key="--help".__eq__)]
