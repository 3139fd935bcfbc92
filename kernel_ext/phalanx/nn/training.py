"""Train in steps that all ranks finish, or none.

After each step the ranks agree that all have finished it, and keep a copy of the state. If a rank
is lost, the others go back to the last copy, and the rank that replaces it gets that copy.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from phalanx.distributed.bootstrap.init import init, recover
from phalanx.distributed.group.group import Group
from phalanx.distributed.operations.exchanges import all_gather, broadcast
from phalanx.distributed.operations.objects import all_gather_object, broadcast_object
from phalanx.errors import CollectiveMismatch, CollectiveTimeout, DistributedError, RankFailure
from phalanx.protocol import name_ranks

from .arrays import ArrayForm
from .states import capture, compute, pack, restore, unpack

if TYPE_CHECKING:
    from typing_extensions import Self

_MOST_FAILURES = 3  # in a row, without a commit between them


class _Commit(NamedTuple):
    """The state after a step.

    ``part`` is what this rank has for itself, ``parts`` what each rank has.
    """

    step: int
    state: Any
    part: Any = None
    parts: tuple[Any, ...] = ()


class _Standing(NamedTuple):
    """The steps that a rank has finished.

    ``pending`` is a step that this rank has finished, and of which it does not know whether all
    have; -1: none.
    """

    committed: int
    pending: int
    begins: bool
    has_own: bool


class _Left(NamedTuple):
    """Keeps what the next loop of this process needs.

    ``state`` and ``pending`` are None, so that nothing large is held, unless a step has failed.
    """

    step: int
    own: dict[str, Any] | None
    parts: tuple[Any, ...]
    state: dict[str, Any] | None = None
    pending: _Commit | None = None


class TrainingStep:
    """The context of one step of a training; made by `steps`.

    ``number`` is the number of steps that are done before it.
    """

    def __init__(self, steps: TrainingSteps, number: int) -> None:
        self.number = number
        self._steps = steps
        self.is_over = False

    def __enter__(self) -> Self:
        """Begin the step."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> bool:
        """Commit the step, or go back to the last commit.

        Return whether to go on.
        """
        self.is_over = True
        if error is not None:
            return self._steps._go_back_after(error)
        try:
            self._steps._finish()
        except BaseException as failure:
            if not self._steps._go_back_after(failure):
                raise
        return False

    def __repr__(self) -> str:
        """Show the step's number."""
        return f"<phalanx.nn.TrainingStep {self.number}>"


