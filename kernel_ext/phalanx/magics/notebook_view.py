"""Show ranks' output and prompts in a notebook.

The view only appends: each line is sent once, so the cost is that of the text (for pictures see
`figures`). Nothing is shown as HTML unless a rank displayed it as HTML.
"""

from __future__ import annotations

import select
import sys
import termios
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import zmq
from IPython.display import clear_output, display
from jupyter_client.session import extract_header

from phalanx.protocol import BootProgress, WorldTopology, format_ranks
from phalanx.rank import add_output
from phalanx.workspace import (
    WIDGET,
    CannotAsk,
    Clear,
    Display,
    OpenPrompt,
    Question,
    Status,
    StreamName,
    TerminalStatus,
    View,
    is_image,
)

from .figures import BYTES_PER_S, REDRAW_S, Figures, Named, publish

END_OF_INPUT = "\x04"  # a front end sends this for Ctrl-D, as ipykernel reads it

Label = Literal["rank", "host", "none"]
Message = dict[str, Any]
Error = TypeVar("Error", bound=BaseException)


def write(stream: StreamName, text: str) -> None:
    """Write text to this process's own stream at once."""
    target = sys.stderr if stream == "stderr" else sys.stdout
    target.write(text)
    target.flush()


class KernelPrompt:
    """An input request of a Jupyter kernel that can be polled.

    Output continues between polls. The protocol cannot withdraw a request: `close` leaves it open,
    and the front end drops it when the cell ends. An answer that still comes is discarded before
    the next question.
    """

    def __init__(self, kernel: Any, prompt: str, password: bool) -> None:
        if not kernel._allow_stdin:
            msg = (
                f"nobody can answer {prompt!r}: this front end has no input; "
                "give the value in the cell instead"
            )
            raise CannotAsk(msg)
        self._kernel = kernel
        self._socket = kernel.stdin_socket
        while self._socket.poll(0):
            self._socket.recv_multipart()
        request = kernel.session.send(
            self._socket,
            "input_request",
            {"prompt": prompt, "password": password},
            kernel.get_parent("shell"),
            ident=kernel._get_shell_context_var(kernel._shell_parent_ident),
        )
        self._id = request["header"]["msg_id"]

    def poll(self, timeout_s: float) -> tuple[str | None] | None:
        """Return the line in a tuple once it came, otherwise None.

        ``(None,)`` is the end of input.
        """
        if not self._socket.poll(int(timeout_s * 1000), zmq.POLLIN):
            return None
        _, reply = self._kernel.session.recv(self._socket, mode=zmq.NOBLOCK)
        if reply is None or reply["header"]["msg_type"] != "input_reply":
            return None
        # A front end that names the request it answers (JupyterLab does) may mean an older request.
        if reply["parent_header"].get("msg_id", self._id) != self._id:
            return None
        value = str(reply["content"].get("value", ""))
        return (None if value == END_OF_INPUT else value,)

    def close(self) -> None:
        """Do nothing: the protocol cannot withdraw the request."""


class TerminalPrompt:
    """A prompt in a terminal that can be polled.

    The terminal itself edits the line. If standard input is no terminal (a pipe, a file), the line
    is read in one blocking call: text that Python has buffered cannot be polled for.
    """

    def __init__(self, prompt: str, password: bool) -> None:
        self.is_open = True
        self._stdin = sys.stdin
        self._is_tty = self._stdin.isatty()
        self._settings: list[Any] | None = None
        if password and self._is_tty:
            self._settings = termios.tcgetattr(self._stdin)
            silent = [*self._settings]
            silent[3] &= ~termios.ECHO
            termios.tcsetattr(self._stdin, termios.TCSADRAIN, silent)
        write("stdout", prompt)

    def poll(self, timeout_s: float) -> tuple[str | None] | None:
        """Return the line in a tuple once it came, otherwise None.

        ``(None,)`` is the end of input (Ctrl-D).
        """
        if self._is_tty and not select.select([self._stdin], [], [], timeout_s)[0]:
            return None
        line = self._stdin.readline()
        return (line.rstrip("\n") if line else None,)

    def close(self) -> None:
        """Restore the terminal's settings.

        If the settings were changed, later output begins on a new line.
        """
        self.is_open = False
        if self._settings is not None:
            termios.tcsetattr(self._stdin, termios.TCSADRAIN, self._settings)
            self._settings = None
            write("stdout", "\n")


class KernelStatus(Status):
    """A status line in a display of its own.

    Jupyter cannot remove one output, and an emptied one would stay in the saved notebook as an
    output without data. So the last line stays. The same text again sends nothing.
    """

    is_shown = True

    def __init__(self) -> None:
        self._place = str(uuid.uuid4())
        self._text = ""

    def show(self, text: str) -> None:
        """Replace the line before; empty text sends nothing."""
        if text not in ("", self._text):
            publish(self._place, {"text/plain": text}, is_update=bool(self._text))
            self._text = text

    def cleared(self) -> None:
        """Show the next line in a new display."""
        self._text = ""


