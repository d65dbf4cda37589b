# SPDX-License-Identifier: Apache-2.0
import gzip
import tracemalloc
import zlib
from time import process_time

import msgspec
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from cometmq.client.errors import InvalidArgument
from cometmq.insight.decode import CHARS_MAX, Format, Schema, decode
from cometmq.remoting.visible import visible


def descriptor_set():
    file = descriptor_pb2.FileDescriptorProto(name="o.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type="TYPE_INT64", label="LABEL_OPTIONAL")
    message.field.add(name="name", number=2, type="TYPE_STRING", label="LABEL_OPTIONAL")
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


ORDER = b"\x08\x2a\x12\x03T\xc3\xa9"


@pytest.mark.parametrize(
    ("body", "kind", "part"),
    [
        (b'{"a":[1,{"b":null}]}', Format.JSON, '"a": ['),
        (b" [1.50, 1e400]\n", Format.JSON, "1.50"),
        ("größe ☄".encode(), Format.TEXT, "größe ☄"),
        (b"null and more", Format.TEXT, "null and more"),
        (b"a\x1b[31mb", Format.TEXT, "a\\x1b[31mb"),
        ("a\u202egnp.exe".encode(), Format.TEXT, "\\u202e"),
        (b"", Format.TEXT, ""),
        (msgspec.msgpack.encode({"a": b"\xff", 1: [None, True]}), Format.MSGPACK, '"1": ['),
        (bytes(range(256)), Format.HEX, "000000f0  f0 f1"),
        (b"\xdd\xff\xff\xff\xff", Format.HEX, "dd ff"),
        (b"\x91" * 40, Format.HEX, "91 91"),
    ],
)
def test_the_form_of_a_body_is_found(body, kind, part):
    found = decode(body)
    assert (found.format, found.byte_count) == (kind, len(body))
    assert part in found.text


def test_compressed_bodies_are_opened():
    once = decode(gzip.compress(b'{"a": 1}'))
    twice = decode(zlib.compress(gzip.compress(b"text")))
    assert (once.format, once.layers) == (Format.JSON, ("gzip",))
    assert (twice.text, twice.layers) == ("text", ("zlib", "gzip"))


@given(
    st.recursive(
        st.none() | st.integers(-5, 5) | st.text('a[]{}:,"\\\u00e9\n ', max_size=8),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text("a]:", max_size=3), inner)
        ),
        max_leaves=30,
    ).filter(lambda it: isinstance(it, dict | list)),
    st.integers(1, 200),
)
def test_json_is_indented_as_a_library_does(value, chars_max):
    body = msgspec.json.encode(value)
    whole = visible(msgspec.json.format(body, indent=2).decode())
    found = decode(body, Format.JSON, chars_max=chars_max)
    assert (found.text, found.is_cut) == (whole[:chars_max], len(whole) > chars_max)
    assert decode(body, Format.JSON).text == whole


def test_deep_json_is_not_blown_up():
    """Indented as a whole, these 2 MB have 1.8 GB."""
    body = b"[" * 900 + b"1," * 1_000_000 + b"1" + b"]" * 900
    tracemalloc.start()
    try:
        found = decode(body, chars_max=480)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found.format, found.is_cut, len(found.text)) == (Format.JSON, True, 480)
    assert peak_bytes < 16 << 20
    assert decode(body).text.startswith("[\n  [\n    [")


def test_a_bomb_is_not_blown_up():
    found = decode(gzip.compress(bytes(64 << 20)))
    assert "more than 16.0 MiB" in found.note
    assert len(found.text) <= CHARS_MAX
    assert found.is_cut


@pytest.mark.parametrize("layers", [1, 2])
def test_a_preview_of_a_bomb_reads_little_of_it(monkeypatch, layers):
    """A page lists hundreds of messages, and each took 0.2 s."""
    sizes = []
    inflate = zlib.decompressobj

    class Counted:
        def __init__(self, window):
            self._reader = inflate(window)

        def decompress(self, data, size_max):
            sizes.append(len(found := self._reader.decompress(data, size_max)))
            return found

        eof = True

    body = ("[" + "é," * (4 << 20) + "1]").encode()
    for _ in range(layers):
        body = gzip.compress(body)
    monkeypatch.setattr("cometmq.insight.decode.zlib.decompressobj", Counted)
    found = decode(body, chars_max=480)
    assert sum(sizes) <= 2 * 64 * 1024
    assert (found.format, found.is_cut) == (Format.TEXT, True)
    assert found.text.startswith("[é,é,")
    assert found.note == "it has more than 64.0 KiB when decompressed"
    assert decode(body, Format.JSON, chars_max=480).format is Format.HEX


