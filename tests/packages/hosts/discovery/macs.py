"""Macs that do not exist: what their commands would say of given cables, in macOS's forms."""

from __future__ import annotations

import json
import uuid

from phalanx.cli.config.surveys import read_survey, save_surveys
from phalanx.cli.probe.probe_main import survey_macos


class Mac:
    """One host; `plug` puts a cable into its next socket (or the one named)."""

    def __init__(self, name, place, *, sockets=4, has_rdma=True, address=None):
        self.name, self.place, self.sockets, self.has_rdma = name, place, sockets, has_rdma
        self.address = address or f"10.0.0.{place + 1}"
        self.peers = {}  # socket: list of chains of devices, the last being a host's domain

    def domain(self, socket):
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{self.place}.{socket}")).upper()

    def interface(self, socket):
        return f"en{socket + 1}"

    def free(self):
        return next(s for s in range(1, self.sockets + 1) if s not in self.peers)

    def survey(self, *, has_sudo=True):
        return survey_of(self.name, self.outputs(), has_sudo=has_sudo)

    def outputs(self):
        return {
            "system_profiler": json.dumps({"SPThunderboltDataType": self._buses()}, indent=1)
            + "\n",
            "networksetup": self._hardware_ports(),
            "ifconfig": self._ifconfig(),
            "ibv_devices": self._ibv_devices() if self.has_rdma else "",
        }

    def _buses(self):
        return [self._bus(socket) for socket in range(1, self.sockets + 1)]

    def _bus(self, socket):
        chains = self.peers.get(socket, [])
        bus = {
            "_name": f"thunderboltusb4_bus_{socket - 1}",
            "device_name_key": "Mac Studio",
            "domain_uuid_key": self.domain(socket),
            "receptacle_1_tag": {
                "current_speed_key": "80 Gb/s" if chains else "Up to 80 Gb/s",
                "link_status_key": "0x2" if chains else "0x7",
                "receptacle_id_key": str(socket),
                "receptacle_status_key": f"receptacle_{'' if chains else 'no_devices_'}connected",
            },
            "route_string_key": "0",
            "switch_uid_key": f"0x05AC{self.place:04X}{socket:08X}",
            "vendor_name_key": "Apple Inc.",
        }
        if chains:
            bus["_items"] = self._items(chains)
        return bus

    def _items(self, chains):
        hubs, items = {}, []
        for chain in chains:
            if len(chain) == 1:
                items.append(
                    {"_name": "Mac Studio", "domain_uuid_key": chain[0], "mode_key": "usb_four"}
                )
            else:
                hubs.setdefault(chain[0], []).append(chain[1:])
        return [
            *(
                {"_name": hub, "device_name_key": hub, "_items": self._items(c)}
                for hub, c in hubs.items()
            ),
            *items,
        ]

    def _hardware_ports(self):
        ports = [("Ethernet", "en0"), ("Wi-Fi", "en1"), ("Thunderbolt Bridge", "bridge0")]
        ports += [(f"Thunderbolt {s}", self.interface(s)) for s in range(1, self.sockets + 1)]
        mac = "Ethernet Address: 00:00:00:00:00:00"
        said = "".join(
            f"\nHardware Port: {port}\nDevice: {device}\n{mac}\n" for port, device in ports
        )
        return said + "\nVLAN Configurations\n===================\n"

    def _ifconfig(self):
        up = "flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500"
        return (
            "lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> mtu 16384\n"
            "\tinet 127.0.0.1 netmask 0xff000000\n\tinet6 ::1 prefixlen 128\n"
            f"en0: {up}\n\tether 00:00:00:00:00:00\n"
            f"\tinet6 fe80::{self.place + 1}%en0 prefixlen 64 secured scopeid 0x6\n"
            f"\tinet {self.address} netmask 0xffffff00 broadcast 10.0.0.255\n"
            "\tmedia: autoselect (10Gbase-T <full-duplex>)\n\tstatus: active\n"
            f"en1: {up}\n\tmedia: autoselect\n\tstatus: inactive\n"
            f"bridge0: {up}\n\tmedia: <unknown type>\n\tstatus: inactive\n"
        )

    def _ibv_devices(self):
        head = "    device          \t   node GUID\n    ------          \t----------------\n"
        lines = (
            f"    rdma_{self.interface(s):<11}\t{self.place:08x}{s:08x}\n"
            for s in range(1, self.sockets + 1)
        )
        return head + "".join(lines)


def survey_of(name, outputs, *, has_sudo=True):
    """Return the survey of a Mac whose commands have these outputs."""
    notes = []
    found = survey_macos(outputs, notes)
    return read_survey(name, {"system": "Darwin", **found, "has_sudo": has_sudo, "notes": notes})


def plug(a, b, *hubs, a_socket=None, b_socket=None):
    """Put a cable between two Macs, through hubs (by name) if there are any."""
    s, t = a_socket or a.free(), b_socket or b.free()
    a.peers.setdefault(s, []).append([*hubs, b.domain(t)])
    b.peers.setdefault(t, []).append([*reversed(hubs), a.domain(s)])


def macs(n, **options):
    return [Mac(f"mac{i}", i, **options) for i in range(n)]


def wired(n, pairs, **options):
    """Return n Macs with a cable for each pair of places."""
    most = max(sum(i in pair for pair in pairs) for i in range(n))
    hosts = macs(n, sockets=max(3, most), **options)
    for a, b in pairs:
        plug(hosts[a], hosts[b])
    return hosts


def mesh(n):
    return [(i, j) for i in range(n) for j in range(i + 1, n)]


def worlds():
    """Return worlds of Macs by name."""
    hub = macs(3, sockets=3)
    plug(hub[0], hub[1], "TS5 Hub", a_socket=1, b_socket=1)
    plug(hub[0], hub[2], "TS5 Hub", "Echo 20", a_socket=1, b_socket=1)
    plug(hub[1], hub[2], a_socket=2, b_socket=2)
    return {
        "ring": wired(4, [(0, 2), (2, 1), (1, 3), (3, 0)] * 2),  # mac0, 2, 1, 3; two cables each
        "mesh": wired(4, mesh(4)),
        "broken_mesh": wired(4, [(0, 2), (0, 3), (1, 2), (1, 3)]),
        "broken_ring": wired(4, [(0, 1), (1, 2), (2, 3)]),
        "hub": hub,
        "no_rdma": wired(3, mesh(3), has_rdma=False),
    }


def save_worlds(folder):
    """Save the surveys of each world in a folder of its name; return the folder of these folders."""
    for name, hosts in worlds().items():
        save_surveys(folder / name, [host.survey() for host in hosts])
    return folder