def status_for(shell: Any) -> Status:
    """Make the status line that this shell can show."""
    if hasattr(shell, "kernel"):
        # papermill, nbclient and nbconvert take no input, and nobody watches. Their saved notebook
        # would keep an empty output for each line, because Jupyter cannot remove one output.
        return KernelStatus() if shell.kernel._allow_stdin else Status()
    return TerminalStatus(sys.stdout)


class BootLine:
    """Status line of a start that shows the progress of hosts.

    One object shows one start. A start on one host shows nothing.
    """

    def __init__(self, shell: Any) -> None:
        self._status = status_for(shell)
        self._hosts: dict[int, BootProgress] = {}

    def take(self, progress: BootProgress) -> None:
        self._hosts[progress.host] = progress
        self._status.show(boot_text(self._hosts[index] for index in sorted(self._hosts)))

    def close(self) -> None:
        if self._hosts:
            self._status.show("")


def boot_text(hosts: Iterable[BootProgress]) -> str:
    """Write the status line of a start, hosts in their order.

    Examples
    --------
    >>> boot_text([
    ...     BootProgress(1, "b", "up", 2.31), BootProgress(2, "c", "failed", 0.1, "no route to host"),
    ...     BootProgress(3, "d", "starting", 1.0, "waits for a connection"),
    ... ])
    '▸ up: b (2.3 s) · starting: d (waits for a connection) · failed: c (no route to host)'
    """
    said: dict[str, list[str]] = {"up": [], "starting": [], "failed": []}
    for its in hosts:
        note = f"{its.seconds:.1f} s" if its.state == "up" else its.text
        said[its.state].append(f"{its.name} ({note})" if note else its.name)
    parts = [f"{state}: {', '.join(names)}" for state, names in said.items() if names]
    return "▸ " + " · ".join(parts)


def in_one_line(error: Error) -> Error:
    """Make IPython show an error without a traceback.

    The frames would be ours, not the user's. An error that renders itself (`CellError`) is left
    alone.
    """
    if not hasattr(error, "_render_traceback_"):
        text = str(error)
        line = f"{type(error).__name__}: {text}" if text else type(error).__name__
        error._render_traceback_ = lambda: [line]  # type: ignore[attr-defined]
    return error


def hosts_of(topology: WorldTopology) -> dict[int, str]:
    names = {host.index: host.name for host in topology.hosts}
    return {info.rank: names[info.host] for info in topology.ranks}


def _prefix(label: Label, hosts: Mapping[int, str], ranks: tuple[int, ...]) -> str:
    if label == "none":
        return ""
    if label == "rank":
        return f"[{format_ranks(ranks)}] "
    by_host: dict[str, list[int]] = {}
    for rank in ranks:
        by_host.setdefault(hosts.get(rank, "?"), []).append(rank)
    return f"[{', '.join(f'{host} {format_ranks(own)}' for host, own in by_host.items())}] "


