"""Records of workspaces: names that are free or taken, dead roots, other users."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from phalanx.errors import DistributedError
from phalanx.protocol import WorkspaceRecord
from phalanx.supervisor import claim_name, find_record, kept_record, list_records
from phalanx.supervisor.runtime_dir import RecordFile

NOBODY = 65534


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / "phalanx"


def record_of(name: str, **said) -> WorkspaceRecord:
    return WorkspaceRecord("0", name, 2, os.getpid(), 0.0, **said)


@pytest.fixture
def live(folder):
    """A root's record `a`, held here as the root would."""
    with claim_name("a", is_fixed=True) as claim:
        file = RecordFile(os.dup(claim.fd), str(claim.path))
    file.write(record_of("a", client_secret_key=b"secret"))
    yield file
    file.close()


def test_a_record_is_found_while_its_root_lives(live, folder):
    assert [record.name for record in list_records()] == ["a"]
    found = find_record("a")
    assert found is not None
    assert found.client_secret_key == b"secret"
    assert "secret" not in repr(found)
    live.close()
    assert list_records() == []
    assert not list(folder.iterdir())


def test_a_kept_record_has_the_last_words_of_a_root_that_has_ended(live):
    with kept_record(record_of("a")) as read:
        live.write(record_of("a", cut_off="rank 1 was killed"))
        live.close()
        assert read().cut_off == "rank 1 was killed"
    with kept_record(record_of("a")) as read:
        assert read() == record_of("a")


def test_only_its_user_can_read_it(live, folder):
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "a.json").stat().st_mode) == 0o600


def test_a_shorter_record_takes_the_place_of_a_longer_one(live):
    live.write(record_of("a", endpoint="x" * 200))
    live.write(record_of("a", owner_pid=7))
    found = find_record("a")
    assert found is not None
    assert (found.owner_pid, found.endpoint) == (7, "")


def test_a_name_that_is_taken(live):
    with pytest.raises(DistributedError, match="a workspace 'a' runs already") as caught:
        claim_name("a", is_fixed=True)
    assert "\n" not in str(caught.value)
    with claim_name("a", is_fixed=False) as claim:
        assert claim.name == "a-2"
        claim.give_up()


def test_what_a_dead_root_left_is_removed(folder):
    folder.mkdir(mode=0o700)
    for name in ("a", "b"):
        path = folder / f"{name}.json"
        path.touch(mode=0o600)
    assert list_records() == []
    assert not list(folder.iterdir())
    with claim_name("a", is_fixed=True) as claim:
        assert claim.name == "a"
        claim.give_up()


@pytest.mark.parametrize("name", ["", "..", "../a", ".hidden", "a/b", "a b", "x" * 101, "-n"])
def test_names_that_no_workspace_has(name):
    with pytest.raises(ValueError, match="cannot name a workspace"):
        find_record(name)


def test_a_record_of_another_form_is_named(live, folder):
    os.pwrite(live._fd, b'{"shape": "unknown"}'.ljust(4096), 0)
    with pytest.raises(DistributedError, match="another version's workspace"):
        find_record("a")


@pytest.mark.parametrize("others", [0o010, 0o020, 0o040, 0o001, 0o002, 0o004])
def test_what_others_may_read_is_refused(live, folder, others):
    (folder / "a.json").chmod(0o600 | others)
    with pytest.raises(DistributedError, match="open to other users and not used; .* 600"):
        list_records()
    folder.chmod(0o700 | others)
    with pytest.raises(DistributedError, match="open to other users and not used; .* 700"):
        list_records()
    with pytest.raises(DistributedError, match="open to other users"):
        claim_name("b", is_fixed=True)


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
        """The user's runtime folder, with a record in it."""
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
        assert "a.json belongs to user root, not to you" in self.attach(runtime)


def test_a_folder_that_is_full_is_named_with_what_to_do(folder):
    file = RecordFile(os.open("/dev/full", os.O_RDWR), str(folder / "a.json"))
    with pytest.raises(DistributedError) as caught:
        file.write(record_of("a"))
    assert str(caught.value) == (
        f"no record can be written in {folder}: No space left on device; "
        "make room there, or set XDG_RUNTIME_DIR to a folder of yours"
    )
    file.close()
