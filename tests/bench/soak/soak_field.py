"""The soak's workspace, and the model of what its ranks must have: `Field`.

A rank counts its cells (`kept`), and has a mark of its own and an array from when it was new. What
a step does to ranks is the steps'; here is how they come back, and that they lack nothing.
"""

from __future__ import annotations

import ast
import os
import random
import signal
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from soak_driver import Answer, Client, Wrong, fail_if

BOUND_S = 30.0  # of a step that waits for nothing but the machine
CELL = "kept += 1\n"
_BALLAST = 10_000
_CHECK = (
    "(int(px.all_sum(rank + 1)), globals().get('kept'), globals().get('mark'), "
    "int(globals().get('ballast', np.zeros(1)).sum()), "
    "globals().get('alias', [None])[0] is globals().get('ballast'))"
)


class Field:
    """A workspace with its client of the moment.

    ``low`` and ``high`` bound each rank's counter: a cell that was stopped, or whose client was
    killed, may have counted or not. ``marks`` are the ranks' own, None where a rank is new.
    """

    def __init__(
        self, name: str, size: int, transport: str, silence_s: float, folder: Path
    ) -> None:
        self.name, self.size, self.folder, self.silence_s = name, size, folder, silence_s
        self.transport = transport
        self.ranks = range(size)
        self.low, self.high = [0] * size, [0] * size
        self.marks: list[str | None] = [None] * size
        self.lives = [0] * size
        self.n_cells = 0
        self.client = Client(folder)
        options = {"transport": transport, "silence": silence_s, "linger": 30.0}
        self.root_pid = self.client.ask("start", 60.0, n=size, name=name, **options).well()
        self.client_rss = 0
        self.client_growth = 0
        self.settle()

    # -- cells -----------------------------------------------------------------------------------

    def begin(
        self, code: str, ranks: Iterable[int] | None = None, **options: Any
    ) -> Future[Answer]:
        """Send a cell that counts; whether it has is known at its end."""
        self.n_cells += 1
        for rank in self.ranks if ranks is None else ranks:
            self.high[rank] += 1
        if ranks is not None:
            options["ranks"] = list(ranks)
        return self.client.begin("run", code=CELL + code, **options)

    def end(self, cell: Future[Answer], bound_s: float = BOUND_S) -> Answer:
        """Wait for a cell that ends as it may."""
        answer = self.client.wait(cell, bound_s)
        fail_if(any(ename == "Wrong" for ename, _ in answer.failures.values()), str(answer), Wrong)
        return answer

    def good(self, code: str, ranks: Iterable[int] | None = None) -> list[Any]:
        """Run a cell that ends well; its values."""
        cell = self.begin(code, ranks)
        values = self.end(cell).well()
        for rank in self.ranks if ranks is None else ranks:
            self.low[rank] += 1
        return [None if value is None else ast.literal_eval(value) for value in values]

    def work(self, seed: str, n_ops: int) -> str:
        """The code of a program of operations."""
        return f"soak_ops.run({seed!r}, {n_ops}, part)"

    def endless(self, seed: str) -> str:
        """The code of one that only ends when something breaks."""
        return f"soak_ops.until_broken({seed!r}, part)"

    def wait_busy(self, cell: Future[Answer], ranks: Collection[int] | None = None) -> None:
        """Wait until these ranks run the cell, or it has ended."""
        expected = set(self.ranks if ranks is None else ranks)
        self.wait_for(
            "the ranks run a cell",
            lambda seen: (
                cell.done()
                or all(
                    state in {"busy", "dead"} for rank, state in seen.items() if rank in expected
                )
            ),
        )

    def states(self) -> list[dict[str, Any]]:
        """What the ranks do, as the workspace knows."""
        found: list[dict[str, Any]] = self.client.ask("ranks", BOUND_S, aside=True).well()
        return found

    def wait_for(
        self, what: str, is_so: Callable[[dict[int, str]], bool], bound_s: float = 10.0
    ) -> None:
        """Wait until the states of the ranks are so."""
        deadline_s = time.monotonic() + bound_s
        while not is_so(seen := {rank: s["state"] for rank, s in enumerate(self.states())}):
            fail_if(time.monotonic() > deadline_s, f"not within {bound_s:g} s: {what}; {seen}")
            time.sleep(0.02)

    # -- faults ----------------------------------------------------------------------------------

    def pid(self, rank: int) -> int:
        """A rank's process."""
        return int(self.states()[rank]["pid"])

    def kill(self, *ranks: int) -> float:
        """Kill ranks; when."""
        pids = [self.pid(rank) for rank in ranks]
        now_s = time.monotonic()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.lose(ranks)
        return now_s

    def lose(self, ranks: Iterable[int]) -> None:
        """Note that ranks lose what they have."""
        for rank in ranks:
            self.marks[rank] = None

    def wait_dead(self, ranks: Collection[int]) -> None:
        """Until the workspace knows."""
        self.wait_for(
            f"{list(ranks)} dead", lambda seen: all(seen[r] == "dead" for r in ranks), 5.0
        )

    def new_client(self, *, take: bool = False, kill: bool = True) -> Answer:
        """Go on with another client; how the joining of what ran ended."""
        old, self.client = self.client, Client(self.folder)
        if not take:
            self.leave(old, kill=kill)
        attached = self.client.ask("attach", BOUND_S, name=self.name, take=take).well()
        fail_if(attached != self.root_pid, f"attached to process {attached}, not {self.root_pid}")
        if take:
            said = old.ask("run", BOUND_S, code="1")
            fail_if(
                "was taken over" not in said.text, f"a client whose workspace was taken got {said}"
            )
            self.leave(old, kill=kill)
        self.client_rss = 0
        return self.client.ask("join", BOUND_S)

    def leave(self, client: Client, *, kill: bool) -> None:
        """End a client, and see what it has grown by."""
        if self.client_rss and client.popen.poll() is None:
            self.client_growth = max(self.client_growth, client.rss - self.client_rss)
        if kill:
            client.kill()
        else:
            client.close(BOUND_S)

    # -- coming back -----------------------------------------------------------------------------

    def restart(self, due: Collection[int], **options: Any) -> None:
        """Replace ranks, as `Workspace.restart`; those that are replaced must be those that are due."""
        self.lose(due)
        replaced = self.client.ask("restart", 90.0, **options).well()
        fail_if(sorted(replaced) != sorted(due), f"restart replaced {replaced}, not {sorted(due)}")

    def replace_dead(self) -> None:
        """Replace dead ranks."""
        seen = self.states()
        dead = [rank for rank, info in enumerate(seen) if info["state"] == "dead"]
        unknown = [rank for rank in dead if self.marks[rank] is not None]
        fail_if(bool(unknown), f"ranks {unknown} are dead and nobody killed them: {seen}")
        if dead:
            self.restart(dead)

    def check(self, copied: dict[int, int] | None = None) -> None:
        """A right sum over all ranks, and all that they have; ``copied``: from whom new ones have it."""
        copied = copied or {}
        self.n_cells += 1
        answer = self.client.ask("run", BOUND_S, code=_CHECK)
        values = [ast.literal_eval(value) for value in answer.well()]
        fail_if(
            len(values) != self.size, f"{len(values)} of {self.size} ranks answer: {answer.notices}"
        )
        for rank, (total, kept, mark, ballast, is_shared) in enumerate(values):
            fail_if(
                total != self.size * (self.size + 1) // 2,
                f"all_sum(rank + 1) is {total} on rank {rank}",
                Wrong,
            )
            fail_if(not is_shared, f"two names of rank {rank} were one object", Wrong)
            source = copied.get(rank, rank)
            expected = self.marks[source]
            fail_if(
                mark != expected, f"the mark of rank {rank} is {mark!r}, not {expected!r}", Wrong
            )
            if expected is None:
                continue
            low, high = self.low[source], self.high[source]
            fail_if(
                not low <= kept <= high,
                f"rank {rank} has counted {kept} cells, not {low} to {high}",
                Wrong,
            )
            fail_if(
                ballast != _BALLAST * (_BALLAST - 1) // 2 + _BALLAST * source,
                f"rank {rank} has lost its array: {ballast}",
                Wrong,
            )
            if source == rank:
                self.low[rank] = self.high[rank] = kept

    def settle(self) -> None:
        """Give new ranks what they are to keep, and all of them their split."""
        fresh = [rank for rank in self.ranks if self.marks[rank] is None]
        if fresh:
            for rank in fresh:
                self.lives[rank] += 1
                self.marks[rank] = f"{self.name}: rank {rank}, life {self.lives[rank]}"
                self.low[rank] = self.high[rank] = 0
            code = (
                "import sys\n"
                f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
                f"import soak_ops\nmark = {self.marks!r}[rank]\nkept = 0\n"
                f"ballast = np.arange({_BALLAST}) + rank\nalias = [ballast]\n"
            )
            self.client.ask("run", BOUND_S, code=code, ranks=fresh).well()
            split = "part = world.split(rank % 2)"
            self.client.ask("run", BOUND_S, code=split).well()
            self.n_cells += 2
        if not self.client_rss:
            self.client_rss = self.client.rss

    def recover(self, begin_s: float, copied: dict[int, int] | None = None) -> float:
        """Come back after a fault; seconds since then to the first right sum of all ranks."""
        self.replace_dead()
        self.check(copied)
        seconds = time.monotonic() - begin_s
        self.settle()
        return seconds


def pick(rng: random.Random, ranks: range, most: int = 1) -> list[int]:
    """Some ranks, in order."""
    return sorted(rng.sample(ranks, rng.randint(1, most)))