class NotebookView(View):
    """Shows one cell in the shell where it was typed.

    ``label`` is what stands before each line: ``[0-1]``, ``[alpha 0-1]`` or nothing; ``hosts`` has
    the host name of each rank. ``named`` has the figures that ranks may update, of all cells.
    """

    def __init__(
        self,
        shell: Any,
        *,
        label: Label = "rank",
        hosts: Mapping[int, str] | None = None,
        named: Named | None = None,
        cell_number: int = 0,
    ) -> None:
        self._shell = shell
        self.cell_number = cell_number
        self._prefix = partial(_prefix, label, hosts or {})
        self._figures = Figures(self._prefix, {} if named is None else named)
        self._has_grids = False
        self._ranks: tuple[int, ...] = ()
        self._bars_place = str(uuid.uuid4())
        self._has_bars = False
        self._bars: Mapping[int, str] = {}
        self._texts: set[int] = set()  # ranks with lines in the cell that they have not cleared
        # Whether the cell shows more than lines of ranks, as the notebook's own around a call.
        self._has_more = not cell_number
        # A terminal has no place for progress bars: a bar's last state is printed as a line.
        self.shows_bars = hasattr(shell, "kernel")
        self._status = status_for(shell)
        self.shows_status = self._status.is_shown
        self._prompt: TerminalPrompt | None = None
        self._cell: dict[str, Any] = {}  # header of the request of the notebook's cell

    def begin(self, ranks: tuple[int, ...]) -> None:
        """Note the notebook's cell, and whether pictures share grids.

        In a kernel pictures share grids if the cell runs on several ranks.
        """
        if hasattr(self._shell, "kernel"):
            self._has_grids = len(ranks) > 1
            self._ranks = ranks
            self._cell = extract_header(self._shell.get_parent())

    def later(self) -> LateView:
        return LateView(self._shell, self._cell, self._prefix)

    def lines(self, stream: StreamName, lines: Sequence[tuple[tuple[int, ...], str]]) -> None:
        self._status.lift()
        for ranks, _ in lines:
            self._texts.update(ranks)
            self._figures.said(ranks)
        write(stream, "".join(f"{self._prefix(ranks)}{line}\n" for ranks, line in lines))

    def bars(self, bars: Mapping[int, str]) -> None:
        if not self.shows_bars:
            return
        text = "\n".join(
            f"{self._prefix((rank,))}{line}"
            for rank, bar in bars.items()
            for line in bar.split("\n")
        )
        self._bars = bars
        # Never an empty bundle: nbconvert warns of it in a saved notebook.
        publish(self._bars_place, {"text/plain": text}, is_update=self._has_bars)
        self._has_bars = True

    def display(self, ranks: tuple[int, ...], event: Display) -> None:
        """Show a value as text, or a figure below its ranks.

        Pictures of several ranks stand side by side; `refresh` draws them.
        """
        self._has_more = True
        self._status.lift()
        if self._has_grids and is_image(event.data):
            self._figures.show(event, ranks)
            return
        if self._has_grids and WIDGET in event.data:
            self._figures.show_widget(event, self._ranks)
            return
        text = event.data.get("text/plain", "")
        label = self._prefix(ranks) + ("Out:" if event.is_result else "")
        if all(kind == "text/plain" for kind in event.data) and not event.display_id:
            self._figures.said(ranks)
            separator = "\n" if "\n" in text else " " * label.endswith(":")
            write("stdout", f"{label}{separator}{text}\n")
            return
        if self._figures.is_new(event) and label.strip():
            self._figures.said(ranks)
            write("stdout", f"{label.strip()}\n")
        self._figures.show(event)

    def clear(self, event: Clear) -> None:
        """Clear a rank's figures and lines; new figures take the places.

        A front end clears whole cells: lines stay until all ranks with lines have cleared theirs, and
        if the cell shows more than lines.
        """
        self._figures.clear(event.rank, wait=event.wait)
        if self._has_more or not self.shows_bars or not self._texts:
            return
        self._texts.discard(event.rank)
        if not self._texts:
            clear_output(wait=event.wait)
            self._status.cleared()
            if self._has_bars:
                self._has_bars = False
                self.bars(self._bars)

    def refresh(self, now_s: float) -> float | None:
        return self._figures.refresh(now_s)

    def ask(self, question: Question) -> OpenPrompt:
        """Ask once for all ranks that wait, and name them."""
        who = f"[{format_ranks(question.ranks)}]"
        sys.stdout.flush()
        sys.stderr.flush()
        self._has_more = True
        self._status.lift()
        self._figures.settle()
        prompt = f"{who} {question.prompt}"
        if (kernel := getattr(self._shell, "kernel", None)) is None:
            self._prompt = TerminalPrompt(prompt, question.password)
            return self._prompt
        return KernelPrompt(kernel, prompt, question.password)

    def notice(self, text: str) -> None:
        self._has_more = True
        self._status.lift()
        self._figures.settle()
        write("stderr", f"phalanx: {text}\n")

    def status(self, text: str) -> None:
        """Show the status of a long cell.

        A terminal shows none while a prompt is open, because a person types on that line.
        """
        if self._prompt is None or not self._prompt.is_open:
            self._status.show(text)


class TabsView(NotebookView):
    """Shows each rank's text, figures and widgets in a tab (``--view tabs``).

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


class LateView(View):
    """Shows output that ranks send after their cell has ended.

    In a notebook the output appears below that cell. The view sends to the front end itself,
    because ``sys.stdout`` belongs to the cell that runs now. A terminal shows the output at its
    current line.
    """

    def __init__(
        self, shell: Any, cell: dict[str, Any], prefix: Callable[[tuple[int, ...]], str]
    ) -> None:
        self._shell = shell
        self._cell = cell
        self._prefix = prefix

    def lines(self, stream: StreamName, lines: Sequence[tuple[tuple[int, ...], str]]) -> None:
        self._print(stream, "".join(f"{self._prefix(ranks)}{line}\n" for ranks, line in lines))

    def display(self, ranks: tuple[int, ...], event: Display) -> None:
        """Show a figure below a line that names its ranks."""
        prefix, kinds = self._prefix(ranks), event.data.keys()
        text = str(event.data.get("text/plain", ""))
        if kinds <= {"text/plain"} or not self._cell:
            self._print("stdout", f"{prefix}{text}\n")
            return
        if prefix:
            self._print("stdout", f"{prefix.strip()}\n")
        self._send(
            "display_data", {"data": event.data, "metadata": event.metadata, "transient": {}}
        )

    def notice(self, text: str) -> None:
        self._print("stderr", f"phalanx: {text}\n")

    def _print(self, stream: StreamName, text: str) -> None:
        if self._cell:
            self._send("stream", {"name": stream, "text": text})
        else:
            write(stream, text)

    def _send(self, kind: str, content: dict[str, Any]) -> None:
        kernel = self._shell.kernel
        kernel.session.send(kernel.iopub_socket, kind, content, parent=self._cell)
