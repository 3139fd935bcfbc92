"""Divide the output of one launch into the sections that its script prints.

A start costs more than what most scripts do, so one script has many sections.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

# Put before a script: one write for a line, so that lines of a rank are never mixed.
SAY = """
import sys
def say(section, *words):
    sys.stdout.write(f"{section}: {' '.join(map(str, words))}\\n")
"""
# Put after `SAY`: what torchrun would tell a rank, before the script and as often as it likes.
SAY_PLACE = """
import os
def say_place(section):
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT"
    say(section, *map(os.environ.get, names.split()))
say_place("place")
"""
_LINE = re.compile(r"\[(?P<label>[^]]+)\] (?P<section>\w+): (?P<text>.*)")


def by_section(output: str) -> dict[str, dict[str, list[str]]]:
    """Return the lines of each label, by section; every line must have a label and a section."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for line in output.splitlines():
        match = _LINE.fullmatch(line)
        assert match, f"a line without a label or a section: {line[:200]!r}"
        found[match["section"]][match["label"]].append(match["text"])
    return found


def on_all(ranks: Iterable[str], *texts: str) -> dict[str, list[str]]:
    """Return a section in which each of ``ranks`` says the same."""
    return {rank: list(texts) for rank in ranks}
