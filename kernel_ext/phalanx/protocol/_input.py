"""What ranks read and what was typed for them, as both sides of the seam name it.

A leaf: records only. The rule of the log is in `phalanx.rank._log`.
"""

from __future__ import annotations

import msgspec

__all__ = ["LineNeed", "TypedLine"]


class LineNeed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank waits: its copy of the log has nothing for it before entry ``index``.

    ``is_command`` says that an interpreter's prompt asks (pdb's, `code.interact`'s) and not a
    program that reads data, ``is_again`` that it has said so before and waits yet: this, or the
    line, may have been lost.
    """

    cell: str
    index: int
    prompt: str
    password: bool
    is_command: bool
    is_again: bool = False


class TypedLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of a cell's log: a line (None: the end of input) and whom it is for.

    ``ranks`` None is every rank, also one that reads later. A command always names its ranks.
    """

    line: str | None
    ranks: tuple[int, ...] | None = None
    is_command: bool = False

    def is_for(self, rank: int, is_command: bool) -> bool:
        """Whether a rank that reads commands (or data) takes this entry or passes it by."""
        return self.is_command == is_command and (self.ranks is None or rank in self.ranks)
