"""Help while typing: the ranks complete and describe their own names, our magics their options.

It knows where IPython asks for help and what of a cell the ranks run; the answers are the
workspace's and the parsers'.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from IPython.core.completer import (
    Completion,
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    completion_matcher,
)

from phalanx.errors import DistributedError
from phalanx.workspace import NoHelp, Workspace, parse_ranks

from ._arguments import (
    UsageMistake,
    auto_parser,
    cell_parser,
    line_parser,
    local_parser,
    parse,
)
from ._auto import AutoDistributed
from ._words import next_words

__all__ = ["RankText", "TypingHelp", "keep_empty_body", "rank_text"]

_CELL = re.compile(r"\s*%%distributed(?P<options>[ \t][^\n]*)?\n")
_LINE = re.compile(r"\s*(?P<magic>%%?\w+)[ \t]+(?P<typed>[^\n]*)\Z")
_FIRST_WORD = re.compile(r"\s*%{1,2}\w*\Z")
_EMPTY = re.compile(r"%%(distributed|local)\b")

_PARSERS = {
    "%distributed": line_parser,
    "%%distributed": cell_parser,
    "%autodistributed": auto_parser,
    "%%local": local_parser,
}


@dataclass(frozen=True)
class RankText:
    """What the ranks run of a cell: ``code`` begins at ``start``; ``options`` are the magic's."""

    code: str
    start: int
    options: str


def rank_text(cell: str, cursor: int, auto: Callable[[str], bool]) -> RankText | None:
    """Find what the ranks run of a cell; None if the cursor is not in it.

    ``auto(cell)`` says whether a cell without ``%%distributed`` runs on the ranks.
    """
    found = _CELL.match(cell)
    if found is not None:
        start = found.end()
        options = found["options"] or ""
        return RankText(cell[start:], start, options) if cursor >= start else None
    # The name of a magic at the beginning may be one of ours, which the ranks do not have.
    if _FIRST_WORD.match(cell[:cursor]) or not auto(cell):
        return None
    return RankText(cell, 0, "")


def keep_empty_body(lines: list[str]) -> list[str]:
    """Let our cell magics run without a body, for ``%%distributed --help`` (IPython refuses it)."""
    return [*lines, "\n"] if len(lines) == 1 and _EMPTY.match(lines[0]) else lines


# IPython then leaves it out where it asks whether a cell is complete: in a terminal an empty line
# would end the cell that has only begun.
keep_empty_body.has_side_effects = True  # type: ignore[attr-defined]


class TypingHelp:
    """Stands where a shell is asked for help, from `install` to `remove`.

    The shell's own answers are given where no rank is concerned, where no workspace runs, and
    (for completions) where no rank answers in time. Called by whatever thread the shell asks on.
    """

    def __init__(
        self, shell: Any, auto: AutoDistributed, workspace: Callable[[], Workspace | None]
    ) -> None:
        self._shell = shell
        self._auto = auto
        self._workspace = workspace
        self._undo = ExitStack()

    def install(self) -> None:
        """Begin."""
        completer = self._shell.Completer
        # A matcher cannot keep the notebook's names away where a rank finds none
        # (IPython heeds `suppress` only along with matches): `completions` itself is replaced.
        self._replace(completer, "completions", self._completions)
        self._add(completer.custom_matchers, self.options)
        self._add(self._shell.input_transformers_cleanup, keep_empty_body)
        kernel = getattr(self._shell, "kernel", None)
        if kernel is not None:
            self._replace(kernel, "do_inspect", self._inspect)

    def remove(self) -> None:
        """Leave the shell as it was; idempotent."""
        self._undo.close()

    def _add(self, values: list[Any], value: Any) -> None:
        values.append(value)
        self._undo.callback(values.remove, value)

    def _replace(self, owner: Any, name: str, ours: Callable[..., Any]) -> None:
        """Put ours, which gets the one before as its first argument, in place of a method."""
        before = getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: ours(before, *args, **kwargs))
        self._undo.callback(delattr, owner, name)

    # -- options of our magics ------------------------------------------------------------------

    @completion_matcher(identifier="phalanx.options", priority=1, api_version=2)  # type: ignore[untyped-decorator]
    def options(self, context: CompletionContext) -> SimpleMatcherResult:
        """Complete the words after our magics, in place of names and files if there are any."""
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

    # -- names of the ranks ---------------------------------------------------------------------

    def _concerned(self, cell: str, cursor: int) -> tuple[Workspace, RankText] | None:
        """Return the workspace that knows best, and the text it is asked about."""
        workspace = self._workspace()
        if workspace is None or not workspace.is_running or workspace.is_watching:
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


def _inspect_reply(text: str) -> dict[str, Any]:
    return {"status": "ok", "found": True, "data": {"text/plain": text}, "metadata": {}}


def _ranks(options: str, size: int) -> tuple[int, ...] | None:
    """Return the ranks that a cell's options name; all (None) while the options are in the making."""
    try:
        text = parse(cell_parser(has_help=False), options).ranks
        return None if text is None else parse_ranks(text, size)
    except (UsageMistake, ValueError):
        return None
