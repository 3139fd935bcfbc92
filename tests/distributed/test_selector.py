"""The selector's table: read where PHALANX_SELECTOR says, the same on all ranks or a named error."""

from __future__ import annotations

import json

import pytest
from support.launching import launch
from support.tiers import deep

from phalanx.cli.bench import table_from
from phalanx.distributed.world_spec import Selector, read_selector, write_selector
from phalanx.errors import DistributedError

_TOLD = """
import json
import numpy as np
import phalanx as px
group = px.init(strict=True)
px.all_sum(np.ones(1 << 12))
told = group.describe([8, 4096, 1 << 16])["engine"]
if group.rank() == 0:
    print(json.dumps([told["selector"], told["algorithms"]["all_sum"]]))
"""


@pytest.fixture
def table(tmp_path):
    def write(name="table.json", **thresholds):
        path = tmp_path / name
        write_selector(path, Selector(**thresholds), machine={"cpu": "made up"})
        return str(path)

    return write


def test_what_is_written_is_read(table):
    assert read_selector(table(mesh_bytes=0, direct_bytes=7)).table == {
        "mesh_bytes": 0,
        "direct_bytes": 7,
    }
    assert read_selector("") == Selector()


@pytest.mark.parametrize(
    ("contents", "why"),
    [
        (None, "No such file"),
        ("{", "truncated"),
        ('{"selector": {"mesh_byte": 1}}', "mesh_byte"),
        ('{"selector": {"mesh_bytes": "many"}}', "int"),
        ('{"selector": {"mesh_bytes": -1}}', "0 or more"),
        ("[]", "object"),
    ],
)
def test_no_table(tmp_path, contents, why):
    path = tmp_path / "bad.json"
    if contents is not None:
        path.write_text(contents)
    with pytest.raises(DistributedError, match=why) as raised:
        read_selector(str(path))
    assert "PHALANX_SELECTOR" in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transport", "thresholds", "ways"),
    [
        pytest.param("any", {"inline_bytes": 0}, ("staged", "staged"), marks=deep),
        ("any", {"inline_bytes": 4096}, ("inline", "staged")),
        pytest.param("tcp", {"mesh_bytes": 0, "direct_bytes": 0}, ("ring", "ring"), marks=deep),
        ("tcp", {"mesh_bytes": 2 * 4096, "direct_bytes": 1 << 20}, ("mesh", "direct")),
    ],
)
def test_ranks_follow_the_table(tmp_path, table, transport, thresholds, ways):
    script = tmp_path / "told.py"
    script.write_text(_TOLD)
    said = launch(
        "-n", "3", "--transport", transport, "--label", "none", str(script),
        env={"PHALANX_SELECTOR": table(**thresholds)},
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    selector, by_size = json.loads(said.stdout)
    assert {name: selector[name] for name in thresholds} == thresholds
    assert (by_size["4096"], by_size["65536"]) == ways


@pytest.mark.slow
def test_tables_that_differ_are_an_error_that_names_the_ranks(tmp_path, table):
    script = tmp_path / "differ.py"
    script.write_text(
        "import os\n"
        "if os.environ['PHALANX_RANK'] == '1':\n"
        f"    os.environ['PHALANX_SELECTOR'] = {table(direct_bytes=64)!r}\n"
        "import phalanx as px\n"
        "try:\n"
        "    px.all_sum(1)\n"
        "except px.CollectiveMismatch as error:\n"
        "    print(error)\n"
    )
    said = launch("-n", "2", str(script))
    assert said.stdout.count(b"their PHALANX_SELECTOR tables differ") == 2, said.stderr
    for words in (b"rank 0: all_sum", b"rank 1: all_sum"):
        assert words in said.stdout


@pytest.mark.slow
def test_a_bad_table_is_one_line(tmp_path):
    script = tmp_path / "sum.py"
    script.write_text("import phalanx as px\npx.all_sum(1)\n")
    said = launch("-n", "2", str(script), env={"PHALANX_SELECTOR": "/nowhere/table.json"})
    assert said.returncode != 0
    assert b"PHALANX_SELECTOR='/nowhere/table.json' is no table of the selector" in said.stderr
    assert b"/phalanx/" not in said.stderr  # no frame of ours


def test_thresholds_from_times():
    sizes = (8, 64, 512, 4096)
    times = {
        "mesh": dict(zip(sizes, (1, 2, 9, 99), strict=True)),
        "direct": dict(zip(sizes, (2, 2, 5, 50), strict=True)),
        "ring": dict(zip(sizes, (3, 3, 6, 40), strict=True)),
        "mesh broadcast": dict(zip(sizes, (2, 2, 9, 9), strict=True)),
        "chain": dict(zip(sizes, (1, 1, 9, 9), strict=True)),
    }
    assert table_from(times, 4) == Selector(
        mesh_bytes=3 * 64, direct_bytes=512, mesh_broadcast_bytes=0
    )
    del times["direct"]
    assert table_from(times, 2).direct_bytes is None
    # Beyond what the engine takes inline both ways are the same, but for noise.
    same = {8: 1.0, 32 << 10: 2.0, 64 << 10: 3.0}
    assert table_from({"inline": same, "staged": same}, 2).inline_bytes == 32 << 10
