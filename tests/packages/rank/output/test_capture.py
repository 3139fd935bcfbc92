"""Output that passes Python by."""

from __future__ import annotations

import os

from phalanx.rank.output.record import DescriptorCapture


def test_drain_hands_on_all_that_was_written_before():
    read_fd, write_fd = os.pipe()
    got: list[str] = []
    capture = DescriptorCapture(read_fd, got.append)
    for number in range(500):
        os.write(write_fd, f"{number}\n".encode())
        capture.drain()
        assert "".join(got) == "".join(f"{n}\n" for n in range(number + 1))
    os.close(write_fd)
    assert not capture.drain()


def test_characters_are_not_cut():
    read_fd, write_fd = os.pipe()
    got: list[str] = []
    capture = DescriptorCapture(read_fd, got.append)
    for byte in "€µ".encode():
        os.write(write_fd, bytes([byte]))
        capture.drain()
    os.close(write_fd)
    assert "".join(got) == "€µ"
