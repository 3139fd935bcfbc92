"""An afternoon of faults in a minute: random cells on a workspace whose ranks and client break.

Work and faults are dealt from a deck that the seed shuffles (`soak_steps`), until the time is over.
Every value is checked against numpy, every variable of a rank that lives must be there, every step
has a bound, and afterwards nothing may be left. A defect is told with what repeats it; the soak
then goes on with a new workspace. What a step does follows from the seed and its number, but for the
time that processes take. `--legs 2` are two soaks, one after the other, each with its share of the
time, the next seed, a transport and a number of ranks. `--only` deals one kind of step.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psutil
from bench.common import arguments, median, print_machine, print_table, write_json
from soak_deaths import DEATHS
from soak_driver import MARK, MIB, Client, Defect, Hung, Leaked, fail_if, family, say, wait_family
from soak_field import Field
from soak_steps import MISTAKES, WORK, Fault, Work, own_error, work

from phalanx.errors import DistributedError
from phalanx.workspace import stop_workspace

_GONE_S = 10.0
# What there may be more of than at the start. Memory: what IPython keeps of its cells, the record of
# what ranks have shown, and what the allocators keep; what leaks per cell is found in an hour.
# Descriptors: each thread of the kernel that publishes for the first time (at a stop, an attach, a
# question of help) opens one to do so, once; what leaks per fault is soon more.
_MORE = {
    "processes": 0,
    "descriptors of the root": 0,
    "descriptors of a rank": 8,
    "MiB of the root": 32,
    "MiB of a rank": 128,
    "MiB of a client": 32,
}
_FORGET = """
import gc, sys
sys.last_type = sys.last_value = sys.last_traceback = get_ipython().InteractiveTB.tb = None
gc.collect()
None
"""
_KINDS = ("wrong values", "broken promises", "hung", "leaked")


_STEPS: dict[Work | Fault, int] = {**WORK, **MISTAKES, **DEATHS}
_SILENCE_S = 2.0  # after so many seconds a rank is taken for frozen


def _open_files(pid: int) -> dict[str, int]:
    """What a process has open, by kind or name, and how often."""
    found: Counter[str] = Counter()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found[str(file.readlink()).partition("[")[0]] += 1
    return dict(found)


TRANSPORTS = {"any": ("any",), "tcp": ("tcp",), "both": ("any", "tcp")}


@dataclass(frozen=True)
class Leg:
    """A part of a soak, which can be repeated by itself."""

    seed: int
    ranks: int
    transport: str

    def __str__(self) -> str:
        return f"--seed {self.seed} --ranks {self.ranks} --transport {self.transport}"


def legs_of(options: argparse.Namespace) -> list[Leg]:
    """The legs of a soak; seed 0 is drawn, the number of ranks follows from the seed."""
    first = options.seed or random.SystemRandom().randrange(1, 1_000_000)
    least, _, most = options.ranks.partition("-")
    found = []
    for seed, transport in zip(
        range(first, first + options.legs), cycle(TRANSPORTS[options.transport]), strict=False
    ):
        ranks = random.Random(f"ranks:{seed}").randint(*sorted((int(least), int(most or least))))
        found.append(Leg(seed, ranks, transport))
    return found


class Soak:
    """The ledger, and the workspace of the moment."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.defects: list[tuple[str, str]] = []
        self.n_ops = self.n_cells = self.n_steps = self.n_fields = 0
        self.more: Counter[str] = Counter()
        self.times: dict[str, list[float]] = {}
        self.field: Field | None = None
        self.leg = Leg(0, 0, "")
        self._base: dict[str, int] = {}
        self._deck: list[Work | Fault] = []
        self._step = 0

    def run(self, leg: Leg, seconds: float) -> None:
        """One leg, whose steps count from 1."""
        self.leg, self._deck, self._step = leg, [], 0
        print(f"leg: {leg}", flush=True)
        begin_s = time.monotonic()
        while time.monotonic() - begin_s < seconds:
            self.step()
        self.close(is_broken=False)

    def defect(self, where: str, error: Exception) -> None:
        """Count and tell a defect, with all that helps to find it."""
        kind = getattr(error, "kind", "broken promises")
        self.defects.append((kind, where))
        said = str(error) if isinstance(error, Defect) else f"{type(error).__name__}: {error}"
        print(f"\n{kind.upper()} in {where} of {self.leg}: {said}\n", flush=True)

    # -- workspaces ------------------------------------------------------------------------------

    def open(self) -> None:
        """Start a workspace, and note what there is of it."""
        self.n_fields += 1
        name = f"soak-{os.getpid()}-{self.n_fields}"
        self.field = Field(name, self.leg.ranks, self.leg.transport, _SILENCE_S, self.folder)
        # What is made at the first operation of a kind, and at the first epoch after another, is there.
        rng = random.Random(name)
        for step in (work, own_error, work, own_error, work):
            step(self.field, rng, name)
        self._base = self._size()

    def _size(self) -> dict[str, int]:
        """How much there is of the workspace."""
        assert self.field is not None
        root = psutil.Process(self.field.root_pid)
        ranks = [psutil.Process(state["pid"]) for state in self.field.states()]
        return {
            "processes": len(family()),
            "descriptors of the root": root.num_fds(),
            "descriptors of a rank": max(rank.num_fds() for rank in ranks),
            "MiB of the root": root.memory_info().rss // MIB,
            "MiB of a rank": max(rank.memory_info().rss for rank in ranks) // MIB,
        }

    def check_leaks(self) -> None:
        """Between two steps there is no more than at first, once what ends has ended."""
        deadline_s = time.monotonic() + _GONE_S
        while True:
            size = self._size()
            more = {what: n - self._base[what] for what, n in size.items()}
            leaks = [what for what, n in more.items() if n > _MORE[what]]
            if not leaks or time.monotonic() > deadline_s:
                break
            # A failed epoch's descriptors go with the garbage that its error's traceback is, and a
            # split that was made anew is used until nothing has the old one: Python and IPython
            # keep the last traceback, whose frames have.
            assert self.field is not None
            self.field.good(_FORGET)
            time.sleep(0.05)
        for what, n in more.items():
            self.more[what] = max(self.more[what], n)
        if leaks:
            assert self.field is not None
            pids = [self.field.root_pid, *(state["pid"] for state in self.field.states())]
            files = "\n".join(f"{pid}: {_open_files(pid)}" for pid in pids)
            msg = f"more than at first: {more}; all: {say(family())}; open files:\n{files}"
            raise Leaked(msg)

    def close(self, *, is_broken: bool) -> None:
        """Stop the workspace; afterwards nothing is left of it."""
        field, self.field = self.field, None
        if field is None:
            return
        self.n_cells += field.n_cells
        try:
            if is_broken:
                field.client.kill()
                with contextlib.suppress(DistributedError):  # it has ended
                    stop_workspace(field.name)
            else:
                field.client.ask("stop", 20.0).well()
                field.leave(field.client, kill=False)
            grown = field.client_growth // MIB
            self.more["MiB of a client"] = max(self.more["MiB of a client"], grown)
            fail_if(grown > _MORE["MiB of a client"], f"a client has grown by {grown} MiB", Leaked)
            left = wait_family(0, _GONE_S)
            fail_if(bool(left), f"after the stop there are {say(left)}", Leaked)
        except (Defect, OSError, psutil.Error) as error:
            self.defect("the stop", error)
        for process in family():
            process.kill()
        wait_family(0, _GONE_S)

    # -- steps -----------------------------------------------------------------------------------

    def deal(self) -> Work | Fault:
        """The next step."""
        if not self._deck:
            only = self.options.only.split(",") if self.options.only else ()
            steps = [step for step, n in _STEPS.items() for _ in range(n)]
            self._deck = [step for step in steps if not only or step.__name__ in only]
            random.Random(f"{self.leg.seed}:{self._step}").shuffle(self._deck)
        return self._deck.pop()

    def step(self) -> None:
        """One step; a defect ends the workspace."""
        step = self.deal()
        self.n_steps += 1
        self._step += 1
        seed = f"{self.leg.seed}:{self._step}"
        try:
            if self.field is None:
                self.open()
            assert self.field is not None
            found = step(self.field, random.Random(seed), seed)
            if step in WORK:
                self.n_ops += int(found)
            else:
                self.times.setdefault(step.__name__, []).append(found)
            self.check_leaks()
        except (Defect, OSError, psutil.Error) as error:
            self.defect(f"step {self._step} ({step.__name__})", error)
            self.tell_where(is_hung=isinstance(error, Hung))
            self.close(is_broken=True)

    def tell_where(self, *, is_hung: bool) -> None:
        """Say where the client and the ranks are, and what the root has logged."""
        field = self.field
        if field is None:
            return
        if is_hung and field.client.popen.poll() is None:
            print(f"the client:\n{field.client.where()}", flush=True)
        onlooker = Client(self.folder)
        try:
            for rank, stack in onlooker.ask("watch", 20.0, name=field.name).well().items():
                print(f"rank {rank}: {stack}", flush=True)
        except Defect as error:
            print(f"the ranks cannot be seen: {error}", flush=True)
        onlooker.kill()

    # -- the report ------------------------------------------------------------------------------

    def report(self, seconds: float) -> None:
        found = Counter(kind for kind, _ in self.defects)
        rows: list[tuple[str, object]] = [
            ("seconds", round(seconds)),
            ("steps", self.n_steps),
            ("cells", self.n_cells),
            ("operations, at least", self.n_ops),
            ("faults and recoveries", sum(map(len, self.times.values()))),
            *((kind, found[kind]) for kind in _KINDS),
            *((f"more {what}", n) for what, n in self.more.items()),
        ]
        print()
        print_table(["what", "number"], rows)
        print()
        times = {"all": [s for own in self.times.values() for s in own], **self.times}
        print_table(
            ["fault", "times", "median s", "worst s"],
            [
                (name, len(own), f"{median(own):.2f}", f"{max(own):.2f}")
                for name, own in times.items()
                if own
            ],
        )


