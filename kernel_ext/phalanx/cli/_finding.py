"""One line of the doctor's, and what all its checks use.

It knows how a finding is shown; what is found is decided in `_checks` and `_checks_between`.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from phalanx.protocol import HostPlan

from ._probing import Probe, Question

__all__ = ["Finding", "Status", "Task", "odd", "on"]

Status = Literal["ok", "note", "fail"]


class Finding(msgspec.Struct, frozen=True):
    """One line: of which check, of which host (all, if empty), what it is, what mends it."""

    check: str
    status: Status
    host: str
    text: str
    mend: str = ""

    def __str__(self) -> str:
        """As it is printed."""
        where = f"{self.host}: " if self.host else ""
        mend = f"; mend it: {self.mend}" if self.mend else ""
        return f"{self.status:<4}  {self.check:<9}  {where}{self.text}{mend}"


class Task(NamedTuple):
    """What is to be done on the hosts."""

    question: Question
    backend: str = "any"

    @property
    def python(self) -> str:
        """The interpreter that the hosts were asked for."""
        return self.question.remote.python or sys.executable


def on(plan: HostPlan, command: str) -> str:
    """Return a command for a host, to be pasted here."""
    port = f"-p {plan.port} " if plan.port else ""
    return (
        command if plan.is_local else f"ssh {port}{shlex.quote(plan.name)} {shlex.quote(command)}"
    )


def odd(there: Sequence[Probe], value: Callable[[Probe], Any]) -> Iterator[tuple[Probe, Any, Any]]:
    """Go through the hosts whose value is another than this machine's."""
    here = value(there[0])
    for probe in there[1:]:
        if value(probe) != here:
            yield probe, value(probe), here