class TrainingSteps:
    """The steps of a training; made by `steps`, and iterated once.

    ``n_recovered`` counts how often ranks were lost and the training went on. ``commit_s`` is the
    time that the last commit took, in seconds.
    """

    _left: _Left | None = None  # of this process

    def __init__(
        self,
        state: dict[str, Any],
        stop: int | None,
        own: dict[str, Any] | None,
        every: int,
        group: Group | None,
        timeout: float,
    ) -> None:
        self.state, self.own = state, own
        self.n_recovered = 0
        self.commit_s = 0.0
        self._stop, self._every, self._timeout = stop, every, timeout
        self._group = group
        part = None if own is None else capture(own)
        self._saved = _Commit(int(state["step"]), capture(state), part)
        self._pending: _Commit | None = None
        self._spare: Any = None  # a copy that is no longer needed
        self._n_failed = 0  # since the last commit
        left = TrainingSteps._left
        if left is not None and left.step == self._saved.step:
            if left.own is own:
                self._saved = self._saved._replace(parts=left.parts)
            if left.state is state:
                self._pending = left.pending

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: a step that failed has gone back already."""

    def __iter__(self) -> Iterator[TrainingStep]:
        """Agree with all ranks where to begin, then yield each step.

        Raises
        ------
        DistributedError
            The ranks cannot agree, or a rank was lost and not replaced.
        TypeError
            The body of the loop did not enter the step.
        """
        self._agree(begins=True)
        while self._stop is None or self.state["step"] < self._stop:
            step = TrainingStep(self, self.state["step"])
            yield step
            if not step.is_over:
                msg = "steps: do the step in its context: for step in px.nn.steps(...): with step: ..."
                raise TypeError(msg)

    # -- the end of a step ----------------------------------------------------------------------

    def _finish(self) -> None:
        number = self.state["step"] = self.state["step"] + 1
        if number % self._every == 0 or number == self._stop:
            self._commit(number)

    def _commit(self, number: int) -> None:
        """Copy the state; keep the copy once all ranks have theirs."""
        begun = time.monotonic()
        spare, self._spare, self._pending = self._spare, None, None
        commit = _Commit(number, capture(self.state, spare))
        compute(commit.state)
        if self.own is None:
            self._pending = commit
            found = tuple(all_gather(np.array([number]), group=self._group).tolist())
        else:
            part = capture(self.own)
            compute(part)
            self._pending = commit = commit._replace(part=part)
            answers = all_gather_object((number, part), group=self._group)
            found = tuple(step for step, _ in answers)
            commit = commit._replace(parts=tuple(part for _, part in answers))
        if set(found) != {number}:
            raise CollectiveMismatch(_different_steps(found))
        # A stop between two of these lines leaves what `_agree` understands.
        spare, self._saved = self._saved.state, commit
        self._spare, self._pending = spare, None
        TrainingSteps._left = _Left(number, self.own, commit.parts)
        self._n_failed = 0
        self.commit_s = time.monotonic() - begun

    # -- after a failure ------------------------------------------------------------------------

    def _roll_back(self) -> None:
        restore(self.state, self._saved.state)
        if self._saved.part is not None:
            restore(self.own, self._saved.part)

    def _go_back_after(self, error: BaseException) -> bool:
        """Return to the last commit; return whether to go on from there."""
        saved = self._saved
        TrainingSteps._left = _Left(saved.step, self.own, saved.parts, self.state, self._pending)
        self._roll_back()
        if not isinstance(error, RankFailure | CollectiveTimeout):
            return False
        self._n_failed += 1
        if self._n_failed > _MOST_FAILURES:
            return False
        try:
            recover(self._timeout)
            self._agree(begins=False)
        except RankFailure:
            return False  # the first error says why
        self.n_recovered += 1
        if self._rank() == 0:
            step = self.state["step"]
            sys.stderr.write(f"steps: {error}; training goes on after step {step}\n")
        return True

    def _agree(self, *, begins: bool) -> None:
        """Agree on the newest step; give it to ranks that lack it."""
        timeout = None if begins else self._timeout
        pending = -1 if self._pending is None else self._pending.step
        mine = _Standing(self._saved.step, pending, begins, self.own is not None)
        answers = all_gather_object(mine, group=self._group, timeout=timeout)
        if len({standing.has_own for standing in answers}) > 1:
            msg = "steps: some ranks pass own=, and others do not"
            raise CollectiveMismatch(msg)
        agreed = max(standing.committed for standing in answers)
        if self._saved.step < agreed and self._pending is not None and pending == agreed:
            self._saved = self._pending
        holders = [r for r, s in enumerate(answers) if agreed in (s.committed, s.pending)]
        # At the beginning all get the state of one rank, as they may have drawn other numbers.
        if any(standing.begins for standing in answers) or len(holders) < len(answers):
            state = self._receive(holders[0], timeout)
            self._saved = self._saved._replace(step=agreed, state=state)
        if self.own is not None:
            self._share_parts(holders, timeout)
        self._pending = None
        self._roll_back()
        self.state["step"] = agreed

    def _rank(self) -> int:
        return (init() if self._group is None else self._group).rank()

    def _receive(self, root: int, timeout: float | None) -> Any:
        """Return the state of one rank; on that rank its own."""
        group = self._group
        packed = pack(self._saved.state, _can_be_sent)
        sent = packed.form, [ArrayForm.of(array) for array in packed.arrays]
        form, forms = broadcast_object(sent, root, group=group, timeout=timeout)
        is_root = self._rank() == root
        arrays = [
            broadcast(
                packed.arrays[number] if is_root else its_form.empty(),
                root,
                group=group,
                timeout=timeout,
            )
            for number, its_form in enumerate(forms)
        ]
        return self._saved.state if is_root else unpack(form, arrays)

    def _share_parts(self, holders: list[int], timeout: float | None) -> None:
        """Share what each rank has for itself.

        A new rank gets what the lost one had.
        """
        rank = self._rank()
        mine = self._saved.part if rank in holders else None
        parts = all_gather_object(mine, group=self._group, timeout=timeout)
        lacking = [rank for rank, part in enumerate(parts) if part is None]
        if lacking:
            kept = broadcast_object(
                self._saved.parts, holders[0], group=self._group, timeout=timeout
            )
            if len(kept) != len(parts):
                msg = f"steps: no rank has a copy of what {name_ranks(lacking)} had for itself"
                raise DistributedError(msg)
            parts = [old if part is None else part for old, part in zip(kept, parts, strict=True)]
        self._saved = self._saved._replace(part=parts[rank], parts=tuple(parts))


def _can_be_sent(array: Any) -> bool:
    return not (isinstance(array, np.ndarray) and array.dtype.kind not in "biufc")


def _different_steps(found: tuple[int, ...]) -> str:
    by_rank = ", ".join(f"rank {rank}: {step}" for rank, step in enumerate(found))
    return f"steps: the ranks have finished different steps ({by_rank})"


def steps(
    state: dict[str, Any],
    stop: int | None = None,
    *,
    own: dict[str, Any] | None = None,
    every: int = 1,
    group: Group | None = None,
    timeout: float = 60.0,
) -> TrainingSteps:
    """Iterate over the steps of a training.

    The training goes on after the loss of a rank.

    Parameters
    ----------
    state : dict
        What all ranks have alike: parameters or a module, the optimizer, the position in the data.
        Values are arrays of numpy, torch and MLX, numbers, containers of them, random generators,
        modules and optimizers of torch and MLX, and objects with ``state_dict`` and
        ``load_state_dict``. ``state["step"]`` is the number of finished steps; it is added if it is
        missing.
    stop : int, optional
        Number of steps of the whole training; ``None``: no end.
    own : dict, optional
        What this rank has for itself, such as its random generator; values as in ``state``. Every
        rank keeps a copy of all ranks' parts, so this is for small parts.
    every : int, optional
        Commit after this many steps. After a loss up to so many steps are repeated.
    group : Group, optional
        Ranks that train together; ``None``: all. Only with all ranks can a lost rank be replaced.
    timeout : float, optional
        Seconds to wait for the other ranks, and for the replaced one, after a failure.

    Returns
    -------
    TrainingSteps
        An iterable of steps. Do each in its context, as in the example. At the start all ranks get
        the state of one rank: the one that is farthest, and of several the first.

    Raises
    ------
    ValueError
        ``every`` or ``stop`` is not positive, or ``state["step"]`` is no whole number.
    TypeError
        ``state`` is no dict, or a part of it cannot be copied (names its path).

    See Also
    --------
    average_gradients : averages the gradients within a step.

    Notes
    -----
    At the end of a step's context the ranks agree that all have finished, and each keeps a copy
    (a commit). An exception in the context puts the last commit back. `RankFailure` and
    `CollectiveTimeout` then form the group again and go on, if all ranks are there:

    - ``phalanx launch --max-restarts K`` replaces a lost rank. The new process runs the script from
      its start and gets the state at its first `steps`. Before that it must not call operations
      that the other ranks do not call again.
    - ``phalanx launch --keep-going`` goes on with fewer ranks.
    - In a notebook the cell ends with the error. Replace the rank (``%distributed restart``), run
      on it the cells that it lacks, and run the cell with the loop again: it goes on after the last
      commit.

    Cost of a commit: an `all_gather` of 8 bytes (with ``own`` an `all_gather_object`), and a copy
    of the arrays of numpy and torch. Two copies are kept. Arrays of MLX are not copied.

    Examples
    --------
    >>> import numpy as np, phalanx as px
    >>> state = {"w": np.zeros(2)}
    >>> for step in px.nn.steps(state, 3):
    ...     with step:
    ...         state["w"] += px.nn.average_gradients(np.ones(2))
    >>> state
    {'w': array([3., 3.]), 'step': 3}
    """
    given: object = state
    if not isinstance(given, dict):
        msg = f"steps: the state must be a dict, not {type(state).__name__}"
        raise TypeError(msg)
    if every < 1 or (stop is not None and stop < 1):
        msg = f"steps: every and stop must be 1 or more, not {every} and {stop}"
        raise ValueError(msg)
    number = state.setdefault("step", 0)
    if not isinstance(number, int) or number < 0:
        msg = f'steps: state["step"] must be the number of finished steps, not {number!r}'
        raise ValueError(msg)
    return TrainingSteps(state, stop, own, every, group, timeout)