def main() -> None:
    parser = arguments(
        "Random work and faults on a workspace; every value checked, every step bounded.",
        seconds=(60.0, "how long"),
        legs=(1, "soaks, one after the other, with seeds that count up"),
        ranks=("4", "of a workspace, 4 or more; 4-8: so many as follow from the seed"),
        transport=("any", "any (shared memory), tcp, or both, which take turns"),
        seed=(0, "of all that is random; 0: one that is drawn"),
        only=("", "only these steps, with commas"),
    )
    options = parser.parse_args()
    known = {step.__name__ for step in _STEPS}
    if options.transport not in TRANSPORTS:
        parser.error(f"--transport is {', '.join(TRANSPORTS)}, not {options.transport}")
    if not re.fullmatch(r"([4-9]|\d{2,})(-\d+)?", options.ranks) or options.legs < 1:
        parser.error("--ranks is 4 or more, as 4 or 4-8; --legs 1 or more")
    if unknown := set(filter(None, options.only.split(","))) - known:
        parser.error(f"there is no step {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    # Ranks inherit it ignored from a shell that runs us in the background: they could not be stopped.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        for variable in ("TMPDIR", "XDG_RUNTIME_DIR"):
            Path(folder, variable).mkdir(mode=0o700)
            os.environ[variable] = str(Path(folder, variable))
        os.environ |= {MARK: uuid.uuid4().hex, "OPENBLAS_NUM_THREADS": "1"}
        soak = Soak(options, Path(folder))
        begin_s = time.monotonic()
        for leg in legs_of(options):
            soak.run(leg, options.seconds / options.legs)
        files = [
            p
            for v in ("TMPDIR", "XDG_RUNTIME_DIR")
            for p in Path(folder, v).rglob("*")
            if p.is_file()
        ]
        if files and not soak.defects:
            soak.defect("the end", Leaked(f"files: {', '.join(map(str, files))}"))
    soak.report(time.monotonic() - begin_s)
    write_json(
        options.json,
        [{"fault": name, "recovered_s": s} for name, own in soak.times.items() for s in own],
    )
    sys.exit(1 if soak.defects else 0)


if __name__ == "__main__":
    main()
