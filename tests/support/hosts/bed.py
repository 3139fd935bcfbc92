"""Several hosts on one machine: network namespaces on a bridge, a real sshd and a name each.

Each host has its own network, host name, /run and /sys; files, users and processes are shared. No
address is outside the namespaces, the user's own ssh settings are not used, and nothing has a name
that outlives the process: namespaces are held by descriptors, servers die with the process that made them.
It knows Linux and OpenSSH, nothing of phalanx. An ordinary user needs user namespaces.
"""

from __future__ import annotations

import atexit
import contextlib
import ipaddress
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from support.hosts.bed_host import (
    NAMESPACES,
    PREFIX,
    SET_UP,
    SSH_CONFIG,
    SSHD_CONFIG,
    VARIABLE,
    BedHost,
    key_maker,
    kill_all,
    known,
    name_of,
    remove_leftovers,
    say,
    start,
    tcp_table,
    unshared,
    why_not,
)
from support.programs.commands import write_command
from support.programs.processes import is_gone, wait_gone
from support.waiting import wait_until

__all__ = ["Bed", "why_not"]

_numbers = itertools.count()


def _port(host: int, card: int) -> str:
    """The switch's end of a cable."""
    return f"port{host}" if card == 0 else f"port{host}_{card}"


class Bed:
    """``hosts`` hosts, named a, b, c, ..., each reached by ssh from each; a context manager.

    The names a6, b6, ... are their addresses of IPv6. Host 0 is where a test's own program runs. Hosts are given by index.
    """

    def __init__(self, hosts: int = 3) -> None:
        self._n_hosts = hosts
        self._make()

    def _make(self) -> None:
        hosts = self._n_hosts
        remove_leftovers()
        self.mark = f"{os.getpid()}-{next(_numbers)}"
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{self.mark}-"))
        self.ssh_config = self.folder / "ssh_config"
        self.servers: set[subprocess.Popen[Any]] = set()  # more that are part of the bed
        self._changes: set[str] = set()  # of rules and rates, which no file shows
        self._n_cards = 1
        self._switch = BedHost("switch", 1, self.folder)
        self.hosts = [
            BedHost(name_of(index), 11 + index, self.folder / name_of(index))
            for index in range(hosts)
        ]
        atexit.register(self.close)
        try:
            self._write_files()
            self._make_namespaces()
            for host in range(hosts):
                self.start_sshd(host)
            for host in range(hosts):
                self._wait_listening(host)
            self._texts = self._read_texts()
        except BaseException:
            self.close()
            raise

    def renew(self) -> None:
        """End all that runs on the hosts, and make them anew; this object stays the same."""
        self.close()
        self._make()

    # -- making -----------------------------------------------------------------------------------

    def _write_files(self) -> None:
        for host in self.hosts:
            host.folder.mkdir()
            shutil.copyfile("/dev/null", host.folder / "empty")
        keys = [self.folder / "key", *(host.folder / "host_key" for host in self.hosts)]
        makers = [subprocess.Popen(key_maker(path)) for path in keys]
        assert [maker.wait() for maker in makers] == [0] * len(makers)
        names = "".join(
            f"{host.address} {host.name}\n{host.address6} {host.name}6\n" for host in self.hosts
        )
        self.ssh_config.write_text(SSH_CONFIG.format(folder=self.folder))
        (self.folder / "known_hosts").write_text("".join(map(known, self.hosts)))
        for host in self.hosts:
            own = "127.0.0.1 localhost\n::1 localhost\n"
            (host.folder / "hosts").write_text(own + names)
            shutil.copyfile(self.ssh_config, host.folder / "ssh_config")
            shutil.copyfile(self.folder / "key.pub", host.folder / "authorized_keys")
            words = {"folder": host.folder, "variable": VARIABLE, "mark": self.mark}
            (host.folder / "sshd_config").write_text(SSHD_CONFIG.format(**words))

    def _make_namespaces(self) -> None:
        makers = [unshared("ip link add br0 type bridge; ip link set br0 up; echo made; read _")]
        try:
            self._hold(self._switch, makers[0])
            for host in self.hosts:
                words = {name: getattr(host, name) for name in ("name", "address", "address6")}
                script = SET_UP.format(uid=os.geteuid(), folder=host.folder, **words)
                makers.append(unshared(script, self._switch))
            for host, maker in zip(self.hosts, makers[1:], strict=True):
                self._hold(host, maker)
            lines = []
            for index, maker in enumerate(makers[1:]):
                port = f"port{index}"
                lines.append(f"link add {port} type veth peer name eth0 netns {maker.pid}")
                lines.append(f"link set {port} master br0 up")
            self._on_switch("ip", "-batch", "-", input="\n".join(lines).encode())
            for maker in makers[1:]:
                assert maker.stdin is not None
                assert maker.stdout is not None
                maker.stdin.write(b"\n")
                maker.stdin.flush()
            for maker in makers[1:]:
                assert maker.stdout.readline() == b"up\n", "a host has no address (stderr says why)"
        finally:
            for maker in makers:
                maker.communicate()

    def _hold(self, host: BedHost, maker: subprocess.Popen[bytes]) -> None:
        """Keep a host's namespaces when it has made them."""
        assert maker.stdout is not None
        assert maker.stdout.readline() == b"made\n", "a host was not made (stderr says why)"
        for kind in NAMESPACES:
            path = f"/proc/{maker.pid}/ns/{kind}"
            host.fds[kind] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    # -- running ----------------------------------------------------------------------------------

    def popen(self, host: int, command: Sequence[Any], **options: Any) -> subprocess.Popen[Any]:
        """Start a program on a host; it dies with us."""
        return start(self.hosts[host], self.mark, command, **options)

    def run(self, host: int, command: Sequence[Any], *, check: bool = True, **options: Any) -> Any:
        """Run a program on a host to its end, as `subprocess.run` does: text, captured, checked."""
        options = {"text": True, "timeout": 60, "capture_output": True, **options}
        options["env"] = {**(options.get("env") or os.environ), VARIABLE: self.mark}
        words = [str(word) for word in command]
        enter = self.hosts[host].enter
        done = subprocess.run(words, check=False, preexec_fn=enter, **options)
        assert not (check and done.returncode), f"{words}: {done.stdout}{done.stderr}"
        return done

    def processes(self, *hosts: int) -> list[psutil.Process]:
        """All that runs on these hosts (none given: on any), but for its servers."""
        chosen = [self.hosts[host] for host in hosts] or self.hosts
        networks = {host.network for host in chosen}
        servers = {server.pid for server in self.servers}
        servers |= {host.sshd.pid for host in chosen if host.sshd is not None}
        found = []
        for pid in set(psutil.pids()) - servers:
            with contextlib.suppress(OSError, psutil.Error):
                if Path(f"/proc/{pid}/ns/net").stat().st_ino in networks:
                    found.append(psutil.Process(pid))
        return [process for process in found if not is_gone(process)]

    def left(self, timeout_s: float, *hosts: int, but: str | tuple[str, ...] = ()) -> list[str]:
        """What still runs there when the time is over, in words; ``but`` programs may."""
        allowed = (but,) if isinstance(but, str) else but

        def living() -> list[psutil.Process]:
            found = self.processes(*hosts)
            return [one for one in found if not any(word in say(one) for word in allowed)]

        deadline_s = time.monotonic() + timeout_s
        while (alive := living()) and time.monotonic() < deadline_s:
            wait_gone(alive, min(0.2, max(0.0, deadline_s - time.monotonic())))
        return [say(process) for process in alive]

    # -- the wires --------------------------------------------------------------------------------

    def add_cables(self) -> None:
        """Give every host a second card, eth1, at its ``address1``, on a switch of their own."""
        self._on_switch("ip", "link", "add", "br1", "type", "bridge")
        self._on_switch("ip", "link", "set", "br1", "up")
        for index, host in enumerate(self.hosts):
            assert host.sshd is not None
            card = ["type", "veth", "peer", "name", "eth1", "netns", str(host.sshd.pid)]
            self._on_switch("ip", "link", "add", _port(index, 1), *card)
            self._on_switch("ip", "link", "set", _port(index, 1), "master", "br1", "up")
            self.run(index, ["ip", "addr", "add", f"{host.address1}/24", "dev", "eth1"])
            self.run(index, ["ip", "link", "set", "eth1", "up"])
        self._n_cards = 2

    def cut(self, host: int, card: int = 0) -> None:
        """Pull its cable: what is sent is lost, nobody is told."""
        self._on_switch("ip", "link", "set", _port(host, card), "down")

    def mend(self, host: int, card: int = 0) -> None:
        """Put the cable back."""
        self._on_switch("ip", "link", "set", _port(host, card), "up")

    def switch_off(self, host: int) -> None:
        """Take its own interface eth0 down: its programs are told, other hosts are not."""
        self.run(host, ["ip", "link", "set", "eth0", "down"])

    def switch_on(self, host: int) -> None:
        """Undo `switch_off`."""
        self.run(host, ["ip", "link", "set", "eth0", "up"])
        address = f"{self.hosts[host].address6}/64"  # Linux removes it where a card goes down
        self.run(host, ["ip", "addr", "replace", address, "dev", "eth0", "nodad"])

    def sent_nbytes(self, host: int, card: int = 0) -> int:
        """What a host has sent through a card so far."""
        file = f"/sys/class/net/eth{card}/statistics/tx_bytes"
        return int(self.run(host, ["cat", file]).stdout)

    def shape(self, host: int, rate: str, card: int = 0) -> None:
        """Bound what it sends and what it is sent, e.g. ``1gbit``; "" ends that."""
        words = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
        words = ["replace", *words] if rate else ["del", "root"]
        self._note(f"{self.hosts[host].name}: the rate of eth{card}", is_there=bool(rate))
        self.run(host, ["tc", "qdisc", words[0], "dev", f"eth{card}", *words[1:]])
        self._on_switch("tc", "qdisc", words[0], "dev", _port(host, card), *words[1:])

    def block(self, source: int, host: int, ports: str = "1-65534") -> None:
        """Let a host silently drop what another sends to these tcp ports; ssh is let through."""
        self._note(f"{self.hosts[host].name}: rules that drop", is_there=True)
        sent = ["from", self.hosts[source].address, "iif", "eth0", "ipproto", "tcp"]
        self._rule(host, "add", "pref", "100", "lookup", "local")
        self._rule(host, "del", "pref", "0")
        self._rule(host, "add", "pref", "10", *sent, "sport", "22", "lookup", "local")
        self._rule(host, "add", "pref", "11", *sent, "dport", "22", "lookup", "local")
        self._rule(host, "add", "pref", "12", *sent, "dport", ports, "blackhole")

    def unblock(self, host: int) -> None:
        """Undo `block`."""
        self._rule(host, "add", "pref", "0", "lookup", "local")
        for number in ("10", "11", "12", "100"):
            self._rule(host, "del", "pref", number)
        self._note(f"{self.hosts[host].name}: rules that drop", is_there=False)

    def _note(self, change: str, *, is_there: bool) -> None:
        self._changes = self._changes | {change} if is_there else self._changes - {change}

    def _rule(self, host: int, *words: str) -> None:
        self.run(host, ["ip", "rule", *words])

    def _on_switch(self, *command: str, **options: Any) -> None:
        enter = self._switch.enter
        subprocess.run(command, preexec_fn=enter, check=True, capture_output=True, **options)

    # -- whether it is as it was made -------------------------------------------------------------

    def flaws(self) -> list[str]:
        """Return in words what is not as it was made: cables, addresses, rules, rates, servers, files."""
        found = sorted(self._changes)
        for host in self.hosts:
            found += [f"{host.name}: {flaw}" for flaw in self._flaws_of(host)]
        texts = self._read_texts()
        found += [f"{name}: other text" for name in texts if texts[name] != self._texts[name]]
        return found

    def _flaws_of(self, host: BedHost) -> list[str]:
        server = host.sshd
        if server is None or server.poll() is not None:
            return ["its sshd does not run"]
        if psutil.Process(server.pid).status() == psutil.STATUS_STOPPED:
            return ["its sshd is stopped"]
        own = Path(f"/proc/{server.pid}")
        cards = {
            card.name: (card / "operstate").read_text().strip()
            for card in (own / "root/sys/class/net").iterdir()
        }
        wanted = {"lo": "unknown", **{f"eth{card}": "up" for card in range(self._n_cards)}}
        found = [] if cards == wanted else [f"its cards are {cards}"]
        address6 = ipaddress.ip_address(host.address6).packed.hex()
        if address6 not in (own / "net/if_inet6").read_text():
            found.append(f"it lacks {host.address6}")
        if host.address not in (own / "net/fib_trie").read_text():
            found.append(f"it lacks {host.address}")
        return found

    def _read_texts(self) -> dict[str, str]:
        files = [self.folder / "known_hosts"]
        for host in self.hosts:
            names = ("hosts", "ssh_config", "sshd_config", "authorized_keys", "host_key")
            files += [host.folder / name for name in names]
        return {str(path.relative_to(self.folder)): path.read_text() for path in files}

    # -- the hosts --------------------------------------------------------------------------------

    def signal(self, host: int, number: int) -> None:
        """Send a signal to all that runs on a host: SIGSTOP freezes it, SIGCONT goes on."""
        server = self.hosts[host].sshd
        for process in [*self.processes(host), *([server] if server is not None else [])]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def start_sshd(self, host: int) -> None:
        """Let it be reached again."""
        there = self.hosts[host]
        with (there.folder / "sshd.log").open("ab") as log:
            command = ["/usr/sbin/sshd", "-D", "-e", "-f", there.folder / "sshd_config"]
            there.sshd = start(there, self.mark, command, stderr=log, stdin=subprocess.DEVNULL)

    def stop_sshd(self, host: int) -> None:
        """Take no more logins; those that are in stay."""
        server, self.hosts[host].sshd = self.hosts[host].sshd, None
        if server is not None:
            server.kill()
            server.wait()

    def restart_sshd(self, host: int) -> None:
        """Let it read its files anew."""
        self.stop_sshd(host)
        self.start_sshd(host)
        self._wait_listening(host)

    @contextlib.contextmanager
    def changed(self, host: int, file: str, text: str) -> Any:
        """With another text in one of a host's files (`authorized_keys`), or our `known_hosts`."""
        path = (self.folder if file == "known_hosts" else self.hosts[host].folder) / file
        before = path.read_text()
        path.write_text(text)
        try:
            yield
        finally:
            path.write_text(before)

    @contextlib.contextmanager
    def other_host_key(self, host: int) -> Any:
        """With a host key that nobody knows, as after a host was set up anew."""
        path = self.hosts[host].folder / "host_key"
        kept = [path.with_name(f"kept_{end}") for end in ("key", "key.pub")]
        path.replace(kept[0])
        path.with_name("host_key.pub").replace(kept[1])
        subprocess.run(key_maker(path), check=True)
        try:
            self.restart_sshd(host)
            yield
        finally:
            kept[0].replace(path)
            kept[1].replace(path.with_name("host_key.pub"))
            self.restart_sshd(host)

    def python(self, name: str, script: str) -> Path:
        """Make a program that stands in for Python: a shell script."""
        return write_command(self.folder / name, script)

    @property
    def bare_python(self) -> Path:
        """A Python that has the standard library only."""
        return self.python("bare_python", f'exec {sys.executable} -I -S "$@"')

    def _wait_listening(self, host: int) -> None:
        there, log = self.hosts[host], self.hosts[host].folder / "sshd.log"

        def is_listening() -> bool:
            assert there.sshd is not None
            assert there.sshd.poll() is None, log.read_text()
            return "0016 00000000:0000 0A" in tcp_table(there)

        wait_until(is_listening, f"the sshd of {there.name} listens")

    def close(self) -> None:
        """End all that runs there, and remove all; idempotent."""
        atexit.unregister(self.close)
        while self.servers:
            server = self.servers.pop()
            server.kill()
            server.wait()
        made = [host for host in self.hosts if len(host.fds) == len(NAMESPACES)]
        for index, _ in enumerate(made):
            self.stop_sshd(index)
        deadline_s = time.monotonic() + 10
        while made and (alive := self.processes()) and time.monotonic() < deadline_s:
            kill_all(alive)
            wait_gone(alive, 0.5)
        for host in [self._switch, *self.hosts]:
            while host.fds:
                os.close(host.fds.popitem()[1])
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Bed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
