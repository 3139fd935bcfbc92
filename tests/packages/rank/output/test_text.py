"""What no message can carry leaves a rank in a form that one can."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jupyter_client.session import json_packer, json_unpacker

from phalanx.rank.output.error_text import escape_surrogates, packs_anything
from phalanx.rank.output.streams import BytesToText

ANY_TEXT = st.text(st.characters(exclude_categories=[]))


@given(ANY_TEXT)
def test_any_text_can_be_sent(text):
    escaped = escape_surrogates(text)
    assert escaped.encode().decode() == escaped
    if not any(0xD800 <= ord(character) < 0xE000 for character in text):
        assert escaped == text


@given(st.dictionaries(ANY_TEXT, ANY_TEXT | st.integers() | st.none()))
def test_any_content_is_packed_and_can_be_sent_on(content):
    got = json_unpacker(packs_anything(json_packer)(content))
    assert json_unpacker(json_packer(got)) == got


def test_what_is_escaped_can_be_read():
    packed = packs_anything(json_packer)({"ename": 'a"\ud800\\b'})
    assert json_unpacker(packed) == {"ename": 'a"\\ud800\\b'}


@pytest.mark.parametrize("n", [1, 2, 3, 100])
def test_bytes_become_text_wherever_they_are_cut(n):
    text = io.StringIO()
    stream = BytesToText(text)
    data = "né∑𝄞\n".encode() + b"\xff\x00."
    for begin in range(0, len(data), n):
        assert stream.write(data[begin : begin + n]) == len(data[begin : begin + n])
    assert text.getvalue() == "né∑𝄞\n\ufffd\x00."
    print("text", file=stream._text, end="")
    assert stream.write(memoryview(b"!")) == 1
    assert text.getvalue().endswith("\x00.text!")
    assert stream.writable()
