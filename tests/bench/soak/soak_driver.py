"""The soak's end of its client: asking it, with a bound on every wait, and killing it.

It knows processes and what they say; what an answer should be is the steps'.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from support.programs.processes import with_variable

MARK = "PHALANX_SOAK"  # a variable that everything started for a soak inherits
MIB = 1 << 20


class Defect(Exception):
    """Something is not as promised; ``kind`` is the line of the report that counts it."""

    kind = "broken promises"


class Wrong(Defect):
    """A value is not numpy's, or a variable is not what it was."""

    kind = "wrong values"


class Hung(Defect):
    """A step took longer than its bound."""

    kind = "hung"


class Leaked(Defect):
    """More is there than before."""

    kind = "leaked"


def fail_if(is_so: bool, text: str, kind: type[Defect] = Defect) -> None:
    """Raise a defect if something is so."""
    if is_so:
        raise kind(text)


@dataclass(frozen=True)
class Answer:
    """What came of a request: a value, or an error by the names of its classes."""

    seconds: float
    notices: list[str]
    value: Any = None
    error: list[str] = field(default_factory=list)
    text: str = ""
    trace: str = ""
    rank: int = -1
    failures: dict[int, list[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.error:
            return f"{self.value!r}"
        return f"{self.error[0]}: {self.text}"

    def is_a(self, kind: str) -> bool:
        """Whether it is an error of this class."""
        return kind in self.error

    def well(self) -> Any:
        """The value; an error is a defect, and of values if a rank has found one wrong."""
        fail_if(any(ename == "Wrong" for ename, _ in self.failures.values()), str(self), Wrong)
        fail_if(bool(self.error), f"{self}\n{self.trace}")
        return self.value

    def expect(self, *kinds: str, ranks: Collection[int] | None = None) -> None:
        """It must be an error of one of these classes, and name one of these ranks."""
        fail_if(
            not any(self.is_a(kind) for kind in kinds),
            f"{' or '.join(kinds)} was due; what came: {self}\n{self.trace}",
        )
        fail_if(
            ranks is not None and self.rank not in ranks, f"one of {ranks} was to be named: {self}"
        )

    def expect_freed(self, ranks: Collection[int], culprits: Collection[int]) -> None:
        """On each of these ranks it must be a RankFailure that names one of the culprits."""
        for rank in ranks:
            ename, evalue = self.failures.get(rank, ["nothing", ""])
            is_named = any(f"rank {culprit} " in evalue for culprit in culprits)
            fail_if(
                ename != "RankFailure" or not is_named,
                f"rank {rank} was to be told of {list(culprits)}, not {ename}: {evalue}",
            )


class Client:
    """A client process; several requests may be under way where they are ``aside``."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "client.log"
        with self.log.open("a") as log:
            self.popen = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("soak_client.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.process = psutil.Process(self.popen.pid)
        self._numbers = itertools.count(1)
        self._due: dict[int, Future[Answer]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def begin(self, do: str, *, aside: bool = False, **args: Any) -> Future[Answer]:
        """Send a request; `wait` has its answer."""
        number = next(self._numbers)
        due = self._due[number] = Future()
        request = {"id": number, "do": do, "aside": aside, "args": args}
        assert self.popen.stdin is not None
        try:
            self.popen.stdin.write(json.dumps(request) + "\n")
            self.popen.stdin.flush()
        except OSError as error:
            raise self._ended() from error
        return due

    def wait(self, due: Future[Answer], bound_s: float) -> Answer:
        """The answer to a request."""
        if not futures.wait([due], bound_s).done:
            msg = f"no answer in {bound_s:g} s"
            raise Hung(msg)
        return due.result()

    def ask(self, do: str, bound_s: float, **args: Any) -> Answer:
        """Send a request and wait for its answer."""
        return self.wait(self.begin(do, **args), bound_s)

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            said = json.loads(line)
            said["failures"] = {int(rank): how for rank, how in said.get("failures", {}).items()}
            self._due.pop(said.pop("id")).set_result(Answer(**said))
        while self._due:
            self._due.popitem()[1].set_exception(self._ended())

    def _ended(self) -> Defect:
        return Defect(f"the client ended by itself: {self._last_words()}")

    def _last_words(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]

    @property
    def rss(self) -> int:
        """Bytes of memory it has now."""
        return self.process.memory_info().rss

    def kill(self) -> None:
        """End it as a crash would."""
        self.popen.kill()
        self._reap()

    def close(self, bound_s: float) -> None:
        """Let it end normally."""
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        try:
            self.popen.wait(bound_s)
        except subprocess.TimeoutExpired:
            self.kill()
            msg = f"the client did not end in {bound_s:g} s"
            raise Hung(msg) from None
        self._reap()

    def _reap(self) -> None:
        self.popen.wait(10)
        self._reader.join(10)
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # what a killed client did not read
                    pipe.close()

    def where(self) -> str:
        """Where its threads are."""
        self.popen.send_signal(signal.SIGUSR1)
        time.sleep(0.5)  # faulthandler writes in a signal handler and says nothing when it is done
        return self._last_words()


def family() -> list[psutil.Process]:
    """All processes that were started for this soak and live."""
    return with_variable(MARK, os.environ[MARK])


def wait_family(n: int, timeout_s: float) -> list[psutil.Process]:
    """Wait until no more than ``n`` processes are left; those that are."""
    deadline_s = time.monotonic() + timeout_s
    while len(found := family()) > n and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return found


def say(processes: list[psutil.Process]) -> str:
    """Name processes."""
    words = []
    for process in processes:
        try:
            words.append(f"{process.pid} ({' '.join(process.cmdline())[-100:]})")
        except psutil.Error:
            continue
    return ", ".join(words)
