"""Call functions on ranks, as ipyparallel does.

A `CallPlan` packs a call and joins its results; `CellRunner` runs it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from phalanx.protocol import name_ranks
from phalanx.rank import bind, bind_values, fetch, load_value, map_block, pack_call, pack_values

from .cells.cell import Event, Pack, Packed, StopRequest, make_task
from .connection.transport import ctrl_c, say_error
from .lifecycle import Lifecycle
from .options import checked_name
from .output.front_end import View

_PACKING = ("phalanx.", "cloudpickle")  # modules with frames that hold a value while it is packed


Value = TypeVar("Value")


class PendingCall(Generic[Value]):
    """Handle of a running call; returned with ``block=False``.

    Parameters
    ----------
    run : callable
        Makes the call; runs on a separate thread.
    events : queue
        A `StopRequest` put here stops the call.
    """

    def __init__(self, run: Callable[[], Value], events: queue.SimpleQueue[Event]) -> None:
        self._run = run
        self._events = events
        self._done = threading.Event()
        self._value: Value
        self._error: BaseException | None = None
        # A daemon, to let the process end: the workspace ends first and ends the call.
        threading.Thread(target=self._finish, name="phalanx-call", daemon=True).start()

    def _finish(self) -> None:
        try:
            self._value = self._run()
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._error = error
        finally:
            self._done.set()

    def done(self) -> bool:
        """Return whether the call has ended, so that `result` returns at once.

        Returns
        -------
        bool
            Also true when the call failed.
        """
        return self._done.is_set()

    def result(self, timeout: float | None = None) -> Value:
        """Wait for the call and return its value; Ctrl-C stops the ranks.

        Parameters
        ----------
        timeout : float, optional
            Longest wait in seconds; the call goes on after it. By default there is no limit.

        Returns
        -------
        object
            The value that the call returns with ``block=True``.

        Raises
        ------
        TimeoutError
            The call has not ended yet.
        KeyboardInterrupt
            Ctrl-C was pressed; raised after the ranks stopped.
        CellError, RankFailure, TypeError
            As raised by the call with ``block=True``.
        """
        with ctrl_c(lambda: self._events.put(StopRequest())):
            is_over = self._done.wait(timeout)
        if not is_over:
            msg = f"the call is not over after {timeout:g} s; it goes on"
            raise TimeoutError(msg)
        if self._error is not None:
            raise self._error
        return self._value

    def __repr__(self) -> str:
        """Show whether the call has ended."""
        return f"<{type(self).__name__}: {'over' if self.done() else 'not over yet'}>"


class CallPlan(NamedTuple):
    """A call of ranks, not made yet.

    ``name`` is shown to users, ``pack`` makes the requests, ``finish`` joins the values.
    """

    name: str
    pack: Pack
    finish: Callable[[list[Any]], Any]


def plan_apply(
    function: Callable[..., Any], args: Sequence[Any], named: dict[str, Any], *, is_one: bool
) -> CallPlan:
    """Plan `Workspace.apply`; ``is_one``: return the value of a single rank alone."""
    name = _name_of(function)
    packed = _pack(name, function, args, named)

    def finish(values: list[Any]) -> Any:
        return values[0] if is_one else values

    return CallPlan(name, lambda here: dict.fromkeys(here, packed), finish)


def plan_map(function: Callable[..., Any], sequences: Iterable[Iterable[Any]]) -> CallPlan:
    """Plan `Workspace.map`."""
    _check_callable(function)
    name, items = _name_of(function), [_sized(sequence) for sequence in sequences]
    lengths = {len(sequence) for sequence in items}
    if len(lengths) > 1:
        msg = f"the sequences have different lengths: {', '.join(str(len(i)) for i in items)}"
        raise ValueError(msg)
    if not lengths:
        msg = "map takes a function and what to call it with, like map(f, [1, 2, 3])"
        raise TypeError(msg)

    def pack(here: tuple[int, ...]) -> Packed:
        blocks = zip(*(_blocks(sequence, len(here)) for sequence in items), strict=True)
        return {
            rank: _pack(name, map_block, (function, *own))
            for rank, own in zip(here, blocks, strict=True)
        }

    return CallPlan(name, pack, lambda values: [value for block in values for value in block])


def plan_scatter(name: str, values: Iterable[Any]) -> CallPlan:
    """Plan `Workspace.scatter`."""
    name, items = checked_name(name), _sized(values)

    def pack(here: tuple[int, ...]) -> Packed:
        blocks = _blocks(items, len(here))
        return {
            rank: _pack(name, bind, (name, own)) for rank, own in zip(here, blocks, strict=True)
        }

    return CallPlan("scatter", pack, lambda values: None)


def plan_gather(name: str) -> CallPlan:
    """Plan `Workspace.gather`."""
    packed = _pack(name, fetch, (checked_name(name),))
    return CallPlan("gather", lambda here: dict.fromkeys(here, packed), _joined)


def make_call(
    plan: CallPlan, life: Lifecycle, ranks: tuple[int, ...] | None, view: View, *, block: bool
) -> Any:
    """Make a call, here or (``block=False``) on a new thread."""
    runner = life.up()
    call = runner.make_call(ranks, plan.name, plan.pack)

    def run() -> Packed:
        return runner.apply(call, view, life.check_running)

    with ctrl_c(lambda: call.events.put(StopRequest())):
        runner.slot.line_up(call)
        try:
            if not block:
                return PendingCall(lambda: plan.finish(_loaded(run())), call.events)
            values = run()
        except BaseException:
            runner.slot.leave_line(call)
            raise
    return plan.finish(_loaded(values))


def _check_callable(function: object) -> None:
    if not callable(function):
        msg = f"{function!r} is not a function"
        raise TypeError(msg)


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _pack(
    what: str,
    function: Callable[..., Any],
    args: Sequence[Any],
    named: dict[str, Any] | None = None,
) -> list[Any]:
    """Pack a call; ``what`` is the user's name for the function."""
    _check_callable(function)
    try:
        return list(pack_call(function, args, named or {}))
    except KeyboardInterrupt as error:  # a stop, or the user's own code
        msg = f"{what}, or what it needs, was not sent"
        raise KeyboardInterrupt(msg) from error
    except BaseException as error:
        msg = f"{what}, or what it needs, cannot be sent: {say_error(error)}"
        raise TypeError(msg) from error


