"""`px.init` in a world that mlx.launch describes by variables: who meets, and who is kept out."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.promise import PATIENCE_S
from support.tiers import deep_but

from phalanx.distributed._environment import ring_environment
from phalanx.distributed._same_user import peer_uid
from phalanx.errors import DistributedError

RANK = """
import sys, phalanx as px
world = px.init(timeout=float(sys.argv[1]))
assert px.init() is world
print(world.rank(), world.size(), px.all_sum(world.rank() + 1), *px.all_gather(world.rank() * 2))
"""

READY = 'print("ready", flush=True)\n'

MESSAGES = """
import sys, numpy as np, phalanx as px
world = px.init(timeout=float(sys.argv[1]))
engine, x, out = world._engine, np.arange(8192.0), np.zeros(8192)
others = [peer for peer in range(world.size()) if peer != world.rank()]
for peer in others:
    engine.send(x + world.rank(), peer, 10.0)
for peer in others:
    engine.recv(out, peer, 10.0)
    assert (out == x + peer).all()
print(world.rank(), len(others))
"""


def free_ports(n, host="127.0.0.1"):
    """Ports nobody uses: all held at once, so that they differ."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    socks = [socket.socket(family) for _ in range(n)]
    try:
        for sock in socks:
            sock.bind((host, 0))
        return [sock.getsockname()[1] for sock in socks]
    finally:
        for sock in socks:
            sock.close()


@pytest.fixture
def hostfile(tmp_path):
    def write(n, host="127.0.0.1"):
        path = tmp_path / "hosts.json"
        at = f"[{host}]" if ":" in host else host
        path.write_text(json.dumps([[f"{at}:{port}"] for port in free_ports(n, host)]))
        return path

    return write


