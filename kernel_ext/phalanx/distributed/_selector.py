"""The selector's table: up to which size which algorithm is taken, where a user has measured it.

It knows the file; what the thresholds mean is the engine's business (native/group/selector.hpp).
All ranks need the same table, as the order of summation follows from it: each operation carries a
hash of it, and ranks that differ get a `CollectiveMismatch` that names them.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from phalanx.errors import DistributedError

__all__ = ["SELECTOR_VARIABLE", "Selector", "read_selector", "write_selector"]

SELECTOR_VARIABLE = "PHALANX_SELECTOR"


class Selector(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Thresholds in bytes; what is None stays as it ships."""

    inline_bytes: int | None = None
    mesh_bytes: int | None = None
    direct_bytes: int | None = None
    mesh_broadcast_bytes: int | None = None

    @property
    def table(self) -> dict[str, int]:
        """What is not None, by name."""
        return {name: n for name, n in msgspec.structs.asdict(self).items() if n is not None}


class _File(msgspec.Struct, frozen=True):
    """A table as ``phalanx bench --tune`` writes it; what it was measured with is for people."""

    selector: Selector


def read_selector(path: str) -> Selector:
    """Read a table; an empty path is that of the one that ships.

    Raises
    ------
    DistributedError
        It cannot be read, or is no such table.
    """
    if not path:
        return Selector()
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=_File).selector
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        wrong = getattr(error, "strerror", None) or str(error)
        msg = (
            f"{SELECTOR_VARIABLE}={path!r} is no table of the selector: {wrong}; "
            "`phalanx bench --tune FILE` writes one"
        )
        raise DistributedError(msg) from None
    if any(not 0 <= n < 1 << 63 for n in found.table.values()):
        msg = f"{SELECTOR_VARIABLE}={path!r}: a threshold is a number of bytes, 0 or more"
        raise DistributedError(msg)
    return found


def write_selector(path: Path, selector: Selector, **measured: object) -> None:
    """Write a table, and what it was measured with beside it."""
    record = {"selector": selector.table, **measured}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
