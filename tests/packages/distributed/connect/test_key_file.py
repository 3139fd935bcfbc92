"""PHALANX_KEY_FILE: whose file it must be, and that nobody hears what is in it."""

from __future__ import annotations

import os

import pytest

from phalanx.distributed.bootstrap.mpirun import read_key
from phalanx.errors import DistributedError

SECRET = b"correct horse battery staple"


@pytest.fixture
def key_file(tmp_path):
    def write(contents=SECRET, mode=0o600):
        path = tmp_path / "key"
        path.write_bytes(contents)
        path.chmod(mode)
        return str(path)

    return write


def test_the_same_contents_are_the_same_key(key_file):
    key = read_key(key_file())
    assert len(key) == 32
    assert key == read_key(key_file(b"\n" + SECRET + b" \n"))
    assert key == read_key(key_file(mode=0o400))
    assert key != read_key(key_file(SECRET.upper()))
    assert SECRET not in key


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o622, 0o610])
def test_a_file_that_others_may_open_is_refused(key_file, mode):
    path = key_file(mode=mode)
    with pytest.raises(DistributedError, match=f"mode {mode:04o}.*chmod 600 {path}") as caught:
        read_key(path)
    assert SECRET.decode() not in str(caught.value)


def test_what_is_no_key_file_is_said_in_one_line(tmp_path, key_file):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    cases = [
        (str(tmp_path / "none"), "cannot be read: No such file"),
        (str(tmp_path), "is not a file"),
        (str(fifo), "is not a file"),  # and nobody waits for its other end
        ("/dev/zero", "is not a file"),
        ("", "cannot be read"),
        ("a\0b", "cannot be read"),
        (key_file(b"short \n"), "holds 5 bytes, at least 16 are needed"),
    ]
    for path, why in cases:
        with pytest.raises(DistributedError, match=why) as caught:
            read_key(path)
        assert "\n" not in str(caught.value)
        assert "PHALANX_KEY_FILE=" in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may be another user")
def test_a_file_of_another_user_is_refused(key_file):
    path = key_file()
    os.chown(path, 65534, 65534)
    with pytest.raises(DistributedError, match="belongs to user 65534, not to you"):
        read_key(path)
