"""`px.init(interface=...)`: the links are made on that interface, and what cannot be is said."""

from __future__ import annotations

import sys

import pytest
from support.inside import WORLD_ADDRESSES_CODE

import phalanx as px
from phalanx.hosts import own_addresses

SCRIPT = """
import sys, psutil, phalanx as px
world = px.init(interface="eth0", timeout=20.0)
assert px.init(interface="eth0") is world
used = {c.laddr.ip for c in psutil.Process().net_connections("tcp") if c.status == "ESTABLISHED"}
print(px.all_sum(world.rank()), *used)
try:
    px.init(interface="lo")
except px.NotSupported as error:
    print(error)
px.recover(timeout=20.0)
"""
LATE = (
    "interface='lo' comes too late, the links of this world are made; choose it with --interface "
    "at the start of the world, or in the first px.init"
)
SAID = ["1 10.77.0.11", LATE, "('10.77.0.11', 'fd77::11')"]


@pytest.mark.slow
def test_a_script_s_ranks_use_it(bed, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"{SCRIPT}print({WORLD_ADDRESSES_CODE})\n")
    command = [sys.executable, "-m", "phalanx", "launch", "-n", 2, "--transport", "tcp"]
    said = bed.run(0, [*command, "--label", "none", script])
    assert sorted(said.stdout.splitlines()) == sorted(SAID * 2)


def test_an_interface_that_is_not_there_is_named():
    name = next(name for name, texts in own_addresses().items() if "127.0.0.1" in texts)
    with pytest.raises(ValueError, match=f"no interface '{name}x'; did you mean {name}"):
        px.init(interface=f"{name}x")
    assert px.init(interface=name).size() == 1
    with pytest.raises(px.NotSupported, match="MPI chooses its own"):
        px.init(backend="mpi", interface=name)
