"""Show the errors of a rank's cells without our own frames."""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress
from traceback import format_tb, walk_stack
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from phalanx.distributed import clear_own_frames, number_lines, without_own_frames
from phalanx.rank import text_of, uninterrupted


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
        try:
            _show_users_part(shell, etype, error, users, tb_offset)
        except BaseException:  # noqa: BLE001 - of the error's own methods
            lines = [*format_tb(users), f"{etype.__name__}: {text_of(error)}"]
            shell._showtraceback(etype, error, [line.rstrip("\n") for line in lines])
            return lines
    return shell._last_traceback


def _show_users_part(
    shell: Any, etype: Any, error: BaseException, users: Any, tb_offset: int | None
) -> None:
    clear_own_frames(error)
    error.__traceback__ = users
    number_lines(error)
    shell.showtraceback((etype, error, users), tb_offset=tb_offset)


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
        """Give the space back; idempotent."""
        if self._space is not None:
            self._space.close()
            self._space = None
