"""Names of workspaces: those that are free or taken, dead roots, other users."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import phalanx
from phalanx.errors import DistributedError
from phalanx.protocol import WorkspaceRecord, pack_frame
from phalanx.supervisor import boot, find_root, list_records
from phalanx.supervisor.runtime_dir import claim_name
from phalanx.workspace.connection.connect import attach_root, free_workspaces, list_workspaces

NOBODY = 65534


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / "phalanx"


class Root:
    """A claim, and a thread that says who it is, as its root would."""

    def __init__(self, name="a", *, word=None, is_fixed=True):
        self.claim = claim_name(name, is_fixed=is_fixed)
        record = WorkspaceRecord(phalanx.__version__, self.claim.name, 2, os.getpid(), 0.0)
        self._word = pack_frame(record) if word is None else word
        self._clients = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                client, _ = self.claim.sock.accept()
            except OSError:
                return
            self._clients.append(client)
            with contextlib.suppress(BrokenPipeError):  # a claim only looks
                client.sendall(self._word)

    def die(self):
        """End without a word: the file stays."""
        self.claim.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self.claim.sock.close()
        for client in self._clients:
            client.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.claim.release()
        self.die()


@pytest.fixture
def live(folder):
    """A root named `a`."""
    with Root() as root:
        yield root


def found(name):
    root = find_root(name)
    if root is None:
        return None
    root.abandon()
    return root.record


def test_a_root_is_found_while_it_lives(folder):
    with Root():
        assert [record.name for record in list_records()] == ["a"]
        assert found("a") == WorkspaceRecord(phalanx.__version__, "a", 2, os.getpid(), 0.0)
        assert found("b") is None
    assert list_records() == []
    assert not list(folder.iterdir())


def test_only_its_user_can_reach_it(live, folder):
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (path,) = folder.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.name == "a.sock"


def test_a_name_that_is_taken(live):
    with pytest.raises(DistributedError, match="a workspace 'a' runs already") as caught:
        claim_name("a", is_fixed=True)
    assert "\n" not in str(caught.value)
    with Root(is_fixed=False) as other:
        assert other.claim.name == "a-2"


def test_what_a_dead_root_left_is_removed_by_the_next_claim(folder):
    for root in [Root(name) for name in ("a", "b")]:
        root.die()
    assert len(list(folder.iterdir())) == 2
    assert list_records() == []
    assert found("a") is None
    with Root("a"):
        assert [path.name for path in folder.iterdir()] == ["a.sock"]
        assert found("a") is not None


def test_a_root_removes_no_socket_of_a_later_one(folder):
    first = Root()
    first.die()
    with Root():
        first.claim.release()
        assert found("a") is not None


def test_one_of_many_claims_wins(folder):
    Root().die()  # which each of them finds dead

    def claim(_):
        try:
            return claim_name("a", is_fixed=True)
        except DistributedError:
            return None

    with ThreadPoolExecutor(16) as pool:
        claims = list(filter(None, pool.map(claim, range(16))))
    assert len(claims) == 1
    claims[0].sock.close()


def test_a_folder_with_a_long_path_and_a_long_name(tmp_path, monkeypatch):
    long = tmp_path.joinpath(*["x" * 100] * 5)
    long.mkdir(parents=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    with Root("n" * 100):
        assert found("n" * 100) is not None
        assert [record.name for record in list_records()] == ["n" * 100]


@pytest.mark.parametrize("name", ["", "..", "../a", ".hidden", "a/b", "a b", "x" * 101, "-n"])
def test_names_that_no_workspace_has(name):
    with pytest.raises(ValueError, match="cannot name a workspace"):
        find_root(name)


@pytest.mark.parametrize("word", [b"\x03\0\0\0abc", b"\x01\0\0\0\x80"])
def test_a_root_of_another_form_is_listed_among_others(folder, word):
    with Root(word=word), Root("b"):
        assert [(its.name, its.version) for its in list_records()] == [
            ("a", ""),
            ("b", phalanx.__version__),
        ]
        states = {its.name: its.state for its in list_workspaces()}
        assert states == {"a": "of another version of phalanx", "b": "free"}
        assert free_workspaces() == ("b",)
        with pytest.raises(DistributedError, match="started by phalanx of another version, this"):
            attach_root("a", is_taking=False)


def test_a_root_that_does_not_answer_is_listed(folder, monkeypatch):
    monkeypatch.setattr(boot, "_LIST_S", 0.05)
    with Root(word=b""):
        (record,) = list_records()
    assert (record.name, record.pid, record.is_silent) == ("a", os.getpid(), True)


def test_a_root_that_ends_before_it_has_spoken_is_none(folder):
    claim = claim_name("a", is_fixed=True)

    def refuse():
        claim.sock.accept()[0].close()

    thread = threading.Thread(target=refuse)
    thread.start()
    assert found("a") is None
    thread.join()
    claim.sock.close()


@pytest.mark.parametrize("others", [0o010, 0o020, 0o040, 0o001, 0o002, 0o004])
def test_what_others_may_reach_is_refused(live, folder, others):
    (folder / "a.sock").chmod(0o600 | others)
    with pytest.raises(DistributedError, match="open to other users and not used; .* 600"):
        list_records()
    folder.chmod(0o700 | others)
    with pytest.raises(DistributedError, match="open to other users and not used; .* 700"):
        list_records()
    with pytest.raises(DistributedError, match="open to other users"):
        claim_name("b", is_fixed=True)


def test_a_file_in_the_place_of_a_socket_is_refused(folder):
    folder.mkdir(mode=0o700)
    (folder / "a.sock").touch(mode=0o600)
    for call in (list_records, lambda: claim_name("a", is_fixed=True)):
        with pytest.raises(DistributedError, match="a.sock is no socket: it is not used"):
            call()


def test_a_link_in_the_place_of_the_folder_is_refused(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DistributedError, match="is no folder"):
        claim_name("a", is_fixed=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
class TestAnotherUser:
    """One user's folder, looked at by another."""

    CODE = """
import os, sys
from phalanx.errors import DistributedError
from phalanx.workspace import Workspace
os.environ["XDG_RUNTIME_DIR"] = sys.argv[2]
os.setgroups([])
os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
try:
    print(Workspace.attach("a"))
except DistributedError as error:
    print(error)
"""

    def attach(self, runtime: Path) -> str:
        command = [sys.executable, "-c", self.CODE, str(NOBODY), str(runtime)]
        env = {**os.environ, "TMPDIR": str(runtime)}
        said = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        return said.stdout

    @pytest.fixture
    def tmp_path(self):
        """A folder that others can reach, as /tmp and /run are.

        Not pytest's: the way to that is closed by each pytest that begins meanwhile.
        """
        with tempfile.TemporaryDirectory(dir="/tmp") as made:
            Path(made).chmod(0o755)
            yield Path(made)

    @pytest.fixture
    def runtime(self, live, tmp_path):
        """The user's runtime folder, with a socket in it."""
        return tmp_path

    def test_does_not_see_it(self, runtime):
        assert "there is no workspace 'a'" in self.attach(runtime)

    def test_is_refused_where_it_is_in_the_way(self, runtime):
        os.chown(runtime, NOBODY, NOBODY)  # their runtime folder, but ours is in it
        said = self.attach(runtime)
        assert f"{runtime}/phalanx belongs to user root, not to you" in said
        assert "set XDG_RUNTIME_DIR to a folder of your own" in said

    def test_gets_no_file_that_is_not_theirs(self, runtime, folder):
        os.chown(runtime, NOBODY, NOBODY)
        os.chown(folder, NOBODY, NOBODY)
        assert "a.sock belongs to user root, not to you" in self.attach(runtime)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_socket_that_another_user_serves_is_refused(live, monkeypatch):
    monkeypatch.setattr(boot, "peer_of", lambda _: (1, NOBODY))
    with pytest.raises(DistributedError, match="a.sock is served by user 65534, not by you"):
        find_root("a")


def test_a_folder_that_is_full_is_named_with_what_to_do(folder, monkeypatch):
    def bind(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("phalanx.supervisor.runtime_dir._listen", bind)
    with pytest.raises(DistributedError) as caught:
        claim_name("a", is_fixed=True)
    assert str(caught.value) == (
        f"no socket can be made in {folder}: No space left on device; "
        "make room there, or set XDG_RUNTIME_DIR to a folder of yours"
    )
