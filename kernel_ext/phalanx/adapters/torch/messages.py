"""Send and receive tensors with tags.

The engine's messages have an order for each pair of ranks, and no tags. So a header goes before
each tensor: tag, dtype and number of elements. A receiver that reads the header of another tag
keeps that message until it is asked for.

A message runs in whichever comes first: the thread that waits for it, or the lane's own thread.
So two ranks that first send and then receive do not wait for each other.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phalanx.distributed.group.group import Group
from phalanx.distributed.group.registry import Membership
from phalanx.errors import CollectiveMismatch, CollectiveTimeout, DistributedError, NotSupported

from .tensors import as_row, check, is_row, view
from .work import TorchWork

_DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str
)


class Messages:
    """Messages of one process group."""

    def __init__(
        self,
        group: Group,
        limit: Callable[[], float],
        report: Callable[[Membership, BaseException], BaseException],
    ) -> None:
        self._group = group
        self._limit = limit
        self._report = report
        self._lanes: dict[tuple[bool, int], _Lane] = {}
        self._kept: dict[int, deque[tuple[int, Tensor]]] = {}

    def renew(self) -> None:
        """Forget the messages of the last epoch."""
        for lane in self._lanes.values():
            lane.end()
        self._lanes, self._kept = {}, {}

    def send(self, tensor: Tensor, dst: int, tag: int) -> TorchWork:
        """Start to send a tensor."""
        self._check_peer("send", dst)
        row = as_row(check("send", tensor))
        array, dtype = view("send", row)
        head = np.array([tag, _DTYPES.index(tensor.dtype), row.numel()], np.int64)
        current, limit = self._group._current, self._limit()
        engine = current.engine

        def move() -> None:
            engine.run("send", head, None, dst, limit)
            if row.numel():
                engine.run("send", array, None, dst, limit, dtype)

        return self._start(current, (False, dst), move, [tensor], current.spec.rank)

    def recv(self, tensor: Tensor, src: int, tag: int) -> TorchWork:
        """Start to receive a tensor."""
        self._check_peer("recv", src)
        target = check("recv", tensor)
        kept = self._kept.setdefault(src, deque())
        current, limit = self._group._current, self._limit()
        engine = current.engine

        def move() -> None:
            for place, (its_tag, message) in enumerate(kept):
                if its_tag == tag:
                    del kept[place]
                    _fit(target, message, src, tag)
                    target.copy_(message.view(target.shape))
                    return
            while True:
                head = np.empty(3, np.int64)
                engine.run("recv", None, head, src, limit)
                its_tag, number, count = head.tolist()
                is_ours = its_tag == tag
                if is_ours and is_row(target):
                    row = as_row(target)
                elif is_ours:
                    row = torch.empty(target.numel(), dtype=target.dtype)
                else:
                    row = torch.empty(count, dtype=_DTYPES[number])
                array, dtype = view("recv", row)
                if count or (is_ours and row.numel()):
                    engine.run("recv", None, array, src, limit, dtype)
                if not is_ours:
                    kept.append((its_tag, row))
                    continue
                if not is_row(target):
                    target.copy_(row.view(target.shape))
                return

        return self._start(current, (True, src), move, [tensor], src)

    def _check_peer(self, op: str, peer: int) -> None:
        if not 0 <= peer < self._group.size():
            msg = f"{op}: rank {peer} is not in a group of size {self._group.size()}"
            raise ValueError(msg)
        if peer == self._group.rank():
            msg = f"{op}: a rank cannot send to itself"
            raise NotSupported(msg)

    def _start(
        self,
        current: Membership,
        key: tuple[bool, int],
        move: Callable[[], None],
        outputs: list[Any],
        source: int,
    ) -> TorchWork:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
        message = _Message(lane, move)
        lane.add(message)
        return TorchWork(outputs, [message], None, partial(self._report, current), source)


class _Message:
    """A message that is sent or received once."""

    def __init__(self, lane: _Lane, move: Callable[[], None]) -> None:
        self._lane = lane
        self._move = move
        self._error: Exception | None = None
        self._was_interrupted = False
        self.is_over = False

    @property
    def done(self) -> bool:
        """Whether the message has moved, or failed."""
        return self.is_over and not self._was_interrupted

    def run(self) -> None:
        """Move the bytes; the lane calls this in turn."""
        try:
            self._move()
        except Exception as error:  # noqa: BLE001  # raised by `wait`
            self._error = error
        except BaseException:  # of a signal: another thread that waits must not wait for ever
            self._was_interrupted = True
            self._error = DistributedError("the message was interrupted")
            raise
        finally:
            self.is_over = True

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the message has moved; raise its error."""
        self._lane.run_until(self, timeout)
        if self._error is not None:
            raise self._error


class _Lane:
    """The messages to, or from, one rank, in order."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._waiting: deque[_Message] = deque()
        self._signals: SimpleQueue[bool] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, message: _Message) -> None:
        """Append a message and wake the thread."""
        self._waiting.append(message)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._serve, name="phalanx-torch-messages", daemon=True
            )
            self._thread.start()
        self._signals.put(True)

    def end(self) -> None:
        """Let the thread end."""
        self._signals.put(False)

    def run_until(self, message: _Message, timeout: float | None) -> None:
        """Run messages in turn until this one is over."""
        while not message.is_over:
            if not self._turn.acquire(timeout=-1 if timeout is None else timeout):
                msg = f"the message was not complete after {timeout:g} s"
                raise CollectiveTimeout(msg)
            try:
                if not message.is_over:
                    self._waiting.popleft().run()
            finally:
                self._turn.release()

    def _serve(self) -> None:
        while self._signals.get():
            if not self._waiting:  # the thread that waits for the message has begun it
                continue
            with self._turn:
                if self._waiting:
                    self._waiting.popleft().run()


def _fit(target: Tensor, message: Tensor, src: int, tag: int) -> None:
    if target.dtype is not message.dtype or target.numel() != message.numel():
        msg = (
            f"recv: rank {src} sent {message.numel()} elements of {message.dtype} with tag {tag}; "
            f"{target.numel()} of {target.dtype} were expected"
        )
        raise CollectiveMismatch(msg)