def _loaded(values: Packed) -> list[Any]:
    loaded = []
    for rank, buffers in sorted(values.items()):
        try:
            loaded.append(load_value(buffers))
        except KeyboardInterrupt as error:  # a stop, or the value's own code
            msg = f"the value of {name_ranks([rank])} was not loaded here"
            raise KeyboardInterrupt(msg) from error
        except BaseException as error:
            value = f"the value of {name_ranks([rank])}"
            msg = f"{value} cannot be loaded here: {say_error(error)}"
            raise TypeError(msg) from error
    return loaded


def _sized(values: Iterable[Any]) -> Any:
    """Return a sequence; make a list of any other iterable."""
    is_sequence = hasattr(values, "__len__") and hasattr(values, "__getitem__")
    return values if is_sequence and not isinstance(values, dict) else list(values)


def _blocks(values: Any, n: int) -> list[Any]:
    from ipyparallel.client.map import Map

    return [Map().getPartition(values, at, n) for at in range(n)]


def _joined(values: list[Any]) -> Any:
    from ipyparallel.client.map import Map

    return Map().joinPartitions(values)


def forget_values(error: BaseException | None) -> None:
    """Clear the frames of packing in an error's traceback and its causes.

    The frames would keep the user's values in a reference cycle with the error. The garbage
    collector of CPython before 3.12.7 crashes on a `pickle.PickleBuffer` of a memoryview in such a
    cycle (python/cpython#77894). Frames of the user's own code keep their values.
    """
    while error is not None:
        traceback = error.__traceback__
        while traceback is not None:
            frame = traceback.tb_frame
            if str(frame.f_globals.get("__name__")).startswith(_PACKING):
                with contextlib.suppress(RuntimeError):  # it still runs
                    frame.clear()
            traceback = traceback.tb_next
        error = error.__cause__


def plan_push(values: Any) -> Pack:
    """Pack values by name for a task that binds them.

    Raises
    ------
    TypeError
        ``values`` is not a mapping, or a value cannot be packed.
    ValueError
        A key is not a valid name.
    """
    if not isinstance(values, Mapping):
        msg = f"push takes values by name, like {{'x': x}}, not {type(values).__name__}"
        raise TypeError(msg)
    buffers = pack_values({checked_name(name): value for name, value in values.items()})
    return make_task(bind_values, buffers=buffers)
