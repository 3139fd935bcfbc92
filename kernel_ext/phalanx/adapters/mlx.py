"""Serve MLX's groups: `mx.distributed.init()` in a rank returns the ranks of Phalanx.

MLX loads the library that `MLX_MPI_LIBNAME` names, and its `MPI_Init` calls `connect`. MLX's
operations run on its own stream threads, on a group of their own, so that they cannot interleave
with calls of `phalanx` in the main thread. A failed operation raises in the main thread at its next
instruction. After a script's last instruction it is printed, and the process ends with status 1. In
a notebook's rank it raises only in the code of a cell (`raise_only_while`).
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import cast

from phalanx import _native
from phalanx.distributed.bootstrap.init import init
from phalanx.distributed.group.group import Group
from phalanx.errors import NotSupported


class _Communicator:
    """A group that MLX uses, with its splits.

    It is kept until the process ends.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._parts: list[_Communicator] = []
        self.native = _native.MlxCommunicator(
            group=cast("_native.Group", group._current.engine),
            split=self._split,
            report_failure=self._report_failure,
        )
        group._listen(lambda engine: self.native.renew(cast("_native.Group", engine)))

    def _report_failure(self, error: BaseException) -> BaseException | None:
        """Report a failure to the other ranks; return what to raise."""
        self._group._current.tell_failure()
        if _World.runs_cell is None:
            if _script_runs():
                return error
            _end_script_with(error)
            return None
        may_raise = _World.is_waiting or _World.runs_cell()
        is_held = _World.is_held()
        if is_held or _World.is_stopped():
            sys.stderr.write(
                f"the stop has ended an evaluation of MLX; its arrays are not valid: {error}\n"
            )
            return KeyboardInterrupt() if is_held and may_raise else None
        if may_raise:
            return error
        sys.stderr.write(
            f"an operation of mx.distributed has failed after its cell had ended: {error}; "
            "arrays that it should have filled are not valid\n"
        )
        return None

    def end_script(self) -> None:
        """Tell group and splits that the main thread has ended."""
        self.native.end_script()
        for part in self._parts:
            part.end_script()

    def set_cut(self, is_cut: bool) -> None:
        """Interrupt waits of group and splits, now and until called with False."""
        self.native.set_cut(is_cut)
        for part in self._parts:
            part.set_cut(is_cut)

    def _split(self, color: int, key: int) -> _native.MlxCommunicator:
        part = self._group.split(color, key)
        if part is None:
            msg = f"mx.distributed: split needs a color from 0, not {color}"
            raise ValueError(msg)
        self._parts.append(_Communicator(part))
        return self._parts[-1].native


class _World:
    """The one world of a process."""

    communicator: _Communicator | None = None
    runs_cell: Callable[[], bool] | None = None  # in a notebook's rank only
    is_held: Callable[[], bool] = staticmethod(lambda: False)
    is_stopped: Callable[[], bool] = staticmethod(lambda: False)
    is_waiting = False  # `wait_for_evaluations` runs: its caller takes failures
    pid = -1
    fail_at_exit: Callable[[], None] = staticmethod(lambda: None)
    has_failed = False  # after its script's last instruction


def _script_runs() -> bool:
    """Whether the main thread is in the script's code."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    # At its end Python calls functions: of `threading`, exit handlers, `sys.excepthook`.
    return frame.f_code.co_name in {"<module>", "_run_module_as_main"}


def _end_script_with(error: BaseException) -> None:
    """Print an error that follows the script's last instruction.

    The process then ends with status 1. One error is enough: later ones, and those after an
    exception of the script, follow from it.
    """
    if _World.has_failed or hasattr(sys, "last_value"):
        return
    _World.has_failed = True
    _World.fail_at_exit()
    sys.excepthook(type(error), error, error.__traceback__)


def _finish_script() -> None:
    """Wait at the end of a script for what MLX still computes.

    A script that ends with an exception does not wait.
    """
    if _World.runs_cell is not None or _World.pid != os.getpid() or hasattr(sys, "last_value"):
        return
    assert _World.communicator is not None
    _World.communicator.end_script()
    try:
        wait_for_evaluations(raises=False)
    except RuntimeError as error:  # MLX's own computation has failed
        _end_script_with(error)


def raise_only_while(
    runs_cell: Callable[[], bool], *, is_held: Callable[[], bool], is_stopped: Callable[[], bool]
) -> None:
    """Raise failures only while ``runs_cell`` returns True, and else print them.

    An error in a kernel's own code would end the kernel. While a stop holds the cell (``is_held``),
    a failure follows from the end of another rank: it is printed, and raised as KeyboardInterrupt.
    After the cell's interrupt (``is_stopped``) it is printed only. All are called on the main
    thread.
    """
    _World.runs_cell = staticmethod(runs_cell)
    _World.is_held, _World.is_stopped = staticmethod(is_held), staticmethod(is_stopped)


def cut_evaluations(is_cut: bool) -> None:
    """Interrupt operations of MLX that wait, now and until called with False."""
    if _World.communicator is not None:
        _World.communicator.set_cut(is_cut)


def wait_for_evaluations(*, raises: bool = True) -> None:
    """Wait until MLX has computed what was submitted with `mx.async_eval`.

    Does nothing in a process without MLX's groups. A rank that has ended its cell begins no
    operation any more, so other ranks would give up waiting for one that comes later.

    Raises `DistributedError`: an operation of these evaluations has failed. With ``raises=False``
    it is printed.
    """
    if _World.communicator is None:
        return
    import mlx.core as mx

    _World.is_waiting = raises
    try:
        # A failure is raised when these calls return.
        mx.synchronize()
        mx.synchronize(mx.default_stream(mx.cpu))  # operations run here, also beside a GPU
    finally:
        _World.is_waiting = False


def check_that_mlx_fits() -> None:
    """Raise an error if this version of MLX refuses the library.

    The library calls this when MLX has loaded it.

    Raises `NotSupported` if MLX has refused it: each rank would train alone.
    """
    import mlx.core as mx

    if mx.distributed.is_available("mpi") or init().size() == 1:
        return
    msg = (
        f"mlx {version('mlx')} does not take phalanx as its MPI, so mx.distributed has one rank: "
        "install another version of mlx, or use px.nn with group=px.init()"
    )
    raise NotSupported(msg)


def connect(fail_at_exit: Callable[[], None]) -> object | None:
    """Return a capsule with the world for MLX.

    None if this process is alone. Every rank calls this, through `mx.distributed.init()`, because
    it makes a split of the world. A rank that replaces another one has that split from its start.
    ``fail_at_exit`` has the process end with status 1.

    Raises `DistributedError`: the world could not be joined or split.
    """
    world = init()
    if world.size() == 1:
        return None
    _World.communicator = _Communicator(world._take_adapters_group())
    _World.pid, _World.fail_at_exit = os.getpid(), staticmethod(fail_at_exit)
    atexit.register(_finish_script)
    return _World.communicator.native.capsule()
