"""Worlds that cannot be: a clear line on each rank, soon, and nothing is lost by it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading

import pytest
from launching import launch, write_script
from security.test_jobs import hostfile
from support.promise import PATIENCE_S, within
from support.tiers import deep

from phalanx.distributed._environment import ring_environment
from phalanx.errors import DistributedError, RankFailure
from phalanx.workspace import Workspace

LIMIT_S = 1.5  # until the ranks must have met


def last_lines(text: str) -> list[str]:
    """The ends of all tracebacks in a text."""
    return [line for line in text.splitlines() if "phalanx.errors." in line or "ValueError" in line]


def ranks(code, env_of_rank):
    """Run code with the variables of each rank; (stdout, stderr, status) by rank."""
    with within(LIMIT_S + PATIENCE_S):
        popens = [
            subprocess.Popen(
                [sys.executable, "-c", code], env={**os.environ, **env},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for env in env_of_rank
        ]  # fmt: skip
        return [(*popen.communicate(timeout=60), popen.returncode) for popen in popens]


@pytest.fixture
def script(tmp_path):
    return lambda code: write_script(tmp_path, code)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "version"),
    [
        ("init", "9.9.9"),
        ("recover", ""),
        pytest.param("init", "", marks=deep),
        pytest.param("recover", "9.9.9", marks=deep),
    ],
)
def test_another_version_on_one_rank_is_told_to_all(script, version, call, tmp_path):
    path = script(f"""
        import os, pathlib, time, phalanx as px
        here, until = pathlib.Path({str(tmp_path)!r}), time.monotonic() + 20
        def wait_for(names):
            while not all((here / name).exists() for name in names) and time.monotonic() < until:
                time.sleep(0.01)
        if os.environ["PHALANX_RANK"] == "1":
            px.__version__ = {version!r}
        elif os.environ["PHALANX_RANK"] == "0":
            wait_for("1")  # it has been refused
        try:
            px.{call}(timeout=10)
        except px.DistributedError as error:
            print(error)
        # Nobody leaves before all know: a rank that has ended is another story.
        (here / os.environ["PHALANX_RANK"]).touch()
        wait_for("012")
    """)
    done = launch("-n", "3", path)
    said = sorted(done.stdout.decode().splitlines())
    assert len(said) == 3
    for rank, line in enumerate(said):
        assert line.startswith(f"[{rank}] ")
        assert f"rank 1 has phalanx {version or 'of another version'}, its supervisor has" in line
        assert line.endswith(": all need the same version")


@pytest.mark.slow
def test_a_rank_that_speaks_otherwise_is_named():
    with Workspace.start(n=2) as ws:
        with pytest.raises(RankFailure) as caught:
            ws.run(
                "if rank:\n"
                "    from phalanx.distributed import supervisor_channel\n"
                "    supervisor_channel()._sock.sendall(b'\\4\\0\\0\\0\\xc1\\xc1\\xc1\\xc1')\n"
                "px.all_sum(1)"
            )
        said = str(caught.value)
        assert "said what its supervisor cannot understand (another phalanx?)" in said


@pytest.mark.slow
def test_a_negative_timeout_loses_nothing(script):
    path = script("""
        import phalanx as px
        for timeout in (-1, float("nan"), "soon"):
            try:
                px.init(timeout=timeout)
            except (ValueError, TypeError) as error:
                assert "timeout" in str(error) or isinstance(error, TypeError), error
            else:
                raise SystemExit(f"{timeout!r} was taken")
        world = px.init()
        for call in (lambda: px.all_sum(1, timeout=-1), lambda: world.barrier(timeout=-0.1)):
            try:
                call()
            except ValueError as error:
                assert "timeout must be None or at least 0 seconds" in str(error)
            else:
                raise SystemExit("a negative timeout was taken")
        print(px.all_sum(1))
    """)
    done = launch("-n", "2", path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines() == ["[0-1] 2"] or sorted(
        done.stdout.decode().splitlines()
    ) == ["[0] 2", "[1] 2"]


INIT = f"import phalanx as px; print(px.init(timeout={LIMIT_S}).size())"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not a ring as mlx.launch describes it"),
        ('{"hosts": 2}', "not a ring"),
        ("[[[]]]", "not a ring"),
        ("7", "not a ring"),
        ("[" * 100_000, "not a ring"),
        ("\0\xff", "not a ring"),
        ('[["localhost:1"], ["localhost:2"]]', "not a ring"),
        ('[["127.0.0.1:0"], ["127.0.0.1:65536"]]', "no port between 1 and 65535"),
        ('[["127.0.0.1:9"], ["127.0.0.1:9"]]', "two ranks have the address 127.0.0.1 port 9"),
        ('[["127.0.0.1:9"]]', "there is no rank 1 among 1"),
        (None, "No such file"),
    ],
)
def test_a_broken_hostfile_is_said_in_one_line(tmp_path, text, why):
    path = tmp_path / "hosts.json"
    if text is not None:
        path.write_text(text, encoding="latin-1")
    with pytest.raises(DistributedError, match=why) as caught:
        ring_environment({"MLX_RANK": "1", "MLX_HOSTFILE": str(path)})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.slow
def test_a_rank_beyond_the_size_says_so_and_the_others_do_not_hang(tmp_path):
    path = hostfile(tmp_path / "hosts.json", 2)
    said = ranks(INIT, [{"MLX_RANK": rank, "MLX_HOSTFILE": str(path)} for rank in ("0", "2")])
    assert [code for *_, code in said] == [1, 1]
    zero, two = (last_lines(err)[-1] for _, err, _ in said)
    assert "CollectiveTimeout: rank 1 did not come within 1.5 s" in zero
    assert "there is no rank 2 among 2" in two


# An attempt that the time limit cuts off would hide what the one before has met: there are two only.
SELDOM = f"import phalanx.distributed._environment as its; its._RETRY_S = 0.7 * {LIMIT_S}\n{INIT}"


@pytest.mark.slow
def test_a_port_that_is_taken_is_named_on_each_rank(tmp_path):
    path = hostfile(tmp_path / "hosts.json", 2)
    host, port = json.loads(path.read_text())[0][0].split(":")
    with socket.create_server((host, int(port))) as server:

        def serve():
            while True:
                try:
                    sock, _ = server.accept()
                except OSError:
                    return
                with sock, contextlib.suppress(OSError):
                    sock.recv(4096)
                    sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        said = ranks(SELDOM, [{"MLX_RANK": str(r), "MLX_HOSTFILE": str(path)} for r in range(2)])
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
    assert [code for *_, code in said] == [1, 1]
    zero, one = (last_lines(err)[-1] for _, err, _ in said)
    assert f"rank 0 cannot listen on 127.0.0.1 port {port}: Address already in use" in zero
    assert f"rank 0 was not met at 127.0.0.1 port {port} within 1.5 s" in one
    assert "no rank" in one


WRONG_CHANNELS = ["", "x", "-1", "999999", "0.5", "٣"]
ASK_EACH = f"""
import os, phalanx as px
for value in {WRONG_CHANNELS}:
    os.environ["PHALANX_CHANNEL"] = value
    try:
        px.init(timeout={LIMIT_S})
    except px.DistributedError as error:
        print(error)
os.environ["PHALANX_CHANNEL"] = "x"
px.init(timeout={LIMIT_S})
"""


def test_a_wrong_channel_is_said_in_one_line():
    ((out, err, status),) = ranks(ASK_EACH, [{}])
    assert status == 1
    lines = [*out.splitlines(), last_lines(err)[-1]]
    assert len(lines) == len(WRONG_CHANNELS) + 1
    assert all("was this process started by a Phalanx supervisor?" in line for line in lines)
