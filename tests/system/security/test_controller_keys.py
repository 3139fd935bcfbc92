"""The controller's endpoints for other hosts: only a client with both keys gets in."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest
import zmq
from security.strangers import garbage, knock, learned, listening
from support.inside import root_pid
from zmq.utils.monitor import recv_monitor_message

from phalanx.errors import RankFailure
from phalanx.protocol import HostPlan, RemoteOptions
from phalanx.supervisor.engine.controller import ControllerProcess, file_for_rank
from phalanx.workspace import Workspace

CHANNELS = {  # and what an engine connects to them
    "registration": zmq.DEALER, "control": zmq.ROUTER, "mux": zmq.ROUTER, "task": zmq.ROUTER,
    "broadcast": zmq.ROUTER, "iopub": zmq.PUB, "hb_ping": zmq.SUB, "hb_pong": zmq.DEALER,
}  # fmt: skip


class Running:
    """A controller that was started by itself, in a loop that stands still meanwhile."""

    def __init__(self, *addresses: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._start(addresses))

    async def _start(self, addresses: tuple[str, ...]) -> None:
        up = self._loop.create_future()
        self._process = ControllerProcess(up.set_result, lambda *why: self._lost(up, *why))
        self._process.start("/", addresses)
        self.connection = await asyncio.wait_for(up, 20)

    def _lost(self, up, reason, tail) -> None:
        if not up.done():
            up.set_exception(OSError(f"{reason}: {tail}"))

    def close(self) -> None:
        self._loop.run_until_complete(self._process.stop())
        self._loop.close()


@pytest.fixture(scope="module")
def controller():
    running = Running("127.0.0.1", "127.0.0.2")
    yield running
    running.close()


def urls(file):
    """Where this connection file leads, by channel."""
    ports = {name: file[name] for name in CHANNELS}
    return {
        k: f"{file['interface']}:{v[0] if isinstance(v, list) else v}" for k, v in ports.items()
    }


def knocks(url: str, kind: int, keys: dict[str, bytes]) -> str:
    """Say how the handshake goes."""
    ends = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED
    with zmq.Context() as context, context.socket(kind) as sock:
        sock.linger, sock.ipv6 = 0, True
        for name, key in keys.items():
            setattr(sock, name, key)
        with sock.get_monitor_socket(ends) as monitor:
            sock.connect(url)
            assert monitor.poll(20_000)
            event = recv_monitor_message(monitor)["event"]
        sock.disable_monitor()
    return "in" if event == zmq.Event.HANDSHAKE_SUCCEEDED else "out"


def _check_keys(running: Running, address: str, begin: str) -> None:
    file = file_for_rank(running.connection, address)
    public, secret = zmq.curve_keypair()
    right = {k: file[k].encode() for k in ("curve_serverkey", "curve_publickey", "curve_secretkey")}
    own = {**right, "curve_publickey": public, "curve_secretkey": secret}
    for name, url in urls(file).items():
        kind = CHANNELS[name]
        assert url.startswith(begin)
        assert knocks(url, kind, right) == "in"
        assert knocks(url, kind, {}) == "out"
        assert knocks(url, kind, {**right, "curve_serverkey": public}) == "out"
        assert knocks(url, kind, own) == "out"


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
def test_only_both_keys_open_a_door(controller, address):
    _check_keys(controller, address, f"tcp://{address}:")


def test_garbage_at_every_door(controller, tmp_path):
    file = file_for_rank(controller.connection, "127.0.0.1")
    for url in urls(file).values():
        host, port = url.removeprefix("tcp://").split(":")
        for data in garbage(tmp_path / "bomb").values():
            sock = knock((host, int(port)), data)
            heard = learned(sock)
            assert heard == b"" or (len(heard) <= 64 and heard.startswith(b"\xff")), heard
            sock.close()
    assert not (tmp_path / "bomb").exists()
    _check_keys(controller, "127.0.0.1", "tcp://127.0.0.1:")


def test_doors_are_only_where_they_were_asked_for(controller):
    pid = controller._process._child.pid
    ports = [a for a in listening(pid) if not isinstance(a, str)]
    assert {host for host, _ in ports} == {"127.0.0.1", "127.0.0.2"}
    assert len(ports) == 2 * len(CHANNELS)
    assert file_for_rank(controller.connection)["interface"].startswith("ipc://")


def test_the_keys_are_told_to_nobody_else(controller):
    file = file_for_rank(controller.connection, "127.0.0.1")
    pid = controller._process._child.pid
    for name in ("cmdline", "environ"):
        text = Path(f"/proc/{pid}/{name}").read_bytes()
        for key in ("key", "curve_serverkey", "curve_publickey", "curve_secretkey"):
            assert file[key].encode() not in text


@pytest.mark.skipif(not Path("/proc/net/if_inet6").read_text(), reason="no IPv6 here")
def test_doors_of_ipv6():
    running = Running("::1")
    try:
        _check_keys(running, "::1", "tcp://[::1]:")
    finally:
        running.close()


def test_an_address_that_is_not_ours():
    with pytest.raises(OSError, match=r"it cannot listen on 192\.0\.2\.1: ") as caught:
        Running("192.0.2.1")
    assert "Traceback" not in str(caught.value)


@pytest.mark.slow
def test_kernels_reach_ranks_behind_doors_whatever_the_users_settings_of_ipyparallel(monkeypatch):
    """Ranks of another host, which is on this machine, are a workspace's and then another kernel's."""
    for name in ("SERVERKEY", "PUBLICKEY", "SECRETKEY"):
        monkeypatch.setenv(f"IPP_CURVE_{name}", "x" * 40)
    monkeypatch.setenv("IPP_ENABLE_CURVE", "1")
    remote = RemoteOptions(launcher="local")
    first = Workspace.start(hosts=[HostPlan("far", 2)], remote=remote, linger=30, name="behind")
    try:
        first.run("x = px.all_sum(10 + rank)")
        lasting = psutil.Process(root_pid(first)).children()
        (server,) = (p for p in lasting if "controller_main" in " ".join(p.cmdline()))
        met = {c.laddr.port for c in server.net_connections("tcp") if c.status == "ESTABLISHED"}
        assert len(met) == len(CHANNELS)  # the ranks do use them
        with Workspace.attach("behind", take=True) as second:
            assert [r.value for r in second.run("x")] == ["21", "21"]
            with pytest.raises(RankFailure):
                second.run("import os; os._exit(3)", ranks=[1])
            second.restart([1])
            assert [r.value for r in second.run("px.all_sum(rank)")] == ["1", "1"]
    finally:
        first.stop()
