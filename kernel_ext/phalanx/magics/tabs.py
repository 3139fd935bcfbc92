"""Show a cell's output in tabs, one for each rank: ``%%distributed --view tabs``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from IPython.display import display

from phalanx.protocol import format_ranks
from phalanx.rank import add_output
from phalanx.workspace import Clear, Display, StreamName

from .notebook_view import NotebookView
from .tables import BYTES_PER_S, REDRAW_S

Message = dict[str, Any]


class TabsView(NotebookView):
    """Shows each rank's text, figures and widgets in a tab.

    A tab is an ``Output`` widget, which is sent as a whole: a changed tab is sent at most 10 times
    a second, and a long one less often. Questions, notices and progress bars stand below the tabs.
    """

    def begin(self, ranks: tuple[int, ...]) -> None:
        super().begin(ranks)
        self._outputs: dict[int, tuple[Message, ...]] = dict.fromkeys(ranks, ())
        self._changed: set[int] = set()
        self._will_clear: set[int] = set()
        self._due_s = 0.0
        import ipywidgets

        self._tabs = {rank: ipywidgets.Output() for rank in ranks}
        names = [self._prefix((rank,)).strip(" []") or format_ranks((rank,)) for rank in ranks]
        titles = [f"rank {name}" if name.isdecimal() else name for name in names]
        display(ipywidgets.Tab(children=[*self._tabs.values()], titles=titles))

    def lines(self, stream: StreamName, lines: Sequence[tuple[tuple[int, ...], str]]) -> None:
        for ranks, line in lines:
            for rank in ranks:
                self._add(rank, "stream", {"name": stream, "text": f"{line}\n"})

    def display(self, ranks: tuple[int, ...], event: Display) -> None:
        for rank in ranks:
            self._add(rank, "display_data", {"data": event.data, "metadata": event.metadata})

    def clear(self, event: Clear) -> None:
        if event.wait:
            self._will_clear.add(event.rank)
        else:
            self._outputs[event.rank] = ()
            self._changed.add(event.rank)

    def _add(self, rank: int, kind: str, content: Message) -> None:
        before = () if rank in self._will_clear else self._outputs[rank]
        self._will_clear.discard(rank)
        self._outputs[rank] = add_output(before, kind, content)
        self._changed.add(rank)

    def refresh(self, now_s: float) -> float | None:
        if not self._changed:
            return super().refresh(now_s)
        if now_s < self._due_s:
            return self._due_s
        nbytes = 0
        for rank in self._changed:
            self._tabs[rank].outputs = self._outputs[rank]
            nbytes += sum(len(str(output)) for output in self._outputs[rank])
        self._changed.clear()
        self._due_s = now_s + max(REDRAW_S, nbytes / BYTES_PER_S)
        return super().refresh(now_s)
