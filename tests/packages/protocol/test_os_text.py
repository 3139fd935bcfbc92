"""What the operating system takes for words crosses the wire unchanged, or can be shown."""

from __future__ import annotations

import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.protocol import BootOptions, BootProgress, FromRoot, RemoteOptions, WorldConfig
from phalanx.protocol.os_text import decode_options, encode_message, encode_options

WORDS = st.binary(max_size=8).map(os.fsdecode)


def options(*words, name="w"):
    remote = RemoteOptions(env={"A": words[-1]}, ssh_args=words)
    return BootOptions(WorldConfig(name, 1), 0.5, words[0], remote=remote)


@given(st.lists(WORDS, min_size=1))
def test_words_arrive_unchanged(words):
    sent = options(*words)
    line = encode_options(sent)
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert decode_options(line, BootOptions) == sent


def test_words_keep_their_bytes_between_two_encodings(monkeypatch):
    sent = options("ü", os.fsdecode(b"\xff"))
    line = encode_options(sent)
    monkeypatch.setattr(os, "fsdecode", lambda data: data.decode("latin-1"))
    assert decode_options(line, BootOptions).remote.ssh_args == ("Ã¼", "ÿ")
    monkeypatch.setattr(os, "fsencode", lambda text: text.encode("latin-1"))
    assert encode_options(options("Ã¼", "ÿ")) == line
    assert encode_options(options("€", "ÿ")) == encode_options(options("â\x82¬", "ÿ"))


def test_half_a_character_is_named():
    with pytest.raises(ValueError, match=r"'a.ud800' holds half a character: '.ud800'"):
        encode_options(options("a\ud800"))


@given(st.text(alphabet=st.sampled_from("a€\udcff\ud800"), max_size=8))
def test_a_message_can_always_be_sent_and_printed(text):
    message = BootProgress(1, text, "starting", 0.5, text)
    (number, got) = msgspec.msgpack.decode(encode_message((7, message)), type=tuple[int, FromRoot])
    assert number == 7
    assert got.name == got.text
    assert got.text.encode().count(b"\\") == sum(0xD800 <= ord(char) < 0xE000 for char in text)
    assert "\\" in got.text or got == message
