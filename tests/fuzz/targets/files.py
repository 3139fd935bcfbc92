"""What may lie in files, sockets and pipes that we read: a record, a key file, a dump of stacks.

They are the user's own, and yet any of them may be cut, old, or something else altogether. What
cannot be read is refused in one line.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
from fuzz.supply import Supply

from phalanx.distributed.bootstrap.mpirun import read_key
from phalanx.distributed.connect.endpoints import Share, read_shares
from phalanx.distributed.mpi.wire import HEADER_NBYTES, Header, describe_mismatch
from phalanx.errors import DistributedError
from phalanx.protocol import OUTPUT_GAP, ChannelClosed, WorkspaceRecord
from phalanx.supervisor import boot
from phalanx.supervisor.health.stack_reader import looks_whole, parse_dump, place_of
from phalanx.supervisor.hosts.local_rank import read_shown

_MOST_TEXT = 20_000  # of an error: it may quote a line of the file


def _refused(read: Callable[[], object], *, is_quoted: bool = False) -> bool:
    """Whether it is refused, in one line; ``is_quoted``: a text of the other side's is in it."""
    try:
        read()
    except DistributedError as error:
        text = str(error)
        assert is_quoted or "\n" not in text, text
        assert len(text) < _MOST_TEXT
        return True
    return False


def _file(data: bytes) -> str:
    fd, path = tempfile.mkstemp()
    os.write(fd, data)
    os.close(fd)
    return path


def _record(supply: Supply) -> None:
    """What a root says first."""
    if supply.below(2):
        data = supply.rest()
    else:
        data = supply.edited(msgspec.msgpack.encode(supply.record(WorkspaceRecord)))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(len(data).to_bytes(4, "little") + data)
        theirs.close()
        with contextlib.suppress(ValueError, RecursionError, ChannelClosed):
            _refused(lambda: boot._read_record(ours), is_quoted=True)


def _key(supply: Supply) -> None:
    path = _file(data := supply.rest())
    try:
        is_short = len(data.strip()) < 16
        assert _refused(lambda: read_key(path)) == is_short
    finally:
        Path(path).unlink()


_DUMP = b'Thread 0x7f (most recent call first):\n  File "a.py", line 3 in load\n'


def _dump(supply: Supply) -> None:
    data = supply.rest() if supply.below(2) else supply.edited(_DUMP) + supply.edited(_DUMP)
    text = data.decode("ascii", "replace")
    looks_whole(text)
    place_of(parse_dump(text), "/w")


def _header(supply: Supply) -> None:
    true = Header("all_sum", 1, 0, dtype="int8", shape=(2, 3), count=6).pack()
    others = [supply.edited(true).ljust(HEADER_NBYTES, b"\0")[:HEADER_NBYTES] for _ in range(2)]
    try:
        text = describe_mismatch([0, 1, 2], [true, *others])
        for data in others:
            text += repr(Header.unpack(data))
    except ValueError:
        return
    assert len(text) < _MOST_TEXT


def _shown(supply: Supply) -> None:
    data = supply.piece()
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        since, most = supply.byte(), supply.below(6)
        piece = read_shown(file.fileno(), since, most)
        assert piece.end == len(data)
        if OUTPUT_GAP in data:  # a line that says so stands in its place
            return
        assert data.endswith(piece.text)
        if not most:
            assert piece.text.endswith(data[since:])


def _shares(supply: Supply) -> None:
    purposes = ((1,), ())
    shares = [msgspec.msgpack.encode(Share(purposes, (), "")) for _ in range(2)]
    shares.append(msgspec.msgpack.encode(supply.record(Share)))
    packed = [supply.edited(share) for share in shares]
    if _refused(lambda: read_shares(packed, range(3)), is_quoted=True):
        return
    for share in read_shares(packed, range(3)):
        assert len(share.peers) == len(purposes)
        assert all(0 < endpoint.port < 1 << 16 for endpoint in share.endpoints)


# Their places in this tuple give the seeds their meaning.
_KINDS = (_record, _key, _key, _dump, _header, _shown, _shares)


def one(data: bytes) -> None:
    """Run one input."""
    supply = Supply(data)
    supply.choice(_KINDS)(supply)
