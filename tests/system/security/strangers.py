"""Who is not let in: what they say to a port, and how all ports of a workspace are found."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import socket
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import zmq
from jupyter_client.session import Session

from phalanx.protocol import Hello
from phalanx.supervisor.runtime_dir import socket_paths

Address = tuple[str, int] | str  # of tcp, or a Unix socket's name or path
_ACCEPTS = 0x10000  # flags in /proc/net/unix: it listens


def listening(pid: int) -> list[Address]:
    """Where a process and all it started listen, over tcp and on Unix sockets."""
    ports, names = set(), set()
    inodes = set()
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess, OSError):
                connections = process.net_connections("tcp")
                ports |= {c.laddr[:2] for c in connections if c.status == psutil.CONN_LISTEN}
                for fd in Path(f"/proc/{process.pid}/fd").iterdir():
                    with contextlib.suppress(OSError):
                        inodes.add(str(fd.readlink()))
    for line in Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()[1:]:
        fields = line.split()
        if f"socket:[{fields[6]}]" in inodes and int(fields[3], 16) & _ACCEPTS and len(fields) > 7:
            name = fields[7].replace("@", "\0", 1)
            # A root's, which it renames as soon as it listens.
            is_root = name.startswith("/proc/self/fd/")
            names |= set(map(str, socket_paths())) if is_root else {name}
    return [*sorted(ports), *sorted(names)]


def connect(address: Address) -> socket.socket:
    """Connect to one of these."""
    if not isinstance(address, str):
        return socket.create_connection(address, timeout=10)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(10)
        if address.startswith("/"):  # a path may be longer than an address
            fd = os.open(address, os.O_PATH)
            try:
                sock.connect(f"/proc/self/fd/{fd}")
            finally:
                os.close(fd)
        else:
            sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock


def endpoint(address: Address) -> str:
    """Write it as zmq does."""
    if isinstance(address, str):
        return "ipc://" + address.replace("\0", "@", 1)
    return f"tcp://{address[0]}:{address[1]}"


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return Path.touch, (self.path,)


def garbage(path: Path) -> dict[str, bytes]:
    """What comes to an open port, by name; ``path`` appears if any of it is unpickled or run."""
    noise = random.Random(5).randbytes
    greeting = b"\xff" + bytes(8) + b"\x7f"
    null = greeting + b"\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
    curve = greeting + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
    bomb = pickle.dumps(Bomb(path))
    return {
        "nothing": b"",
        "a byte": b"\0",
        "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "http, long": b"POST /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        "tls": b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + noise(502),
        "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
        "redis": b"*1\r\n$4\r\nPING\r\n",
        "noise": noise(4096),
        "zeros": bytes(4096),
        "ones": b"\xff" * 4096,
        "a pickle": bomb,
        "a pickle in a frame": struct.pack("<I", len(bomb)) + bomb,
        "a frame of 4 GiB": b"\xff\xff\xff\xff" + noise(64),
        "ours, of noise": b"phalanx\0" + noise(200),
        "ours, to meet": b"phalanxM" + noise(200),
        "zmtp 1": b"\x01\0" + b"\x06\0hello",
        "zmtp 2": greeting + b"\x01\x05" + b"\0\0" + b"\0\x05hello",
        "zmtp 3, no key": null + b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x06DEALER\0\x05hello",
        "zmtp 3, plain": greeting + b"\x03\x01PLAIN".ljust(22, b"\0") + bytes(32) + noise(64),
        "zmtp 3, curve of noise": curve + b"\x04\xc8\x05HELLO\x01\0" + noise(192),
        "zmtp 3, a command of 1 EiB": curve + b"\x06" + struct.pack(">Q", 1 << 60) + noise(4096),
    }


def knock(address: Address, data: bytes) -> socket.socket | None:
    """Connect and say something; the connection stays open."""
    try:
        sock = connect(address)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        sock.sendall(data)
    return sock


def learned(sock: socket.socket) -> bytes:
    """What the other side has said by now."""
    heard = b""
    sock.settimeout(0)
    with contextlib.suppress(OSError):
        while data := sock.recv(4096):
            heard += data
    return heard


def requests(path: Path, key: bytes, engine: str) -> list[list[bytes]]:
    """Messages that would be answered, take the workspace or make ``path`` if they were obeyed."""
    messages = [[msgspec.msgpack.encode(Hello(is_taking=take))] for take in (False, True)]
    for session in (Session(key=b""), Session(key=key)):
        code = {"code": f"open({str(path)!r}, 'w')", "silent": False, "allow_stdin": False}
        for kind, content in [("execute_request", code), ("apply_request", {})]:
            message = session.msg(kind, content=content)
            frames = session.serialize(message, ident=engine.encode())
            messages.append([*frames, pickle.dumps(Bomb(path)), pickle.dumps(Bomb(path))])
    messages.append([b"", pickle.dumps(Bomb(path))])
    messages.append([json.dumps({"code": "1"}).encode()])
    return messages


class ZmqStranger:
    """Speaks zmq to addresses, with all kinds of sockets and with keys of its own.

    It has no key, or one pair for a server that it does not know.
    """

    KINDS = (zmq.DEALER, zmq.SUB, zmq.PUB, zmq.ROUTER, zmq.REQ)

    def __init__(self, addresses: list[Address], messages: list[list[bytes]]) -> None:
        servers = [b"", zmq.curve_keypair()[0]]
        self._context = zmq.Context()
        self._sockets = []
        for address in addresses:
            for kind in self.KINDS:
                for server in servers:
                    sock = self._context.socket(kind)
                    sock.linger = 0
                    if server:
                        sock.curve_serverkey = server
                        sock.curve_publickey, sock.curve_secretkey = zmq.curve_keypair()
                    if kind == zmq.SUB:
                        sock.subscribe(b"")
                    sock.connect(endpoint(address))
                    if kind in {zmq.DEALER, zmq.PUB}:
                        for message in messages:
                            sock.send_multipart(message, zmq.NOBLOCK)
                    self._sockets.append(sock)

    def heard(self) -> list[list[bytes]]:
        """All that has come in."""
        found = []
        for sock in self._sockets:
            with contextlib.suppress(zmq.ZMQError):
                while True:
                    found.append(sock.recv_multipart(zmq.NOBLOCK))
        return found

    def close(self) -> None:
        self._context.destroy(linger=0)


# Everything is imported before we may not read it any more.
_OTHER_USER = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from security.strangers import ZmqStranger, garbage, knock, learned, requests
os.setgroups([]); os.setgid(65534); os.setuid(65534)
zmq_strangers = []
for line in sys.stdin:
    kind, addresses, path = json.loads(line)
    addresses = [a if isinstance(a, str) else tuple(a) for a in addresses]
    if kind == "garbage":
        socks = [knock(a, data) for a in addresses for data in garbage(Path(path)).values()]
        said = sum(len(learned(sock)) for sock in socks if sock)
    elif kind == "zmq":
        zmq_strangers.append(ZmqStranger(addresses, requests(Path(path), os.urandom(32), "engine")))
        said = 0
    else:
        said = sum(len(stranger.heard()) for stranger in zmq_strangers)
    print(said, flush=True)
os._exit(0)
"""


class OtherUser:
    """A process of another user of this machine; only root can start one."""

    def __init__(self) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-c", _OTHER_USER, str(Path(__file__).parents[1])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def say(self, kind: str, addresses: list[Address], path: Path) -> int:
        """Let it speak to addresses; how much it has heard in answer."""
        self._popen.stdin.write(json.dumps([kind, addresses, str(path)]) + "\n")
        self._popen.stdin.flush()
        return int(self._popen.stdout.readline())

    def __enter__(self) -> OtherUser:
        return self

    def __exit__(self, *_: object) -> None:
        with self._popen:
            self._popen.stdin.close()
