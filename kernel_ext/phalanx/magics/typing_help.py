"""Complete names on ranks, and run cells for `%autodistributed`.

`TypingHelp` asks the ranks for names and descriptions, and completes the options of our magics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from IPython.core.completer import (
    Completion,
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    completion_matcher,
)
from IPython.core.error import UsageError

from phalanx.errors import DistributedError
from phalanx.workspace import NoHelp, Workspace, parse_ranks

from .arguments import (
    auto_parser,
    cell_parser,
    line_parser,
    local_parser,
    next_words,
    parse,
)
from .patches import Patches

# Cells that begin with these run in the notebook: our magics, and those that load our magics.
_OWN = (
    "%%distributed",
    "%%rank",
    "%%local",
    "%distributed",
    "%autodistributed",
    "%load_ext",
    "%reload_ext",
    "%unload_ext",
)

_CELL = re.compile(r"\s*%%(distributed|(?P<rank>rank))(?P<options>[ \t][^\n]*)?\n")
_LINE = re.compile(r"\s*(?P<magic>%%?\w+)[ \t]+(?P<typed>[^\n]*)\Z")
_FIRST_WORD = re.compile(r"\s*%{1,2}\w*\Z")
_EMPTY = re.compile(r"%%(distributed|local)\b")
_PARSERS = {
    "%distributed": line_parser,
    "%%distributed": cell_parser,
    "%autodistributed": auto_parser,
    "%%local": local_parser,
}


class AutoDistributed:
    """Puts `%%distributed` before each cell while it is on."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self.is_on = self._is_paused = False

    def set(self, is_on: bool) -> None:
        """Switch on or off; idempotent."""
        transformers = self._shell.input_transformers_cleanup
        if is_on and not self.is_on:
            transformers.append(self._transform)
        elif self.is_on and not is_on:
            transformers.remove(self._transform)
        self.is_on = is_on

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take no cell inside the context."""
        was_paused, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = was_paused

    def takes(self, cell: str) -> bool:
        """Whether a cell without `%%distributed` runs on the ranks."""
        return self.is_on and not self._is_paused and not cell.lstrip().startswith(_OWN)

    def _transform(self, lines: list[str]) -> list[str]:
        """Put `%%distributed` before a cell's lines, as IPython's transformer.

        Each line contains its line end.
        """
        cell = "".join(lines)
        return ["%%distributed\n", *lines] if cell.strip() and self.takes(cell) else lines

    # With this flag IPython skips the transformer when it checks whether a cell is complete (in a
    # terminal, at Enter). Otherwise each cell would be complete only after an empty line, as a cell
    # magic is.
    _transform.has_side_effects = True  # type: ignore[attr-defined]


@dataclass(frozen=True)
class RankText:
    """The part of a cell that the ranks run.

    ``code`` begins at ``start`` of the cell; ``options`` are the magic's.
    """

    code: str
    start: int
    options: str


def rank_text(cell: str, cursor: int, auto: Callable[[str], bool]) -> RankText | None:
    """Find the part of a cell that the ranks run.

    Returns None if the cursor is not in that part. ``auto(cell)`` says whether a cell without
    ``%%distributed`` runs on the ranks.
    """
    found = _CELL.match(cell)
    if found is not None:
        start = found.end()
        options = ("--ranks " if found["rank"] else "") + (found["options"] or "")
        return RankText(cell[start:], start, options) if cursor >= start else None
    # A magic's name at the beginning may be one of ours, and the ranks do not have our magics.
    if _FIRST_WORD.match(cell[:cursor]) or not auto(cell):
        return None
    return RankText(cell, 0, "")


def keep_empty_body(lines: list[str]) -> list[str]:
    """Let our cell magics run without a body.

    IPython refuses ``%%distributed --help`` otherwise.
    """
    return [*lines, "\n"] if len(lines) == 1 and _EMPTY.match(lines[0]) else lines


# With this flag IPython skips the transformer when it checks whether a cell is complete. Otherwise,
# in a terminal, an empty line would end a cell that has only begun.
keep_empty_body.has_side_effects = True  # type: ignore[attr-defined]


class TypingHelp:
    """Answers a shell's completions and inspections from the ranks.

    The shell's own answer is used for text that does not run on ranks, without a running workspace,
    and (for completions) if no rank answers in time. The shell may ask on any thread.
    """

    def __init__(
        self, shell: Any, auto: AutoDistributed, workspace: Callable[[], Workspace | None]
    ) -> None:
        self._shell = shell
        self._auto = auto
        self._workspace = workspace

    def install(self, patches: Patches) -> None:
        completer = self._shell.Completer
        # Replace `completions` itself: a matcher cannot hide the notebook's names when a rank finds
        # none, because IPython respects `suppress` only together with matches.
        patches.replace(completer, "completions", self._completions)
        patches.replace(self._shell.input_transformer_manager, "check_complete", _check_complete)
        patches.add(completer.custom_matchers, self.options)
        patches.add(self._shell.input_transformers_cleanup, keep_empty_body)
        kernel = getattr(self._shell, "kernel", None)
        if kernel is not None:
            patches.replace(kernel, "do_inspect", self._inspect)

    @completion_matcher(identifier="phalanx.options", priority=1, api_version=2)  # type: ignore[untyped-decorator]
    def options(self, context: CompletionContext) -> SimpleMatcherResult:
        """Complete the words after our magics.

        The result, if any, replaces completions of names and files.
        """
        line = _LINE.match(context.text_until_cursor)
        make_parser = _PARSERS.get(line["magic"]) if line else None
        if line is None or make_parser is None:
            return {"completions": [], "suppress": False}
        fragment, words = next_words(make_parser(), line["typed"])
        return {
            "completions": [SimpleCompletion(word, type="param") for word in words],
            "matched_fragment": fragment,
            "ordered": True,
            "suppress": True,
        }

    def _concerned(self, cell: str, cursor: int) -> tuple[Workspace, RankText] | None:
        """Return the workspace to ask, and the text to ask about.

        Returns None if no rank is to be asked.
        """
        workspace = self._workspace()
        if workspace is None or not workspace.is_running:
            return None
        text = rank_text(cell, cursor, self._auto.takes)
        return None if text is None else (workspace, text)

    def _completions(
        self, here: Callable[[str, int], Iterator[Any]], text: str, offset: int
    ) -> Iterator[Any]:
        concerned = self._concerned(text, offset)
        if concerned is None:
            yield from here(text, offset)
            return
        workspace, body = concerned
        try:
            found = workspace.help.complete(
                body.code, offset - body.start, ranks=_ranks(body.options, workspace.size)
            )
        except DistributedError:
            yield from here(text, offset)
            return
        for match, kind, signature in zip(
            found.matches, found.kinds, found.signatures, strict=True
        ):
            yield Completion(
                found.start + body.start,
                found.end + body.start,
                match,
                type=kind,
                signature=signature,
                _origin="phalanx",
            )

    def _inspect(
        self,
        here: Callable[..., Any],
        code: str,
        cursor_pos: int,
        detail_level: int = 0,
        omit_sections: Any = (),
    ) -> Any:
        concerned = self._concerned(code, cursor_pos)
        if concerned is None:
            return here(code, cursor_pos, detail_level, omit_sections)
        workspace, body = concerned
        try:
            found = workspace.help.inspect(
                body.code,
                cursor_pos - body.start,
                detail=detail_level,
                ranks=_ranks(body.options, workspace.size),
            )
        except NoHelp as error:
            return _inspect_reply(str(error))
        except DistributedError:
            return here(code, cursor_pos, detail_level, omit_sections)
        if found is None:
            return {"status": "ok", "found": False, "data": {}, "metadata": {}}
        return _inspect_reply(f"{found.text}\nRank:        {found.rank}")


def _check_complete(here: Callable[[str], tuple[str, int | None]], cell: str) -> Any:
    """Say whether a cell is complete, and the next line's indent.

    IPython looks at no code below a cell magic: it would not indent below ``for i in x:``.
    """
    status, indent = here(cell)
    body = rank_text(cell, len(cell), lambda _: False)
    if status == "incomplete" and body is not None:
        its_status, its_indent = here(body.code)
        indent = its_indent if its_status == status else indent
    return status, indent


def _inspect_reply(text: str) -> dict[str, Any]:
    return {"status": "ok", "found": True, "data": {"text/plain": text}, "metadata": {}}


def _ranks(options: str, size: int) -> tuple[int, ...] | None:
    """Return the ranks that a cell's options name.

    Returns None (all ranks) if the options name no ranks, or while they are incomplete.
    """
    try:
        text = parse(cell_parser(has_help=False), options).ranks
        return None if text is None else parse_ranks(text, size)
    except (UsageError, ValueError):
        return None