def test_an_incomplete_gzip_shows_its_beginning():
    data = gzip.compress(b"many words " * 100)
    found = decode(data[: len(data) - 9])
    assert found.text.startswith("many words")
    assert found.note == "the gzip data ends early"


@pytest.mark.load
def test_a_body_of_4_mb_is_cut():
    for body in (b"x" * (4 << 20), b"\xff" * (4 << 20), b'["' + b"y" * (4 << 20) + b'"]'):
        begun = process_time()
        found = decode(body)
        assert found.is_cut
        assert len(found.text) <= CHARS_MAX
        assert process_time() - begun < 3


def test_a_wanted_form_that_does_not_fit_says_why():
    found = decode(b"{nope", Format.JSON)
    assert (found.format, found.note.startswith("not json: ")) == (Format.HEX, True)
    assert decode(b"\xff", Format.TEXT).note == "not text: byte 0 is not UTF-8"
    assert (
        decode(b"x", Format.PROTOBUF).note
        == "not protobuf: no message type of a descriptor set was named"
    )
    many = decode(msgspec.msgpack.encode([0] * 2_000_000), Format.MSGPACK)
    assert many.note == "not msgpack: it has more than 1 MiB"
    deep = decode(b"\x91" * 100_000 + b"\xc0", Format.MSGPACK)
    assert (deep.format, deep.note.startswith("not msgpack: ")) == (Format.HEX, True)


def test_large_protobuf_is_not_taken_apart():
    schema = Schema(descriptor_set(), "shop.Order")
    found = decode(ORDER * (1 << 20), Format.PROTOBUF, schema=schema, chars_max=480)
    assert (found.format, found.note) == (Format.HEX, "not protobuf: it has more than 1 MiB")


def test_protobuf_needs_a_schema():
    schema = Schema(descriptor_set(), "shop.Order")
    found = decode(ORDER, schema=schema)
    assert found.format is Format.PROTOBUF
    assert '"id": "42"' in found.text
    assert '"name": "Té"' in found.text
    wrong = decode(b"\xff\xff", Format.PROTOBUF, schema=schema)
    assert wrong.format is Format.HEX
    assert wrong.note.startswith("not protobuf: not a shop.Order")


def test_a_wrong_schema_is_named():
    with pytest.raises(
        InvalidArgument, match=r"no message type shop\.Nothing; it has: shop\.Order"
    ):
        Schema(descriptor_set(), "shop.Nothing")
    with pytest.raises(InvalidArgument, match="the descriptor set cannot be read"):
        Schema(b"\xff\xff\xff", "shop.Order")


@given(st.binary(max_size=300), st.sampled_from(Format))
def test_no_body_raises(body, wanted):
    found = decode(body, wanted, chars_max=200)
    assert len(found.text) <= 200
    assert not {it for it in found.text if not it.isprintable()} - {"\n", "\t"} or all(
        ord(it) > 0xA0 for it in found.text if not it.isprintable() and it not in "\n\t"
    )


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    ).filter(lambda it: isinstance(it, list | dict)),
    st.integers(1, 200),
)
def test_every_messagepack_map_and_list_is_read(value, chars):
    body = msgspec.msgpack.encode(value)
    found = decode(body, Format.MSGPACK)
    assert found.format is Format.MSGPACK, found.note
    part = decode(body, Format.MSGPACK, chars_max=chars)
    assert (part.text, part.is_cut) == (found.text[:chars], len(found.text) > chars)


@pytest.mark.load
def test_only_the_shown_part_of_messagepack_costs_time():
    """On a quiet core, 7 ms instead of 300 ms."""
    body, spent = msgspec.msgpack.encode(["\u200e\n" * 250_000]), []
    for _ in range(5):
        begun = process_time()
        assert decode(body, chars_max=2_000).is_cut
        spent.append(process_time() - begun)
    assert min(spent) < 0.05
