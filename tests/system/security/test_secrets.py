"""No secret where others could read it: command lines, environments, files, logs, errors."""

from __future__ import annotations

import base64
import logging
import os
import tempfile
import textwrap
from pathlib import Path

import psutil
import pytest
from support.inside import WORLD_KEY_CODE, root_pid
from support.programs.launching import Running, write_script
from support.waiting import wait_until

from phalanx.distributed.bootstrap.mpirun import read_key
from phalanx.protocol import Booted, Registered, Welcome, WorldConfig
from phalanx.workspace import Workspace
from phalanx.workspace.connection.transport import RankChannels


def spellings(secret: bytes) -> list[bytes]:
    """How bytes are written down."""
    return [
        secret, secret.hex().encode(), repr(secret)[2:-1].encode(), base64.b64encode(secret),
        str(list(secret))[1:-1].encode(),
    ]  # fmt: skip


def secrets_of(ws: Workspace) -> dict[str, bytes]:
    (key,) = {result.value for result in ws.run(WORLD_KEY_CODE)}
    found = {"world": bytes.fromhex(key.strip("'")), **ws.overheard}
    assert len(found) >= 2
    assert all(len(secret) >= 32 for secret in found.values())
    return found


def family(ws: Workspace) -> list[psutil.Process]:
    root = psutil.Process(root_pid(ws))
    return [psutil.Process(), root, *root.children(recursive=True)]


@pytest.fixture(scope="module")
def ws():
    """Two ranks, and every key that the client was given."""
    overheard = {}
    init = RankChannels.__init__

    def listen(self, thread, connection, session, on_message):
        overheard["session"] = connection["key"].encode()
        init(self, thread, connection, session, on_message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RankChannels, "__init__", listen)
        workspace = Workspace.start(n=2, transport="tcp")
    with workspace:
        workspace.overheard = overheard
        yield workspace


def check_hidden(processes: list[psutil.Process], secrets: dict[str, bytes]) -> None:
    """Nothing of these is in the words of processes, and nothing of theirs is called a key."""
    inherited = {f"{name}={value}".encode() for name, value in os.environ.items()}
    for process in processes:
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        words += Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        text = b"\0".join(word for word in words if word not in inherited)
        for secret in secrets.values():
            assert not any(spelled in text for spelled in spellings(secret))
        if process.pid != os.getpid():  # pytest may be told to run tests of keys
            said = text.lower().replace(b"key_file", b"")
            assert not [word for word in (b"key", b"signature") if word in said], process


def test_no_secret_of_a_workspace_in_a_command_line_or_environment(ws):
    secrets = secrets_of(ws)
    ws.run("import subprocess; child = subprocess.Popen(['sleep', '600'])")
    try:
        processes = family(ws)
        assert len(processes) >= 7  # this one, the root, the controller, two ranks, their children
        check_hidden(processes, secrets)
    finally:
        ws.run("child.kill(); child.wait()")


LAUNCHED = """
import subprocess, phalanx as px
print(px.init(strict=True)._current.spec.key.hex(), flush=True)
subprocess.run(["sleep", "600"])
"""


def test_no_secret_of_a_launch_in_a_command_line_or_environment(tmp_path):
    script = write_script(tmp_path, LAUNCHED)
    launcher = Running("-n", "2", "--transport", "tcp", "--label", "none", script)
    try:
        (key,) = {bytes.fromhex(launcher.popen.stdout.readline().decode()) for _ in range(2)}

        def n_children():
            return sum(process.name() == "sleep" for process in launcher.processes())

        wait_until(lambda: n_children() == 2, "the ranks have children")
        assert len(key) >= 32
        processes = launcher.processes()[1:]
        assert len(processes) >= 5  # the root, two ranks, their children
        check_hidden(processes, {"world": key})
    finally:
        launcher.close()


def test_no_file_of_a_workspace_can_be_read_by_others(ws):
    for process in family(ws)[1:]:
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            path = str(descriptor.readlink())
            if path.startswith((tempfile.gettempdir(), "/memfd:phalanx", str(Path.home()))):
                assert descriptor.stat().st_mode & 0o077 == 0, path


def test_no_secret_in_what_is_logged(ws, capfd, caplog):
    secrets = secrets_of(ws)
    caplog.set_level(logging.DEBUG)
    for logger in ("phalanx", "zmq", "traitlets", "asyncio"):
        caplog.set_level(logging.DEBUG, logger)
    said = []
    ws.run(
        "import logging, io; logged = io.StringIO()\n"
        "logging.basicConfig(level=logging.DEBUG, stream=logged, force=True)\n"
        "get_ipython().kernel.log.setLevel(logging.DEBUG)\n"
        "get_ipython().kernel.parent.log.setLevel(logging.DEBUG)"
    )
    with pytest.raises(Exception, match="1 failed on purpose"):  # ends the epoch
        ws.run("raise RuntimeError('1 failed on purpose') if rank else px.all_sum(1)")
    ws.run("px.all_sum(1)")  # joins anew: all the handshakes once more
    said = [result.value for result in ws.run("logged.getvalue()")]
    assert "epoch 2 stands" in said[0]
    asked = f"Out: {secrets['world'].hex()!r}"  # by `secrets_of`
    outputs = [ws.output(rank).replace(asked, "") for rank in (0, 1)]
    texts = [*said, caplog.text, *capfd.readouterr(), *outputs]
    for text in texts:
        for secret in secrets.values():
            assert not any(word in str(text).encode() for word in spellings(secret))
    ws.run("logging.basicConfig(level=logging.WARNING, force=True)")


def test_no_record_shows_its_key():
    key = bytes(range(100, 132))
    hidden = [
        Welcome(1, 0, WorldConfig("lab", 1), 1, key, (0,), (0,), ("h",), ("a",), -1, (), ()),
        Registered(1, 0, 2, "engine", {"key": key.hex(), "curve_serverkey": key.hex()}),
        Booted({"key": key.hex(), "curve_serverkey": key.hex()}, ("engine",)),
    ]
    for record in hidden:
        for text in (repr(record), str(record), f"{record}"):
            assert not any(word in text.encode() for word in spellings(key))


FAILS = textwrap.dedent(
    """
    import logging, sys, traceback
    logging.basicConfig(level=logging.DEBUG)
    import phalanx as px
    from phalanx.distributed.bootstrap import mpirun

    def fail(*_):
        assert len(sys._getframe(1).f_locals["world"].key) == 32
        raise px.DistributedError("failed on purpose")

    mpirun._introduce = fail  # when the key is read
    try:
        px.init(backend="mpi")
    except px.DistributedError as error:
        print("".join(traceback.TracebackException.from_exception(error, capture_locals=True).format()))
    """
)


@pytest.mark.slow
def test_no_key_of_a_file_in_logs_errors_or_the_locals_of_a_traceback(mpi, tmp_path):
    key = tmp_path / "key"
    key.write_text("correct horse battery staple")
    key.chmod(0o600)
    done = mpi.run(1, "-c", FAILS, PHALANX_KEY_FILE=str(key))
    said = done.stdout + done.stderr
    assert "failed on purpose" in said
    assert "battery" not in said
    assert not any(word in said.encode() for word in spellings(read_key(str(key))))
