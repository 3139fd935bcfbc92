"""Check that each message is called on the wire what its class is called."""

from __future__ import annotations

import re

import msgspec

from phalanx.protocol import client, host, rank, records


def test_the_tag_of_a_message_is_the_name_of_its_class():
    tags = {}
    for module in (client, host, rank, records):
        for name, kind in vars(module).items():
            is_message = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
            if is_message and (tag := kind.__struct_config__.tag) is not None:
                tags[name] = tag
    assert len(tags) > 80
    assert tags == {name: re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in tags}
