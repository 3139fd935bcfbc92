"""Divide the output of one launch into the sections that its script prints.

A start costs more than what most scripts do, so one script has a section for each test.
"""

from __future__ import annotations

import re
from collections import defaultdict

__all__ = ["SAY", "by_section"]

# Put before a script: one write for a line, so that lines of a rank are never mixed.
SAY = """
import sys
def say(section, *words):
    sys.stdout.write(f"{section}: {' '.join(map(str, words))}\\n")
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
