"""Check that texts and names are in plain English: `tests/run lint` calls this.

The first line of a docstring is a verb and its object, in
at most 12 words. The words of `RIDDLES` mean nothing to a reader who does not know the project: they
stand in no docstring, comment, text for users, name or page.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("kernel_ext/", "widgets/")
FOLDERS = (*SOURCES, "native", "tests", "notebooks/guide", "README.md")
# The list of words itself, and a report with names of tests and of old commits.
PASSED_OVER = ("tests/tools/plain_english.py", "tests/tools/power_faults/")
MOST_WORDS = 12
# What a first line must not begin with: it would be a clause without a verb and an object.
CLAUSES = ("What", "Who", "Where", "Which", "Of which", "That which", "How many", "It ")
# No file of ours has these words.
METAPHORS = {
    "bystander": "observer",
    "courtesy": "scheduling class",
    "door": "server, endpoint",
    "doors": "servers, endpoints",
    "family": "group registry",
    "guest": "client",
    "hopeless": "impossible, deadlocked",
    "how-manieth": "number",
    "knock": "connection attempt",
    "knocks": "connection attempts",
    "knows nothing": "(say what it does)",
    "letter": "message",
    "letters": "messages",
    "lookout": "inspector",
    "newcomer": "replaced rank",
    "newcomers": "replaced ranks",
    "verdict": "result, failure attribution",
    "visitor": "session, client",
    "whoever": "the process, the caller",
}
# Nor has any of `SOURCES` these, nor a comment of the engine, nor a page of the guide.
VAGUE = {
    "heard": "answered, acknowledged",
    "last words": "last output",
    "mend": "repair, remedy",
    "mended": "repaired",
    "mends": "repairs",
    "pulse": "heartbeat",
    "seat": "slot",
    "seats": "slots",
    "steady": "(say which error it survives)",
    "told": "notified, shown",
    "whom": "(name it)",
    "whose": "(name it)",
}
# Plain English in a page, where a sentence has one owner.
IN_PAGES = ("whom", "whose")
TERMS = ("family",)  # in a name: the family of an address
_CODE = re.compile(r"``?[^`]*``?")
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_NATIVE_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_INNER_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def _finder(words: dict[str, str]) -> re.Pattern[str]:
    return re.compile(rf"\b({'|'.join(words)})\b", re.IGNORECASE)


_METAPHOR, _RIDDLE = _finder(METAPHORS), _finder(METAPHORS | VAGUE)
_OF_PAGES = _finder(
    {word: its for word, its in (METAPHORS | VAGUE).items() if word not in IN_PAGES}
)


def faults_of(text: str, find: re.Pattern[str]) -> Iterator[str]:
    """Yield a fault for each word that ``find`` finds outside of code spans."""
    for match in find.finditer(_CODE.sub("", text)):
        yield f"'{match[0]}' is a riddle; write: {(METAPHORS | VAGUE)[match[0].lower()]}"


def first_line_faults(text: str) -> Iterator[str]:
    """Yield what is wrong with the first line of a docstring."""
    first = text.split("\n\n", 1)[0].splitlines()[0]
    n_words = len(_CODE.sub("x", first).split())
    if n_words > MOST_WORDS:
        yield f"the first line has {n_words} words, more than {MOST_WORDS}: {first}"
    if first.startswith(CLAUSES):
        yield f"the first line is a clause, not a verb and its object: {first}"


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node gives to a thing."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr


def python_faults(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the fault of each fault in a Python file."""
    is_source = name.startswith(SOURCES)
    find = _RIDDLE if is_source else _METAPHOR
    words_of_names = _INNER_CAPITAL.sub(" ", text).replace("_", " ")
    has_riddle = find.search(words_of_names) is not None
    if not (is_source or has_riddle):
        return
    docstrings = set()
    nodes = list(ast.walk(ast.parse(text)))
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                docstrings.add(id(node.body[0].value))
                for fault in first_line_faults(docstring) if is_source else ():
                    yield node.body[0].lineno, fault
                for fault in faults_of(docstring, find):
                    yield node.body[0].lineno, fault
    if not has_riddle:
        return
    for node in nodes if is_source else ():
        text_of = node.value if isinstance(node, ast.Constant) else None
        # A text without a space is a key or a name.
        if isinstance(text_of, str) and " " in text_of and id(node) not in docstrings:
            for fault in faults_of(text_of, find):
                yield node.lineno, f"text: {fault}"
        for given in _names(node):
            for match in find.finditer(_INNER_CAPITAL.sub(" ", given).replace("_", " ")):
                if match[0].lower() not in TERMS:
                    yield node.lineno, f"name {given}: '{match[0]}' is a riddle"
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            for fault in faults_of(token.string, find):
                yield token.start[0], fault


def native_faults(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the fault of each fault in the comments of a C++ or TypeScript file."""
    for match in _NATIVE_COMMENT.finditer(text):
        find = _RIDDLE if name.startswith("native/") else _METAPHOR
        for fault in faults_of(match[0], find):
            yield text.count("\n", 0, match.start()) + 1, fault


def page_faults(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the fault of each fault in a page."""
    prose = _FENCED.sub(lambda match: "\n" * match[0].count("\n"), text)
    for number, line in enumerate(prose.splitlines(), 1):
        for fault in faults_of(line, _OF_PAGES):
            yield number, fault


FINDERS = {
    ".py": python_faults, ".pyi": python_faults, ".md": page_faults,
    ".cpp": native_faults, ".hpp": native_faults, ".ts": native_faults, ".tsx": native_faults,
}  # fmt: skip


def main(paths: list[str]) -> int:
    """Print the faults of ``paths``, or of all files under `FOLDERS`; return 1 if there is one."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", *(paths or FOLDERS)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    n_faults = 0
    for name in listed.stdout.splitlines():
        find = FINDERS.get(Path(name).suffix)
        if find is None or "/static/" in name or name.startswith(PASSED_OVER):
            continue
        for line, fault in find(name, (ROOT / name).read_text(encoding="utf-8")):
            print(f"{name}:{line}: {fault}")
            n_faults += 1
    print(f"{n_faults} faults" if n_faults else "plain")
    return 1 if n_faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
