"""What a rank has shown: noted by the rank, read by its supervisor, in parts that are bounded."""

from __future__ import annotations

import errno
import os
import tempfile
import threading

import pytest

from phalanx.rank.output import record as record_module
from phalanx.rank.output.record import OutputRecord
from phalanx.rank.output.streams import RankOutput
from phalanx.supervisor.hosts.local_rank import MOST_NBYTES, create_shown, read_shown


@pytest.fixture
def fd():
    fd = create_shown()
    yield fd
    os.close(fd)


@pytest.fixture
def record(fd):
    return OutputRecord(fd)


def test_what_was_written_is_read(fd, record):
    end = record.append("eins\nzwei ä\n")
    piece = read_shown(fd, 0, 0)
    assert (piece.text.decode(), piece.end) == ("eins\nzwei ä\n", end)
    assert (piece.left_out_nbytes, piece.left_out_lines) == (0, 0)


def test_the_last_lines_are_read_and_the_others_counted(fd, record):
    record.append("".join(f"{number}\n" for number in range(100)))
    piece = read_shown(fd, 0, 3)
    assert piece.text == b"97\n98\n99\n"
    assert piece.left_out_lines == 97
    assert piece.left_out_nbytes == piece.end - 9


def test_a_line_that_is_not_whole_counts_as_one(fd, record):
    record.append("a\nb\n50%")
    assert read_shown(fd, 0, 2).text == b"b\n50%"


def test_what_was_begun_before_is_read_from_its_line_on(fd, record):
    seen = record.append("whole\nhalf of a li")
    record.append("ne\n")
    assert read_shown(fd, seen, 0).text == b"half of a line\n"
    assert read_shown(fd, 6, 0).text == b"half of a line\n"
    assert read_shown(fd, 10**9, 0).text == b""


def test_no_more_than_a_mib_is_read(fd, record):
    record.append("first\n" + "x" * 99 + "\n")
    record.append(("y" * 99 + "\n") * 20_000)
    piece = read_shown(fd, 0, 0)
    assert len(piece.text) <= MOST_NBYTES
    assert piece.text.startswith(b"y" * 99 + b"\n")
    assert piece.left_out_lines + len(piece.text) // 100 == 20_002
    record.append("z" * (2 << 20))
    assert read_shown(fd, 0, 0).text == b"z" * MOST_NBYTES


def test_a_replacement_goes_on_where_the_one_before_ended(fd, record):
    record.append("first life\n")
    again = OutputRecord(fd)
    again.append("second life\n")
    assert read_shown(fd, 0, 0).text == b"first life\nsecond life\n"
    assert again.append("") == read_shown(fd, 0, 0).end


def test_threads_do_not_mix_their_lines(fd, record):
    def write(name: str) -> None:
        for _ in range(200):
            record.append(name * 50 + "\n")

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {len(set(line)) for line in read_shown(fd, 0, 0).text.splitlines()} == {1}


def test_disk_space_is_given_back(fd, record, monkeypatch):
    monkeypatch.setattr(record_module, "KEPT_NBYTES", 1 << 20)
    monkeypatch.setattr(record_module, "_PUNCH_EVERY_NBYTES", 1 << 20)
    for _ in range(16):
        record.append("x" * (1 << 20))
    assert os.fstat(fd).st_size == 16 << 20
    assert os.fstat(fd).st_blocks * 512 <= 4 << 20
    assert read_shown(fd, 0, 0).text == b"x" * MOST_NBYTES


def test_a_full_disk_does_not_stop_a_rank():
    fd = os.open("/dev/full", os.O_WRONLY)
    try:
        record = OutputRecord(fd)
        assert record.append("lost") is None
        assert record.append("lost") is None
    finally:
        os.close(fd)


class Disk:
    """Stands in for `os`, with room for so many bytes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def __getattr__(self, name: str):
        return getattr(os, name)

    def write(self, fd: int, data: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        n_written = os.write(fd, data[: self.room])
        self.room -= n_written
        return n_written


def test_a_full_disk_leaves_a_gap_that_is_told_of(fd, record, monkeypatch):
    disk = Disk(room=10)
    monkeypatch.setattr(record_module, "os", disk)
    missing = f"… output is missing here: {tempfile.gettempdir()} was full; with room there, what comes next is kept\n"
    assert record.append("first\n") == 6
    assert record.append("second\n") is None
    assert record.append("third\n") is None
    assert read_shown(fd, 0, 0).text.decode() == f"first\nseco\n{missing}"
    disk.room = 1000
    end = record.append("fourth\n")
    piece = read_shown(fd, 0, 0)
    assert (piece.text.decode(), piece.end) == (f"first\nseco\n{missing}fourth\n", end)
    assert read_shown(fd, end, 0).text == b""
    disk.room = 0
    assert record.append("fifth\n") is None
    disk.room = 1000
    record.append("sixth\n")
    assert read_shown(fd, end, 0).text.decode() == f"{missing}sixth\n"


def test_zeros_that_a_rank_prints_are_no_gap(fd, record):
    record.append("\0" * 100 + "\n")
    assert read_shown(fd, 0, 0).text.decode() == "␀" * 100 + "\n"


class FakeSession:
    def __init__(self) -> None:
        self.sent: list[tuple[str, dict]] = []

    def send(self, stream, msg_or_type, content, parent, ident, buffers, track, header, metadata):
        if isinstance(msg_or_type, str):
            self.sent.append((msg_or_type, metadata))
        else:
            self.sent.append((msg_or_type["header"]["msg_type"], msg_or_type["metadata"]))


def test_messages_say_where_they_end_and_figures_are_named(fd, record):
    session = FakeSession()
    RankOutput(session, record)

    def made(kind: str, **content):
        return {"header": {"msg_type": kind}, "content": content, "metadata": {}}

    session.send(None, made("stream", name="stdout", text="said\n"))
    session.send(None, "error", {"traceback": ["line 1", "Error: no"]})
    session.send(None, made("display_data", data={"image/png": "…", "text/plain": "<Figure>"}))
    session.send(None, made("execute_result", data={"text/plain": "42"}))
    session.send(None, made("clear_output", wait=False))
    text = read_shown(fd, 0, 0).text
    assert text == b"said\nline 1\nError: no\n<image/png: <Figure>>\nOut: 42\n"
    ends = [metadata.get("phalanx", {}).get("end") for _, metadata in session.sent]
    assert ends[:4] == [5, 22, 44, 52]
    assert ends[4] is None
    # Each counts with what it costs while it waits to be drawn.
    sent = [metadata.get("phalanx", {}).get("sent") for _, metadata in session.sent]
    assert sent[:4] == [1029, 2053, 3086, 4112]
    assert sent[4] is None


def test_messages_that_show_output_are_counted_by_request(record):
    session = FakeSession()
    n_shown = RankOutput(session, record).n_shown
    asked, other = {"header": {"msg_id": "cell#0"}}, {"header": {"msg_id": "other"}}
    session.send(None, "stream", {"name": "stdout", "text": "a\n"}, asked)
    session.send(None, "stream", {"name": "stdout", "text": "b\n"}, other)
    session.send(None, "status", {"execution_state": "idle"}, asked)
    session.send(None, "execute_result", {"data": {"text/plain": "1"}}, asked)
    assert (n_shown(asked), n_shown(other), n_shown({})) == (2, 1, 0)