def start(rank, path, timeout=20.0, code=RANK, more=None, **options):
    env = {**os.environ, "MLX_RANK": str(rank), "MLX_HOSTFILE": str(path), **(more or {})}
    return subprocess.Popen(
        [sys.executable, "-c", code, str(timeout)],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def ends(popens):
    return [(*popen.communicate(timeout=2 * PATIENCE_S), popen.returncode) for popen in popens]


def wait_ready(popen):
    """Wait until a process says that it is about to begin."""
    assert popen.stdout.readline() == "ready\n"
    return popen


@pytest.mark.slow
@pytest.mark.parametrize("host", deep_but(["127.0.0.1"], ["127.0.0.1", "::1"]))
def test_ranks_meet_in_any_order(hostfile, host):
    path = hostfile(3, host)
    said = ends([start(rank, path) for rank in (2, 0, 1)])
    assert [(out, code) for out, _, code in said] == [
        (f"{rank} 3 6 0 2 4\n", 0) for rank in (2, 0, 1)
    ]


@pytest.mark.slow
def test_all_addresses_of_the_file_are_used_at_once(tmp_path):
    """As mlx.launch writes them: an address as often as it is to have connections."""
    path = tmp_path / "hosts.json"
    homes = [f"127.0.0.{number}" for number in (1, 2, 1, 2)]
    ports = iter(free_ports(8))
    path.write_text(json.dumps([[f"{home}:{next(ports)}" for home in homes] for _ in range(2)]))
    code = RANK + "print(px.init().describe()['engine']['stripes'])"
    said = ends([start(rank, path, code=code) for rank in range(2)])
    for rank, (out, err, _) in enumerate(said):
        ways = [f"{home} to {home}" for home in homes]
        assert out.splitlines()[1:] == [str({1 - rank: ways})], err


@pytest.mark.slow
def test_ranks_send_messages_to_each_other(hostfile):
    path = hostfile(3)
    said = ends([start(rank, path, code=MESSAGES) for rank in range(3)])
    assert [(out, code) for out, _, code in said] == [(f"{rank} 2\n", 0) for rank in range(3)]


RECOVER = """
import sys, phalanx as px
from distributed import recover_cells
world = px.init(timeout=float(sys.argv[1]))
recover_cells.hold_splits()
for number, how in enumerate(recover_cells.HOWS):
    recover_cells.fail(how, number % world.size())
    assert px.recover(20.0) is world
    recover_cells.check(world)
    recover_cells.check_held()
assert px.recover(20.0).describe()["epoch"] == len(recover_cells.HOWS) + 1
world.barrier()
if world.rank() == 2:
    world.close()
    px.init()  # all come back
else:
    px.recover(20.0)
recover_cells.check(world)
if world.rank() != 1:
    try:
        px.recover(2.0)
    except px.CollectiveTimeout as error:
        print(error)
"""


@pytest.mark.slow
def test_ranks_recover_and_who_does_not_is_named(hostfile):
    path = hostfile(3)
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    said = ends([start(rank, path, code=RECOVER, more={"PYTHONPATH": paths}) for rank in range(3)])
    assert [code for _, _, code in said] == [0, 0, 0], said
    assert said[0][0] == "rank 1 did not come within 2 s\n"
    assert "within 2 s" in said[2][0]


@pytest.mark.slow
def test_a_missing_rank_is_named(hostfile):
    path = hostfile(3)
    # Rank 1 looks for rank 0 again and again from before that is there.
    second = wait_ready(start(1, path, code=READY + RANK))
    (first, second) = ends([start(0, path, 2.0), second])
    assert "CollectiveTimeout: rank 2 did not come within 2 s" in first[1]
    assert "CollectiveTimeout: rank 2 did not come within 2 s" in second[1]
    assert first[2] == second[2] == 1


@pytest.mark.slow
def test_strangers_are_dropped_and_the_ranks_meet(hostfile):
    path = hostfile(2)
    port = int(json.loads(path.read_text())[0][0].rpartition(":")[2])
    zero = start(0, path)
    strangers = []
    for words in (b"GET / HTTP/1.0\r\n\r\n", b"x" * 36, b""):
        while True:
            sock = socket.socket()
            if sock.connect_ex(("127.0.0.1", port)) == 0 and sock.getsockname()[1] != port:
                break
            sock.close()
            time.sleep(0.005)
        sock.sendall(words)
        strangers.append(sock)
    said = ends([zero, start(1, path)])
    for sock in strangers:
        sock.close()
    assert [code for *_, code in said] == [0, 0]


# It knows the world and comes as rank 1, but as another user.
STRANGER = """
import os, socket, time, phalanx
from phalanx.distributed._environment import ring_environment
ring = ring_environment(os.environ)
os.setgid(65534)
os.setuid(65534)
print("ready", flush=True)
while True:
    sock = socket.socket()
    if sock.connect_ex(ring.addresses[0]) == 0 and sock.getsockname() != ring.addresses[0]:
        break
    sock.close()
    time.sleep(0.005)
sock.sendall(ring.world().hello(1))
print(sock.recv(100))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may be another user")
def test_another_user_does_not_get_in(hostfile):
    path = hostfile(2)
    stranger = wait_ready(start(1, path, code=STRANGER))
    zero, one = ends([start(0, path, 1.5), stranger])
    assert "CollectiveTimeout: rank 1 did not come within 1.5 s" in zero[1]
    assert one == ("b''\n", "", 0)


@pytest.mark.slow
def test_a_rank_does_not_trust_another_user_s_host(hostfile):
    path = hostfile(2)
    code = STRANGER.replace("print", "server = socket.create_server(ring.addresses[0])\nprint", 1)
    code = code.replace("while True:",
        "for _ in range(2):\n    sock, _ = server.accept(); sock.sendall(b'k' * 32)\n"
        "raise SystemExit\nwhile True:")  # fmt: skip
    if os.geteuid() != 0:
        pytest.skip("only root may be another user")
    _, one = ends([wait_ready(start(0, path, code=code)), start(1, path, 2.0)])
    assert "CollectiveTimeout: rank 0 was not met" in one[1]


def test_whose_a_connection_is():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
        server.accept()[0] as accepted,
    ):
        assert peer_uid(accepted) == os.geteuid()
        assert peer_uid(ours) == os.geteuid()


@pytest.mark.parametrize(
    ("rank", "text", "words"),
    [
        ("0", "{", "not a ring"),
        ("0", '[["localhost:1"]]', "not a ring"),
        ("0", "[[]]", "not a ring"),
        ("x", '[["127.0.0.1:1"]]', "not a ring"),
        ("2", '[["127.0.0.1:1"], ["127.0.0.1:2"]]', "no rank 2 among 2"),
        ("0", '[["10.0.0.1:1"], ["10.0.0.2:1"]]', "PHALANX_INSECURE=1"),
    ],
)
def test_what_cannot_be_is_said(tmp_path, rank, text, words):
    path = tmp_path / "hosts.json"
    path.write_text(text)
    with pytest.raises(DistributedError, match=words):
        ring_environment({"MLX_RANK": rank, "MLX_HOSTFILE": str(path)})


def test_the_opt_in_and_the_empty_file_of_one_rank(tmp_path):
    path = tmp_path / "hosts.json"
    path.write_text('[["10.0.0.1:1"], ["10.0.0.2:1"]]')
    env = {"MLX_RANK": "1", "MLX_HOSTFILE": str(path)}
    assert ring_environment({**env, "PHALANX_INSECURE": "1"}).size == 2
    path.write_text("")
    assert ring_environment({**env, "MLX_RANK": "0"}).size == 1
