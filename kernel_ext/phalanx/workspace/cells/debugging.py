"""Ask the ranks' debuggers, in the Debug Adapter Protocol (DAP)."""

from __future__ import annotations

import itertools
import json
import secrets
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any

from phalanx.protocol import MOST_DAP_NBYTES, AskDebugger

DapMessage = dict[str, Any]

_DEAD = "rank {} is dead"
_TOO_LONG = "a debugger's request has at most {:,} bytes"


class RankDebuggers:
    """Sends requests to the ranks' debuggers, and tracks stopped ranks.

    Any thread may ask. The socket thread calls the other methods and ``on_event``. A rank's process
    answers each request, or dies: both end the request's future.
    """

    def __init__(self, lost: Collection[int], send: Callable[[int, AskDebugger], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        # From a random number on: an answer to another client's request is dropped.
        self._numbers = itertools.count(secrets.randbits(30))
        self._pending: dict[int, tuple[int, Future[DapMessage]]] = {}  # by number: rank and answer
        self.lost = lost  # the dead ranks, as they are now
        self.attached: set[int] = set()
        self.stopped: set[tuple[int, int]] = set()  # rank and the debugger's number of the thread
        self.on_event: Callable[[int, DapMessage], None] = lambda rank, event: None

    def ask(self, rank: int, command: str, **arguments: Any) -> Future[DapMessage]:
        """Send a request; the future's answer may be a refusal."""
        number, answer = next(self._numbers), Future[DapMessage]()
        request = {"type": "request", "seq": number, "command": command, "arguments": arguments}
        body = json.dumps(request).encode()
        with self._lock:
            refusal = _DEAD.format(rank) if rank in self.lost else ""
            if len(body) > MOST_DAP_NBYTES:
                refusal = _TOO_LONG.format(MOST_DAP_NBYTES)
            if not refusal:
                self._pending[number] = rank, answer
        if refusal:
            answer.set_result(_refused(refusal))
        else:
            self._send(rank, AskDebugger(body))
        return answer

    def detach(self) -> None:
        """End debugging: ranks that stand at a breakpoint go on."""
        for rank in sorted(self.attached):
            self.ask(rank, "disconnect", terminateDebuggee=False)
        self.attached.clear()
        self.resume()

    def resume(self, ranks: set[int] | None = None) -> None:
        """Count ranks (None: all) as not stopped: their cell is over."""
        for rank, thread in list(self.stopped):
            if ranks is None or rank in ranks:
                body = {"threadId": thread, "allThreadsContinued": False}
                self._take_event(rank, {"type": "event", "event": "continued", "body": body})

    def on_says(self, rank: int, message: bytes) -> None:
        """Take an answer or an event of a rank's debugger."""
        said: DapMessage = json.loads(message)
        if said["type"] == "event":
            self._take_event(rank, said)
            return
        with self._lock:
            _, answer = self._pending.pop(said["request_seq"], (rank, None))
        if answer is not None:
            answer.set_result(said)

    def on_lost(self, rank: int) -> None:
        """Refuse what a dead rank was asked."""
        with self._lock:
            asked = {number for number, (where, _) in self._pending.items() if where == rank}
            answers = [self._pending.pop(number)[1] for number in asked]
        self.attached.discard(rank)
        for answer in answers:
            answer.set_result(_refused(_DEAD.format(rank)))
        self.resume({rank})

    def _take_event(self, rank: int, event: DapMessage) -> None:
        place = rank, event["body"]["threadId"]
        if event["event"] == "stopped":
            self.stopped.add(place)
        else:
            self.stopped.discard(place)
        self.on_event(rank, event)


def _refused(why: str) -> DapMessage:
    return {"type": "response", "success": False, "message": why}
