"""The `%distributed` and `%%distributed` magics.

A user's mistake ends the cell with one line (IPython's UsageError), without our own frames.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_cell_magic, line_magic, magics_class
from IPython.display import display

from phalanx import widgets
from phalanx.errors import CellError, DistributedError
from phalanx.hosts import recognise_job
from phalanx.protocol import name_ranks
from phalanx.workspace import (
    View,
    Workspace,
    format_workspaces,
    free_workspaces,
    grouped,
    parse_ranks,
    ranks_of,
    say_replaced,
    say_trace,
)

from .arguments import (
    HelpShown,
    auto_parser,
    cell_parser,
    line_parser,
    local_parser,
    parse,
    planned_world,
    show_config,
    start_options,
)
from .debugger_panel import DebuggerPanel
from .figures import Named
from .notebook_view import BootLine, Label, NotebookView, TabsView, hosts_of, in_one_line
from .patches import Patches
from .sweeps import LiveWidgets, Sweeps
from .toolbar import Toolbar
from .tracebacks import debug_failed, debug_ranks, show_errors
from .typing_help import AutoDistributed, TypingHelp
from .while_busy import AnswersWhileBusy

_SUGGESTION = (
    "%distributed start -n 4 starts four ranks here; %distributed --help lists the commands"
)
_EVERY_CELL = (
    "every cell runs on the ranks, as this notebook's toolbar says; %autodistributed off ends that"
)
_NOTHING_RUNS = (
    "nothing to interrupt: this notebook waits for no cell "
    "(%distributed status says what the ranks do)"
)
# With these actions the user needs no hint where the output is.
_SHOW_OR_LEAVE = frozenset({"output", "stop", "detach"})


def _ranks_of(workspace: Workspace) -> str:
    return ranks_of(workspace.name, workspace.size)


def _say_no_ranks() -> str:
    """Say how to get ranks: start them, or attach to free ones."""
    free = free_workspaces()
    if not free:
        return "there are no ranks yet; start them with %distributed start -n 4"
    if len(free) == 1:
        which, it, name = f"{free[0]!r} is", "it", free[0]
    else:
        which, it, name = f"{', '.join(free)} are", "one", "NAME"
    return f"this notebook has no ranks, but {which} free: take {it} up with %distributed attach {name}"


@contextmanager
def _in_users_words() -> Iterator[None]:
    """End the cell with one line for errors a user can fix.

    ``--help`` is no error.
    """
    try:
        yield
    except HelpShown:
        return
    except (DistributedError, TimeoutError, KeyboardInterrupt) as error:
        raise in_one_line(error) from None
    except ValueError as error:
        raise UsageError(str(error)) from None


@magics_class
class DistributedMagics(Magics):  # type: ignore[misc]
    """The `%distributed` and `%%distributed` magics of one shell."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._workspace: Workspace | None = None
        self._auto = AutoDistributed(shell)
        self._named: Named = {}
        self._live: LiveWidgets = weakref.WeakSet()
        self._sweeps = Sweeps(shell, self._live)
        self._typing = TypingHelp(shell, self._auto, lambda: self._workspace)
        self._while_busy = AnswersWhileBusy(shell, Toolbar.comm_id)
        self._patches = Patches()
        self._toolbar = Toolbar(shell, self._auto, lambda: self._workspace)
        self._panel = DebuggerPanel(shell, self._auto, lambda: self._workspace)
        self._pages: set[str] = set()  # sessions of front ends that have had the hint

    @property
    def workspace(self) -> Workspace | None:
        return self._workspace

    def open(self) -> None:
        """Install completion, inspection, errors and the debugger; idempotent."""
        self._patches.close()
        for its in (self._typing, self._while_busy, self._panel):
            its.install(self._patches)
        show_errors(self.shell, self._patches)
        self._patches.replace(self.shell, "debugger", self._open_debugger)
        self._toolbar.open()

    def suggest_start(self) -> None:
        """Say how to start ranks, unless some run."""
        if self._workspace is None or not self._workspace.is_running:
            print(_SUGGESTION)  # noqa: T201 - the answer

    def close(self) -> None:
        """Restore the shell, and say that the ranks stay."""
        self._patches.close()
        self._auto.set(False)
        self._toolbar.close()
        workspace = self._workspace
        if workspace is not None and workspace.is_running:
            stay, it = ("stay", "them") if workspace.size > 1 else ("stays", "it")
            print(  # noqa: T201 - the answer
                f"{_ranks_of(workspace)} {stay}: %load_ext phalanx finds {it} again, "
                f"phalanx stop {workspace.name} (in a terminal) ends {it}"
            )

    def _keep_stills(self) -> None:
        if self._live:  # otherwise the widgets' code need not be loaded
            widgets.keep_stills(self._live, is_forced=True)

    def _stop(self) -> None:
        self._auto.set(False)
        if self._workspace is not None:
            # Save the widgets' last state in the notebook file while the ranks can be queried.
            try:
                self._keep_stills()
            finally:  # also after a Ctrl-C
                self._workspace.stop()
                self._forget()

    def _forget(self) -> None:
        self._named.clear()
        self._workspace = None
        self._toolbar.follow()

    @line_cell_magic  # type: ignore[untyped-decorator]
    def distributed(self, line: str, cell: str | None = None) -> None:
        """Run a cell on the ranks, or start, show and stop ranks.

        The actions of the line magic are in ``%distributed --help``, the options of the cell magic
        in ``%%distributed --help``.
        """
        with _in_users_words(), self._while_busy.during_a_magic():
            if cell is None:
                self._line(line)
            else:
                self._meet_page()
                self._cell(line, cell)

    @cell_magic  # type: ignore[untyped-decorator]
    def rank(self, line: str, cell: str) -> None:
        """Run a cell on some ranks: `%%rank 1` is `%%distributed --ranks 1`."""
        self.distributed(f"--ranks {line}" if line.strip() else "--ranks", cell)

    def _meet_page(self, *, with_note: bool = True) -> None:
        """Tell a new page where to find the output of earlier cells.

        A page that is loaded again is another front end of the kernel. Output that a running cell
        sent meanwhile was addressed to the front end before, and no front end shows it.
        """
        if self._workspace is None or not hasattr(self.shell, "kernel"):
            return
        page = str(self.shell.get_parent().get("header", {}).get("session", ""))
        if with_note and self._pages and page not in self._pages:
            said = "this page is new: %distributed output shows what the ranks have printed so far"
            print(f"phalanx: {said}", file=sys.stderr, flush=True)  # noqa: T201 - as a view's notice
        self._pages.add(page)

    @line_magic  # type: ignore[untyped-decorator]
    def autodistributed(self, line: str) -> None:
        """Run every cell on the ranks (`on`), or only `%%distributed` ones (`off`)."""
        with _in_users_words():
            is_on = parse(auto_parser(), line).state == "on"
            if is_on:
                self._running()
            self._auto.set(is_on)

    @cell_magic  # type: ignore[untyped-decorator]
    def local(self, line: str, cell: str) -> None:
        """Run a cell in the notebook's own kernel while %autodistributed is on."""
        with _in_users_words():
            parse(local_parser(), line)
            with self._auto.paused():
                self.shell.run_cell(cell)

    def _cell(self, line: str, cell: str) -> None:
        options = parse(cell_parser(), line)
        workspace = self._running()
        ranks = self._chosen(options, workspace)
        number = self.shell.displayhook.prompt_count  # the count is of the next cell, or of this
        has_tabs = options.view == "tabs"
        view = self._view(workspace, options.label, has_tabs=has_tabs, cell_number=number)
        with self._panel.follow(workspace, ranks, cell):
            workspace.run(
                cell,
                ranks=ranks,
                timeout=options.timeout,
                view=view,
                max_lines=options.max_lines,
                every_start=options.every_start,
                values=False,
            )

    def _view(
        self,
        workspace: Workspace,
        label: Label = "rank",
        *,
        has_tabs: bool = False,
        cell_number: int = 0,
    ) -> NotebookView:
        hosts = hosts_of(workspace.topology()) if label == "host" else {}
        # A terminal has no tabs.
        kind = TabsView if has_tabs and hasattr(self.shell, "kernel") else NotebookView
        named, number = self._named, cell_number
        return kind(self.shell, label=label, hosts=hosts, named=named, cell_number=number)

    def _line(self, line: str) -> None:
        first, _, words = line.strip().partition(" ")
        if first == "config":  # `phalanx config` parses the words itself
            show_config(words)
            return
        options = parse(line_parser(), line.strip() or "status")
        self._meet_page(with_note=options.action not in _SHOW_OR_LEAVE)
        action: Callable[[Any], None] = getattr(self, f"_do_{options.action}")
        action(options)

    def _running(self) -> Workspace:
        if self._workspace is None:
            raise UsageError(_say_no_ranks())
        return self._workspace

    def _chosen(self, options: Any, workspace: Workspace) -> tuple[int, ...] | None:
        """Return the ranks that were named; None if the user named none."""
        return None if options.ranks is None else parse_ranks(options.ranks, workspace.size)

    def _do_start(self, options: Any) -> None:
        self._drop_ended()
        if note := recognise_job(options, options.n):
            print(note)  # noqa: T201 - the answer
        line = BootLine(self.shell)
        try:
            with self._toolbar.starting(options.n or 1):
                workspace = Workspace.start(**start_options(options), progress=line.take)
        except DistributedError as error:
            raise UsageError(str(error)) from None
        finally:
            line.close()
        self._adopt(workspace)
        self._do_status(options)
        if workspace.threads_note:
            print(workspace.threads_note)  # noqa: T201 - the answer

    def _drop_ended(self) -> None:
        """Drop ranks that are gone; refuse to drop others."""
        workspace = self._workspace
        if workspace is not None and workspace.is_running:
            msg = (
                f"{workspace.size} ranks run already in this notebook; "
                "end them first with %distributed stop, or let them go with %distributed detach"
            )
            raise UsageError(msg)
        self._stop()

    def _adopt(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._pages.clear()
        self._meet_page()

        def make_view() -> NotebookView:
            """Make the view of one cell in this notebook."""
            return self._view(workspace)

        workspace.make_view = make_view
        for widget in self._live:  # widgets of a workspace that was detached show it again
            if widget.workspace.name == workspace.name:
                widget.workspace = workspace
        self._offer_name(workspace)
        if self._toolbar.wishes_auto():
            self._auto.set(True)
            print(_EVERY_CELL)  # noqa: T201 - the answer
        self._toolbar.follow()

    def _do_attach(self, options: Any) -> None:
        self._drop_ended()
        try:
            workspace = Workspace.attach(options.name, take=options.take)
        except DistributedError as error:
            raise UsageError(str(error)) from None
        self._adopt(workspace)
        self._do_status(options)
        workspace.join()

    def _do_detach(self, options: Any) -> None:
        workspace = self._running()
        was_running = workspace.is_running
        try:
            self._keep_stills()
        finally:
            workspace.detach()
            self._forget()
        if not was_running:
            said = workspace.why_lost or f"{_ranks_of(workspace)} had ended already"
        else:
            left_s = {its.name: its.ends_in_s for its in Workspace.list() if not its.is_stopping}
            said = f"let go of {_ranks_of(workspace)}"
            if left_s.get(workspace.name, 0.0) == 0.0:
                said += ", which end now: they were started with --linger 0"
            else:
                back = f"%distributed attach {workspace.name} comes back to them"
                said += f"; within their --linger time, {back}"
        print(said)  # noqa: T201 - the answer

    def _do_list(self, options: Any) -> None:
        try:
            print(format_workspaces(Workspace.list()))  # noqa: T201 - the answer
        except DistributedError as error:
            raise UsageError(str(error)) from None

    def _offer_name(self, workspace: Workspace) -> None:
        """Bind ``ws`` in the notebook, unless the name is in use.

        With ``ws`` the user can call `ws.run` and the like.
        """
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
            seen = widgets.Observations(workspace.measured_links, uses=uses)
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
        chosen = self._chosen(options, workspace)
        for rank in range(workspace.size) if chosen is None else chosen:
            print(f"rank {rank}:\n{workspace.output(rank)}", end="")  # noqa: T201

    def _do_stacks(self, options: Any) -> None:
        workspace = self._running()
        chosen = self._chosen(options, workspace)
        for ranks, text in grouped(workspace.stacks(chosen)):
            print(f"{name_ranks(ranks)}: {text}")  # noqa: T201 - the answer

    def _do_trace(self, options: Any) -> None:
        workspace = self._running()
        try:
            trace = workspace.trace(options.file)
        except OSError as error:
            msg = f"{options.file!r} cannot be written: {error.strerror}; name another file"
            raise UsageError(msg) from None
        print(say_trace(trace, options.file))  # noqa: T201 - the answer

    def _do_debug(self, options: Any) -> None:
        workspace = self._running()
        debug_ranks(workspace, self._chosen(options, workspace), self._view(workspace))

    def _open_debugger(self, here: Callable[..., None], force: bool = False) -> None:
        """Debug a cell that failed on ranks there.

        This process has only our frames of such an error. Under `%pdb` this runs while the error is shown, and must not fail.
        """
        error, workspace = getattr(sys, "last_value", None), self._workspace
        if not (isinstance(error, CellError) and (force or self.shell.call_pdb)):
            here(force=force)
            return
        try:
            with _in_users_words():
                view = View() if workspace is None else self._view(workspace)
                debug_failed(workspace, error, view)
        except (DistributedError, TimeoutError, UsageError) as refusal:
            print(f"phalanx: {refusal}", file=sys.stderr)  # noqa: T201 - the answer

    def _do_restart(self, options: Any) -> None:
        workspace = self._running()
        chosen = self._chosen(options, workspace)
        if chosen is not None and options.all:
            msg = "name ranks, or say --all, not both"
            raise UsageError(msg)
        ranks = workspace.restart(
            chosen,
            all=options.all,
            force=options.force,
            copy_from=options.copy_from,
            init=options.init,
        )
        print(say_replaced(ranks, workspace.size))  # noqa: T201 - the answer

    def _do_interrupt(self, options: Any) -> None:
        ranks = self._running().interrupt()
        said = f"asked {name_ranks(ranks)} to stop" if ranks else _NOTHING_RUNS
        print(said)  # noqa: T201 - the answer

    def _do_stop(self, options: Any) -> None:
        workspace = self._running()
        if workspace.why_lost:
            raise DistributedError(workspace.why_lost)
        self._stop()
        print(f"stopped {_ranks_of(workspace)}")  # noqa: T201 - the answer
