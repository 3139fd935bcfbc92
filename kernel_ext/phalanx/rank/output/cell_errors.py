"""Show the errors of a rank's cells without our own frames."""

from __future__ import annotations

import builtins
import mmap
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from traceback import format_exception, format_tb, walk_stack
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from phalanx.distributed.bootstrap.own_frames import (
    clear_own_frames,
    is_own_frame,
    own_frames_hidden,
    without_own_frames,
)

from ..cell import from_cell, uninterrupted
from .error_text import name_of, text_of


class CellErrors:
    """Show the errors of cells, and keep the last cell's error.

    ``on_end`` is called before that one is shown: a traced traceback takes seconds.
    """

    def __init__(self, shell: Any, on_end: Callable[[], None]) -> None:
        self._shell = shell
        self._on_end = on_end
        self._reserve = AddressReserve()
        self._show_plain_lines = shell._showtraceback
        self.ended_in: dict[str, Any] = {}  # the error that ended the cell's code, as in a reply
        shell._showtraceback = self._show_lines
        shell.show_usage_error = self._show_usage_error

    def begin(self) -> None:
        self._reserve.refill()
        self.ended_in = {}
        self._shell._last_traceback = None  # else the reply has that of an earlier error

    def install(self) -> None:
        """Have IPython show errors here, before the code of a cell."""
        if not self._shell.custom_exceptions:  # none yet, or IPython has removed one that raised
            self._shell.set_custom_exc((Exception, KeyboardInterrupt), self._on_error)

    def _on_error(
        self,
        shell: Any,
        etype: Any,
        error: BaseException,
        traceback: Any,
        tb_offset: int | None = None,
    ) -> Any:
        if issubclass(etype, MemoryError):
            self._reserve.release()
        is_end = not self.ended_in and is_end_of_cell(2)
        if is_end:
            self._on_end()
        shown = show_error(shell, etype, error, traceback, tb_offset)
        if is_end:
            name, text = name_of(etype), text_of(error)
            self.ended_in = {"ename": name, "evalue": text, "traceback": shown or []}
        return shown

    def make_room(self, error: BaseException) -> None:
        """Free some addresses for the report of a MemoryError; idempotent."""
        if isinstance(error, MemoryError):
            self._reserve.release()

    def show_failed(self, error: BaseException) -> list[str]:
        """Show an error that IPython does not see; return the shown lines.

        It is shown from the first frame that is not ours: of a called function, for example.
        """
        self.make_room(error)
        users = error.__traceback__
        while users is not None and is_own_frame(users):
            users = users.tb_next
        if users is None:  # the error is in unpacking the call, or in a builtin function
            name, text = name_of(type(error)), text_of(error)
            self._show_lines(type(error), error, f"{name}: {text}" if text else name)
            return []
        try:
            shown: list[str] | None = show_error(self._shell, type(error), error, users, 0)
        except BaseException:  # noqa: BLE001 - IPython asks the error for its text, too
            return []
        return shown or []

    def _show_lines(self, etype: Any, error: BaseException, lines: Any) -> None:
        """Show a traceback; skip an interrupt after the cell's code failed.

        ``lines`` may be anything that a user's ``_render_traceback_`` returns.
        """
        if not (self.ended_in and issubclass(etype, KeyboardInterrupt)):
            lines = [lines] if isinstance(lines, str) else [*map(str, lines or ())]
            named = type(name_of(etype), (), {})  # a metaclass may give another name, or none
            self._show_plain_lines(named, text_of(error), lines)

    def _show_usage_error(self, error: Exception) -> None:
        """Show a mistake in a magic like any error.

        IPython would print the text itself, and the user would see the text twice.
        """
        self._shell._showtraceback(type(error), error, [f"UsageError: {error}"])


def show_error(
    shell: Any, etype: Any, error: BaseException, traceback: Any, tb_offset: int | None = None
) -> Any:
    """Show an error of a cell without our own frames (`set_custom_exc`).

    A debugger then starts at the end of the error's own traceback: in the user's code. Methods of
    the error may raise anything. IPython removes a handler that raises, so this one shows less.
    """
    users = without_own_frames(traceback)
    if shell.call_pdb:  # %pdb's debugger may be interrupted
        _show_users_part(shell, etype, error, users, tb_offset)
        return shell._last_traceback
    with uninterrupted():
        shell._last_traceback = None  # IPython may show nothing, and would leave an earlier error's
        with suppress(BaseException):  # of the error's own methods
            if not _is_only_printed(error):
                _show_users_part(shell, etype, error, users, tb_offset)
        if shell._last_traceback is None:
            lines = _plain_lines(shell, etype, error, users)
            shell._showtraceback(etype, error, lines)
            return lines
    return shell._last_traceback


def _is_only_printed(error: BaseException | None) -> bool:
    """Whether IPython only prints an error, as it does with groups.

    It does so, too, if the class has no name. A metaclass may raise when asked for the name.
    """
    groups = getattr(builtins, "BaseExceptionGroup", ())  # from Python 3.11 on
    seen: set[int] = set()  # a chain may be a ring
    while error is not None and id(error) not in seen:
        if isinstance(error, groups) or not isinstance(type(error).__name__, str):
            return True
        seen.add(id(error))
        error = error.__context__
    return False


def _plain_lines(shell: Any, etype: Any, error: BaseException, users: Any) -> list[str]:
    """Return an error as Python shows it, without our frames."""
    users = from_cell(users) or users
    try:
        with own_frames_hidden(error):
            parts = format_exception(etype, error, users)
    except BaseException:  # noqa: BLE001 - of the error's own methods
        parts = [*format_tb(users), f"{name_of(etype)}: {text_of(error)}"]

    def name_cell(found: re.Match[str]) -> str:
        name = shell.compile.format_code_name(found[1])
        return " ".join(name) if name else found[0]

    return re.sub(r'File "([^"\n]*)"', name_cell, "".join(parts)).rstrip("\n").split("\n")


def _show_users_part(
    shell: Any, etype: Any, error: BaseException, users: Any, tb_offset: int | None
) -> None:
    clear_own_frames(error)
    try:
        with own_frames_hidden(error):
            shell.showtraceback((etype, error, users), tb_offset=tb_offset)
    finally:
        error.__traceback__ = users


def is_end_of_cell(depth: int) -> bool:
    """Whether IPython reports the error with which a cell ends.

    ``depth`` is the number of frames between the caller and IPython's frame. False for a cell that
    runs within another cell and for a script run by `%run`: code goes on after these.
    """
    codes = [frame.f_code for frame, _ in walk_stack(sys._getframe(1 + depth))]
    run_code = InteractiveShell.run_code.__code__
    return codes[0] is run_code and codes.count(run_code) == 1


class AddressReserve:
    """Reserve address space for the report of a MemoryError.

    After a cell that has used all other space, the report would fail. The cell would then never
    end, or the rank would die.
    """

    # Ten times what a rank's first traceback took (2.9 MiB). Untouched pages use no memory.
    _NBYTES = 32 << 20

    def __init__(self) -> None:
        self._space: mmap.mmap | None = None

    def refill(self) -> None:
        """Reserve the space; without enough, the next cell tries again."""
        if self._space is None:
            with suppress(OSError):
                self._space = mmap.mmap(-1, self._NBYTES, flags=mmap.MAP_PRIVATE)

    def release(self) -> None:
        if self._space is not None:
            self._space.close()
            self._space = None
