"""How a cell's output looks in IPython: whole lines with their rank, values labelled.

Append-only: each line is sent once, so the cost is that of the text (of pictures: `_figures`).
Nothing becomes HTML that a rank did not display as HTML itself.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from IPython.display import publish_display_data

from phalanx.protocol import Topology
from phalanx.workspace import (
    Clear,
    Display,
    OpenPrompt,
    Question,
    StreamName,
    format_ranks,
    is_image,
)

from ._figures import Figures, Named
from ._prompt import TerminalPrompt, open_prompt
from ._status import status_for

__all__ = ["Label", "NotebookView", "hosts_of", "in_one_line"]

Label = Literal["rank", "host", "none"]
Error = TypeVar("Error", bound=BaseException)


def in_one_line(error: Error) -> Error:
    """Have IPython show an error without a traceback: its frames would be ours, not the user's.

    An error that says for itself how it looks (`CellError`) is left alone.
    """
    if not hasattr(error, "_render_traceback_"):
        text = str(error)
        line = f"{type(error).__name__}: {text}" if text else type(error).__name__
        error._render_traceback_ = lambda: [line]  # type: ignore[attr-defined]
    return error


def hosts_of(topology: Topology) -> dict[int, str]:
    """Name the host of each rank."""
    names = {host.index: host.name for host in topology.hosts}
    return {info.rank: names[info.host] for info in topology.ranks}


class NotebookView:
    """Shows one cell in the shell it was typed into.

    Parameters
    ----------
    label : {"rank", "host", "none"}
        What stands before each line: ``[0-1]``, ``[alpha 0-1]`` or nothing.
    hosts : mapping of int to str, optional
        The host of each rank by name, for ``label="host"``.
    named : dict, optional
        The figures that ranks may update, of all cells of a notebook.
    """

    def __init__(
        self,
        shell: Any,
        *,
        label: Label = "rank",
        hosts: Mapping[int, str] | None = None,
        named: Named | None = None,
    ) -> None:
        self._shell = shell
        self._label = label
        self._hosts = hosts or {}
        self._figures = Figures(self._prefix, {} if named is None else named)
        self._has_grids = False
        self._bars_id = ""
        self._status = status_for(shell)
        self._prompt: OpenPrompt | None = None

    def _prefix(self, ranks: tuple[int, ...]) -> str:
        if self._label == "none":
            return ""
        if self._label == "rank":
            return f"[{format_ranks(ranks)}] "
        by_host: dict[str, list[int]] = {}
        for rank in ranks:
            by_host.setdefault(self._hosts.get(rank, "?"), []).append(rank)
        return f"[{', '.join(f'{host} {format_ranks(own)}' for host, own in by_host.items())}] "

    def begin(self, ranks: tuple[int, ...]) -> None:
        """Note whether pictures of several ranks may come, which stand side by side."""
        self._has_grids = len(ranks) > 1 and hasattr(self._shell, "kernel")

    def lines(self, stream: StreamName, lines: Sequence[tuple[tuple[int, ...], str]]) -> None:
        """Print lines, each with its ranks."""
        self._status.lift()
        for ranks, _ in lines:
            self._figures.said(ranks)
        target = sys.stderr if stream == "stderr" else sys.stdout
        target.write("".join(f"{self._prefix(ranks)}{line}\n" for ranks, line in lines))
        target.flush()

    @property
    def shows_bars(self) -> bool:
        """A terminal has no place for them; the last state of a bar is printed as a line."""
        return hasattr(self._shell, "kernel")

    def bars(self, bars: Mapping[int, str]) -> None:
        """Draw progress in a place of its own, which is updated."""
        if not self.shows_bars:
            return
        text = "\n".join(
            f"{self._prefix((rank,))}{line}"
            for rank, bar in bars.items()
            for line in bar.split("\n")
        )
        is_update = bool(self._bars_id)
        self._bars_id = self._bars_id or str(uuid.uuid4())
        transient = {"display_id": self._bars_id}
        data = {"text/plain": text} if text else {}
        publish_display_data(data, {}, transient=transient, update=is_update)

    def display(self, ranks: tuple[int, ...], event: Display) -> None:
        """Show a value as text with its ranks, or a figure below a line that names them.

        Pictures of several ranks stand side by side; they are drawn when `refresh` is called.
        """
        self._status.lift()
        if self._has_grids and is_image(event.data):
            self._figures.show_picture(ranks, event)
            return
        text = event.data.get("text/plain", "")
        label = self._prefix(ranks) + ("Out:" if event.is_result else "")
        if all(kind == "text/plain" for kind in event.data) and not event.display_id:
            self._figures.said(ranks)
            separator = "\n" if "\n" in text else " " * label.endswith(":")
            self._print(f"{label}{separator}{text}\n")
            return
        if self._figures.is_new(event) and label.strip():
            self._figures.said(ranks)
            self._print(f"{label.strip()}\n")
        self._figures.show(event)

    def clear(self, event: Clear) -> None:
        """Take back the figures of a rank; the next one comes in their place."""
        self._figures.clear(event.rank, wait=event.wait)

    def refresh(self, now_s: float) -> float | None:
        """Draw the pictures that have come."""
        return self._figures.refresh(now_s)

    def _print(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def ask(self, question: Question) -> OpenPrompt:
        """Ask once for all ranks that wait, and say which."""
        who = f"[{format_ranks(question.ranks)}]"
        sys.stdout.flush()
        sys.stderr.flush()
        self._status.lift()
        self._figures.settle()
        self._prompt = open_prompt(self._shell, f"{who} {question.prompt}", question.password)
        return self._prompt

    def notice(self, text: str) -> None:
        """Print a line of our own."""
        self._status.lift()
        self._figures.settle()
        sys.stderr.write(f"phalanx: {text}\n")
        sys.stderr.flush()

    @property
    def shows_status(self) -> bool:
        """Whether there is a place for a status line."""
        return self._status.is_shown

    def status(self, text: str) -> None:
        """Show how a long cell stands; in a terminal not on the line where a person types."""
        if isinstance(self._prompt, TerminalPrompt) and self._prompt.is_open:
            return
        self._status.show(text)
