"""The magics: one object a shell, holding the workspace of its notebook.

A user's mistake ends the cell in one line (IPython's UsageError), never in our own frames.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_cell_magic, line_magic, magics_class
from IPython.display import display

from phalanx import widgets
from phalanx.errors import DistributedError
from phalanx.hosts import recognise_job
from phalanx.workspace import (
    Workspace,
    format_workspaces,
    grouped,
    name_ranks,
    parse_ranks,
    say_replaced,
    say_trace,
)

from ._arguments import (
    HelpShown,
    UsageMistake,
    auto_parser,
    cell_parser,
    line_parser,
    local_parser,
    parse,
)
from ._auto import AutoDistributed
from ._boot_line import BootLine
from ._config import show_config
from ._debug import debug_ranks
from ._figures import Named
from ._plans import planned_world
from ._start_arguments import start_options
from ._sweeps import Sweeps
from ._typing import TypingHelp
from ._view import Label, NotebookView, hosts_of, in_one_line

__all__ = ["DistributedMagics"]

NOT_STARTED = "there are no ranks yet; start them with %distributed start -n 4"


@contextmanager
def _in_users_words() -> Iterator[None]:
    """End the cell in one line for what a user can mend; ``--help`` is no error."""
    try:
        yield
    except HelpShown:
        return
    except (UsageMistake, ValueError) as error:
        if isinstance(error, DistributedError):
            raise in_one_line(error) from None
        raise UsageError(str(error)) from None
    except (DistributedError, TimeoutError, KeyboardInterrupt) as error:
        raise in_one_line(error) from None


@magics_class
class DistributedMagics(Magics):  # type: ignore[misc]
    """`%distributed` and `%%distributed` of one shell."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._workspace: Workspace | None = None
        self._auto = AutoDistributed(shell)
        self._named: Named = {}
        self._live: weakref.WeakSet[widgets.Topology | widgets.Monitor] = weakref.WeakSet()
        self._sweeps = Sweeps(shell)
        self._typing = TypingHelp(shell, self._auto, lambda: self._workspace)

    @property
    def workspace(self) -> Workspace | None:
        """The workspace of this notebook, while there is one."""
        return self._workspace

    def open(self) -> None:
        """Begin to help while typing."""
        self._typing.install()

    def close(self) -> None:
        """Stop the ranks and leave the shell as it was; idempotent."""
        self._typing.remove()
        self._stop()

    def _keep_stills(self) -> None:
        if self._live:  # else nothing of widgets need be loaded for it
            widgets.keep_stills(self._live, is_forced=True)

    def _stop(self) -> None:
        self._auto.set(False)
        if self._workspace is not None:
            # The file is to have what the ranks did last, while they can be looked at yet.
            try:
                self._keep_stills()
            finally:  # a Ctrl-C meanwhile
                if self._workspace.is_watching:
                    self._workspace.detach()
                else:
                    self._workspace.stop()
                self._forget()

    def _forget(self) -> None:
        self._named.clear()
        self._workspace = None

    @line_cell_magic  # type: ignore[untyped-decorator]
    def distributed(self, line: str, cell: str | None = None) -> None:
        """Run a cell on the ranks, or (as a line) start, show and stop them; see --help."""
        with _in_users_words():
            if cell is None:
                self._line(line)
            else:
                self._cell(line, cell)

    @line_magic  # type: ignore[untyped-decorator]
    def autodistributed(self, line: str) -> None:
        """Run every cell on the ranks (`on`), or only those that say so (`off`)."""
        with _in_users_words():
            is_on = parse(auto_parser(), line).state == "on"
            if is_on:
                self._running()
            self._auto.set(is_on)

    @cell_magic  # type: ignore[untyped-decorator]
    def local(self, line: str, cell: str) -> None:
        """Run a cell here, in the notebook's own kernel, while %autodistributed is on."""
        with _in_users_words():
            parse(local_parser(), line)
            with self._auto.paused():
                self.shell.run_cell(cell)

    # -- cells --------------------------------------------------------------------------------

    def _cell(self, line: str, cell: str) -> None:
        options = parse(cell_parser(), line)
        workspace = self._running()
        ranks = None if options.ranks is None else parse_ranks(options.ranks, workspace.size)
        workspace.run(
            cell,
            ranks=ranks,
            timeout=options.timeout,
            view=self._view(workspace, options.label),
            max_lines=options.max_lines,
            every_start=options.every_start,
        )

    def _view(self, workspace: Workspace, label: Label = "rank") -> NotebookView:
        hosts = hosts_of(workspace.topology()) if label == "host" else {}
        return NotebookView(self.shell, label=label, hosts=hosts, named=self._named)

    # -- lines --------------------------------------------------------------------------------

    def _line(self, line: str) -> None:
        first, _, words = line.strip().partition(" ")
        if first == "config":  # its words are `phalanx config`'s own
            show_config(words)
            return
        options = parse(line_parser(), line)
        action: Callable[[Any], None] = getattr(self, f"_do_{options.action}")
        action(options)

    def _running(self) -> Workspace:
        if self._workspace is None:
            raise UsageMistake(NOT_STARTED)
        return self._workspace

    def _do_start(self, options: Any) -> None:
        self._make_room()
        if note := recognise_job(options, options.n):
            print(note)  # noqa: T201 - the answer
        line = BootLine(self.shell)
        try:
            workspace = Workspace.start(**start_options(options), progress=line.take)
        except DistributedError as error:
            raise UsageMistake(str(error)) from None
        finally:
            line.close()
        self._adopt(workspace)
        self._do_status(options)

    def _make_room(self) -> None:
        """Let go of ranks that are gone or only watched; others stay."""
        workspace = self._workspace
        if workspace is not None and workspace.is_running and not workspace.is_watching:
            msg = (
                f"{workspace.size} ranks run already in this notebook; "
                "end them first with %distributed stop, or let them go with %distributed detach"
            )
            raise UsageMistake(msg)
        self._stop()

    def _adopt(self, workspace: Workspace) -> None:
        self._workspace = workspace
        workspace.make_view = lambda: self._view(workspace)
        for widget in self._live:  # what was let go and is taken up again is shown again
            if widget.workspace.name == workspace.name:
                widget.workspace = workspace
        self._sweeps.adopt(workspace)
        self._offer_name(workspace)

    def _do_attach(self, options: Any) -> None:
        self._make_room()
        try:
            workspace = Workspace.attach(options.name, take=options.take, watch=options.watch)
        except DistributedError as error:
            raise UsageMistake(str(error)) from None
        self._adopt(workspace)
        self._do_status(options)
        workspace.join()

    def _do_detach(self, options: Any) -> None:
        workspace = self._running()
        try:
            self._keep_stills()
        finally:
            workspace.detach()
            self._forget()

    def _do_list(self, options: Any) -> None:
        try:
            print(format_workspaces(Workspace.list()))  # noqa: T201 - the answer
        except DistributedError as error:
            raise UsageMistake(str(error)) from None

    def _offer_name(self, workspace: Workspace) -> None:
        """Bind ``ws`` in the notebook, for `ws.run` and the like, unless it means something."""
        taken = self.shell.user_ns.get("ws")
        if taken is None or isinstance(taken, Workspace):
            self.shell.push({"ws": workspace})

    def _do_status(self, options: Any) -> None:
        print(widgets.topology(self._running().topology()).text)  # noqa: T201 - the answer

    def _do_topology(self, options: Any) -> None:
        if (plan := planned_world(options)) is not None:
            display(widgets.topology(plan))
            return
        workspace = self._running()
        if options.still or not hasattr(self.shell, "kernel"):
            uses = widgets.uses_of(workspace.trace())
            seen = widgets.Seen(workspace.measured_links, uses=uses)
            display(widgets.topology(workspace.topology(), seen))
            return
        widget = widgets.Topology(workspace)
        self._live.add(widget)
        widget.show()

    def _do_monitor(self, options: Any) -> None:
        workspace = self._running()
        if options.still or not hasattr(self.shell, "kernel"):
            display(widgets.monitor(workspace.trace(), workspace.topology()))
            return
        widget = widgets.Monitor(workspace)
        self._live.add(widget)
        widget.show()

    def _do_bandwidth(self, options: Any) -> None:
        self._sweeps.measure(self._running(), options)

    def _do_output(self, options: Any) -> None:
        workspace = self._running()
        for rank in parse_ranks(options.ranks, workspace.size):
            print(f"rank {rank}:\n{workspace.output(rank)}", end="")  # noqa: T201

    def _do_stacks(self, options: Any) -> None:
        workspace = self._running()
        chosen = None if options.ranks is None else parse_ranks(options.ranks, workspace.size)
        for ranks, text in grouped(workspace.stacks(chosen)):
            print(f"{name_ranks(ranks)}: {text}")  # noqa: T201 - the answer

    def _do_trace(self, options: Any) -> None:
        workspace = self._running()
        try:
            trace = workspace.trace(options.file)
        except OSError as error:
            msg = f"{options.file!r} cannot be written: {error.strerror}; name another file"
            raise UsageMistake(msg) from None
        print(say_trace(trace, options.file))  # noqa: T201 - the answer

    def _do_debug(self, options: Any) -> None:
        workspace = self._running()
        ranks = parse_ranks(options.ranks, workspace.size)
        debug_ranks(workspace, ranks, self._view(workspace))

    def _do_restart(self, options: Any) -> None:
        workspace = self._running()
        chosen = None if options.ranks is None else parse_ranks(options.ranks, workspace.size)
        if chosen is not None and options.all:
            msg = "name ranks, or say --all, not both"
            raise UsageMistake(msg)
        ranks = workspace.restart(
            chosen,
            all=options.all,
            force=options.force,
            copy_from=options.copy_from,
            init=options.init,
        )
        print(say_replaced(ranks, workspace.size))  # noqa: T201 - the answer

    def _do_interrupt(self, options: Any) -> None:
        self._running().interrupt()

    def _do_stop(self, options: Any) -> None:
        workspace = self._running()
        if workspace.why_lost:
            raise DistributedError(workspace.why_lost)
        if workspace.is_watching:
            workspace.stop()  # it says why not
        self._stop()
