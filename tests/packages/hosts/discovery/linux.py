"""A Linux host's /sys that does not exist, as the kernel would lay it out."""

from __future__ import annotations

import json


def write(root, **files):
    """Write files below a folder; a double underscore is a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def make_sys(root, *, interfaces=(), thunderbolt=(), infiniband=()):
    """Make /sys.

    ``interfaces``: (name, state, speed, driver or ""); ``thunderbolt``: (name, uuid, interface or
    ""); ``infiniband``: (device, port, state, layer, gid, interface).
    """
    (root / "class/net").mkdir(parents=True)
    for name, state, speed, driver in interfaces:
        folder = root / "class/net" / name
        write(folder, operstate=state, speed=speed, type=32 if name.startswith("ib") else 1)
        if driver:
            (folder / "device").mkdir()
            (folder / "device/driver").symlink_to(f"../../../bus/drivers/{driver}")
    for name, domain, interface in thunderbolt:
        folder = root / "bus/thunderbolt/devices" / name
        write(folder, rx_speed="20.0 Gb/s")
        if domain:
            write(folder, unique_id=domain)
        if interface:
            (folder / "net" / interface).mkdir(parents=True)
    for device, port, state, layer, gid, interface in infiniband:
        folder = root / "class/infiniband" / device / "ports" / str(port)
        write(folder, state=state, link_layer=layer, rate="100 Gb/sec (4X EDR)", gids__0=gid)
        write(folder, gid_attrs__ndevs__0=interface)
    return root


def ip_addr(**addresses):
    """What ``ip -j addr`` says of interfaces with these addresses."""
    return json.dumps(
        [
            {
                "ifname": name,
                "addr_info": [
                    {"local": a.split("/")[0], "prefixlen": int(a.split("/")[1]), "scope": "global"}
                    for a in texts
                ],
            }
            for name, texts in addresses.items()
        ]
    )
