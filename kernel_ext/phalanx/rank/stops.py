"""Stop the cell of a rank: interrupt it, or hold it.

The rank's control thread, which is free while a cell runs, stops the cell.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import psutil

from phalanx.adapters import mlx
from phalanx.protocol import (
    CALLBACK,
    InterruptCaught,
    LetIn,
    RankNews,
    StopCell,
    StopReport,
)

from .cell import HeldCell, InterruptGate
from .debugging.visual_debugger import VisualDebugger
from .input import TypedLines

# Delay after an interrupt. The notebook reports ranks that have not ended 2 s after the interrupt;
# this must come earlier.
SWALLOWED_S = 1.0
HELD_LOOK_S = 0.002  # poll interval of a held cell: about the time of a message to the client
# How long a held operation waits for a pending interrupt. If a user's signal handler raises
# nothing, the operation goes on.
TAKE_S = 0.3
# How long an evaluation of MLX that all ranks have begun may take to finish after a stop.
CUT_S = 10.0
NUDGE_S, MAX_NUDGE_S = 0.02, 1.0  # delay of the next nudge after an interrupt; doubled each time


class CellStops:
    """Stop a rank's cells, and end the rank when its supervisor asks.

    ``lines`` and ``debugger`` tell whether the cell waits for the user. ``control_loop`` and
    ``cell_loop`` are tornado's loops of the control thread and of the main thread.
    """

    def __init__(
        self,
        rank: int,
        lines: TypedLines,
        debugger: VisualDebugger,
        notify: Callable[[RankNews], None],
        control_loop: Any,
        cell_loop: Any,
    ) -> None:
        self.gate = InterruptGate()
        self._held = HeldCell(rank)
        self._lines = lines
        self._debugger = debugger
        self._notify = notify
        self._loop = control_loop
        self._cell_loop = cell_loop
        self._interrupted: deque[str] = deque(maxlen=16)  # the stops that have interrupted
        self.holding = ""  # the stop that holds the cell

    def begin_cell(self, cell: str, *, was_stopped: bool) -> None:
        """Begin a cell; ``was_stopped``: before it arrived here."""
        self._held.begin()
        if was_stopped:
            self.gate.interrupt(cell)

    def end_cell(self) -> bool:
        """End what runs; return whether the rank is ending.

        The main thread calls this. It leaves the loop if the rank is ending.
        """
        is_ending = self.gate.end()
        if is_ending:
            self._cell_loop.add_callback(self._cell_loop.stop)
        self._held.end()
        return is_ending

    def let_in(self, order: LetIn) -> None:
        """Let a held cell into operations that other ranks have begun."""
        if self.holding:
            self._held.let_in(order.steps)

    def stop(self, order: StopCell) -> None:
        """Interrupt a cell, or hold it before its next operation.

        The cell is held for ``hold_s`` seconds at most and then interrupted. The client that stops
        the cell normally decides earlier; after ``hold_s`` seconds that client has probably gone.
        """
        cell, stop = order.cell, order.stop
        can_hold = order.hold_s > 0 and self.gate.running == cell and not self._waits_for_user
        if can_hold and self._held.hold():
            self.holding = stop
            until_s = time.monotonic() + order.hold_s
            self._look_at_held(cell, stop, StopReport("runs"), until_s)
        else:
            self._interrupt(cell, stop)

    @property
    def _waits_for_user(self) -> bool:
        """Whether the main thread reads input or stands at a breakpoint."""
        return self._lines.main_thread_reads or self._debugger.is_stopped

    def _look_at_held(self, cell: str, stop: str, last: StopReport, until_s: float) -> None:
        """Report changes of a held cell until its interrupt or end."""
        if self.holding != stop:
            return
        if self.gate.running != cell:
            self.holding = ""
            self._held.end()
            return
        if self._waits_for_user or time.monotonic() >= until_s:
            self._interrupt(cell, stop)
            return
        report = self._held.report()
        if report != last:
            self._notify(msgspec.structs.replace(report, cell=cell))
        self._loop.call_later(HELD_LOOK_S, self._look_at_held, cell, stop, report, until_s)

    def _interrupt(self, cell: str, stop: str) -> None:
        if stop in self._interrupted:
            return
        self._interrupted.append(stop)
        if self.gate.is_blocked(cell):  # this is the second stop
            mlx.cut_evaluations(True)
        self._loop.call_later(CUT_S, self._cut, cell)
        self._lines.stop(cell)
        running = self.gate.running or ""
        if running != cell and running.startswith(CALLBACK):  # the cell waits for its end
            self._interrupt(running, f"{stop} of {running}")
        if running == cell:
            self._notify(msgspec.structs.replace(self._held.stop(), cell=cell))
            self._loop.call_later(TAKE_S, self._let_go, stop)
        self.gate.interrupt(cell)
        if running == cell:
            _interrupt_children()
        self.holding = ""
        self._loop.call_later(NUDGE_S, self._nudge, cell, 2 * NUDGE_S)
        self._loop.call_later(SWALLOWED_S, self._tell_if_swallowed, cell)
        # For a cell that awaits, ipykernel's signal handler only schedules a callback, which does
        # not wake a sleeping event loop. This call does.
        self._cell_loop.add_callback(lambda: None)

    def end(self) -> None:
        """Interrupt what runs, begin no other cell, and leave the loop."""
        if self.gate.is_closed:
            return
        cell = self.gate.close()
        if cell is None:
            self._cell_loop.add_callback(self._cell_loop.stop)
        else:  # the loop must run on for a cell that awaits; its end stops it
            self._interrupt(cell, "end")

    def _cut(self, cell: str) -> None:
        """End the evaluation of MLX that a stopped cell still waits for."""
        if self.gate.is_blocked(cell):
            mlx.cut_evaluations(True)

    def _let_go(self, stop: str) -> None:
        """Release a held cell after an interrupt that raised nothing.

        A cell held by a later stop stays held.
        """
        if self._interrupted[-1] == stop and not self.holding:
            self._held.end()

    def _nudge(self, cell: str, next_s: float) -> None:
        if self.gate.nudge(cell):
            self._loop.call_later(next_s, self._nudge, cell, min(2 * next_s, MAX_NUDGE_S))

    def _tell_if_swallowed(self, cell: str) -> None:
        """Report that the cell's code has caught the interrupt.

        Nobody can see that from outside the process.
        """
        if self.gate.has_swallowed(cell):
            self._notify(InterruptCaught(cell))


def _interrupt_children() -> None:
    """Send SIGINT to the other processes of the rank's process group.

    A Jupyter server does so: it signals the group of its kernel. `subprocess.run` gives a child
    0.25 s after its own interrupt.
    """
    rank = os.getpid()
    if os.getpgrp() != rank:  # the group is not ours alone
        return
    for pid in psutil.pids():
        try:
            if pid != rank and os.getpgid(pid) == rank:
                os.kill(pid, signal.SIGINT)
        except OSError:  # it has ended, or has another user
            continue
