# SPDX-License-Identifier: Apache-2.0
"""Both header encodings: round trips, Java's leniency, hostile bytes."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.remoting.errors import LocalProtocolError, RemoteProtocolError
from cometmq.remoting.frame import FrameReader
from cometmq.remoting.header import decode_header, encode_binary_ext
from cometmq.remoting.raw import RawCommand
from cometmq.remoting.types import Language, Serialization
from cometmq.testing.remoting.frames import encode_frame

INT32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)
COMMANDS = st.builds(
    RawCommand,
    code=st.integers(-(2**15), 2**15 - 1),
    flag=INT32,
    opaque=INT32,
    language=st.sampled_from(Language),
    version=st.integers(-(2**15), 2**15 - 1),
    remark=st.none() | TEXT,
    ext=st.dictionaries(TEXT, TEXT, max_size=5),
    body=st.binary(max_size=50),
    serialization=st.sampled_from(Serialization),
)


def binary_head(ext: bytes = b"", *, remark: bytes = b"", ext_length: int | None = None) -> bytes:
    length = len(ext) if ext_length is None else ext_length
    fixed = struct.pack(">hBhiii", 310, 0, 401, 7, 0, len(remark))
    return fixed + remark + struct.pack(">i", length) + ext


def decode_json(header: Any) -> RawCommand:
    return decode_header(Serialization.JSON, json.dumps(header).encode())


@given(COMMANDS)
def test_what_is_encoded_is_decoded(command: RawCommand) -> None:
    ((serialization, head, body),) = FrameReader().feed(encode_frame(command))

    assert decode_header(serialization, head, body) == command


@given(st.binary(max_size=60), st.integers(-1, 3))
def test_hostile_headers_raise_the_one_error(head: bytes, serialization: int) -> None:
    try:
        decode_header(serialization, head)
    except RemoteProtocolError:
        return


@given(COMMANDS, st.data())
def test_headers_with_a_flipped_byte_raise_the_one_error(
    command: RawCommand, data: st.DataObject
) -> None:
    ((serialization, head, _),) = FrameReader().feed(encode_frame(command))
    position = data.draw(st.integers(0, len(head) - 1))
    flipped = bytes([head[position] ^ data.draw(st.integers(1, 255))])
    try:
        decode_header(serialization, head[:position] + flipped + head[position + 1 :])
    except RemoteProtocolError:
        return


def test_json_is_read_as_leniently_as_java_reads_it() -> None:
    command = decode_json(
        {
            "code": 11,
            "unknown": {"a": [1]},
            "extFields": {"n": 8, "b": True, "f": 1.5, "null": None, "o": {"k": 1}, "s": "x"},
        }
    )

    assert command.language == Language.JAVA
    assert (command.version, command.opaque, command.flag) == (0, 0, 0)
    assert command.ext == {"n": "8", "b": "true", "f": "1.5", "o": '{"k":1}', "s": "x"}
    assert decode_json({"code": 11, "extFields": None}).ext == {}
    assert decode_json({"code": 11, "language": "KLINGON"}).language == Language.OTHER
    assert decode_json({"code": 11, "language": 9}).language == Language.GO
    assert decode_json({"code": 11, "version": 9_999_999_999}).opaque == 0


def test_json_is_written_as_java_writes_it() -> None:
    command = RawCommand(code=11, opaque=5, flag=1, ext={"b": "2", "a": "1"}, remark="é\n")

    assert encode_frame(command)[8:].decode() == (
        '{"code":11,"extFields":{"b":"2","a":"1"},"flag":1,"language":"PYTHON","opaque":5,'
        '"remark":"é\\n","serializeTypeCurrentRPC":"JSON","version":401}'
    )


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"code":"x"}',
        b'{"code":99999999999}',
        b'{"code":11,"opaque":9999999999999999999999}',
        b'{"code":11,"extFields":[]}',
        b'{"code":11,"extFields":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
        b'{"code":11,"x":' + b"[" * 100_000,
    ],
)
def test_what_is_no_json_header(head: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_header(Serialization.JSON, head)


def test_binary_fields_that_occur_twice_count_once_and_empty_ones_not_at_all() -> None:
    ext = encode_binary_ext({"a": "1", "long": "2"}) + encode_binary_ext({"a": "3", "e": ""})

    command = decode_header(Serialization.ROCKETMQ, binary_head(ext, remark=b"r"))

    assert command.ext == {"a": "3", "long": "2"}
    assert (command.remark, command.opaque, command.version) == ("r", 7, 401)


def test_a_binary_field_without_name_and_value_is_read_wherever_it_stands() -> None:
    nothing, field = bytes(6), encode_binary_ext({"a": "1"})

    for ext in (nothing + field, field + nothing):
        assert decode_header(Serialization.ROCKETMQ, binary_head(ext)).ext == {"a": "1"}


def test_bytes_behind_the_binary_fields_are_ignored() -> None:
    ext = encode_binary_ext({"a": "1"})

    head = binary_head(ext + b"behind", ext_length=len(ext))

    assert decode_header(Serialization.ROCKETMQ, head).ext == {"a": "1"}


@pytest.mark.parametrize(
    "head",
    [
        binary_head()[:-1],
        binary_head(ext_length=1),
        binary_head(ext_length=-1),
        binary_head(b"\0"),
        binary_head(b"\0\1a\0\0\0\2x"),
        binary_head(b"\0\1a\xff\xff\xff\xff"),
        binary_head(b"\xff\xffab\0\0\0\0"),
        binary_head(b"\0\2ab\0\0"),
        struct.pack(">hBhiiii", 310, 0, 401, 7, 0, 2**31 - 1, 0),
        struct.pack(">hBhiiii", 310, 0, 401, 7, 0, -1, 0),
    ],
)
def test_what_is_no_binary_header(head: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_header(Serialization.ROCKETMQ, head)


def test_broken_utf8_in_binary_fields_is_replaced() -> None:
    command = decode_header(Serialization.ROCKETMQ, binary_head(b"\0\1a\0\0\0\1\xff"))

    assert command.ext == {"a": "�"}


@given(
    st.dictionaries(st.binary(min_size=1, max_size=9), st.binary(min_size=1, max_size=30)),
    st.binary(min_size=1, max_size=30),
)
def test_both_encodings_read_any_bytes_as_the_same_text(
    fields: dict[bytes, bytes], remark: bytes
) -> None:
    quote = {ord('"'): '\\"', ord("\\"): "\\\\"}
    quoted = {data: data.decode("latin-1").translate(quote).encode("latin-1") for data in
              (*fields, *fields.values(), remark)}  # fmt: skip
    members = b",".join(b'"%b":"%b"' % (quoted[k], quoted[v]) for k, v in fields.items())
    json_head = b'{"code":310,"extFields":{%b},"opaque":7,"remark":"%b","version":401}'
    ext = b"".join(
        struct.pack(">H", len(k)) + k + struct.pack(">i", len(v)) + v for k, v in fields.items()
    )

    one = decode_header(Serialization.JSON, json_head % (members, quoted[remark]))
    two = decode_header(Serialization.ROCKETMQ, binary_head(ext, remark=remark))

    assert (one.ext, one.remark) == (two.ext, two.remark)
    assert encode_frame(one)


def test_half_a_surrogate_pair_becomes_what_java_writes() -> None:
    head = b'{"code":310,"extFields":{"a":"x\\ud83dy","b":"\\ud83d\\ude00"}}'

    assert decode_header(Serialization.JSON, head).ext == {"a": "x?y", "b": "\U0001f600"}


def test_a_code_too_long_for_the_binary_form_travels_as_json() -> None:
    command = RawCommand(code=200050, serialization=Serialization.ROCKETMQ)

    data = encode_frame(command)

    assert data[4] == Serialization.JSON
    assert json.loads(data[8:])["code"] == 200050


def test_a_number_too_long_for_the_binary_form_is_a_bug_of_ours() -> None:
    with pytest.raises(LocalProtocolError):
        encode_frame(RawCommand(code=1, version=2**20, serialization=Serialization.ROCKETMQ))


@pytest.mark.parametrize("serialization", Serialization)
def test_a_large_header_may_not_consist_of_tiny_fields(serialization: Serialization) -> None:
    """Each field costs more time and memory than its few bytes."""
    tiny = {str(at): "" for at in range(200_000)}
    if serialization == Serialization.ROCKETMQ:
        head = binary_head(encode_binary_ext(tiny))
    else:
        head = json.dumps({"code": 1, "extFields": tiny}, separators=(",", ":")).encode()

    with pytest.raises(RemoteProtocolError, match="too many"):
        decode_header(serialization, head)


def test_a_large_binary_header_with_few_fields_is_read() -> None:
    ext = {"remark": "x" * 3_000_000} | {f"name{at}": f"value {at} of many" for at in range(1_000)}

    command = decode_header(Serialization.ROCKETMQ, binary_head(encode_binary_ext(ext)))

    assert command.ext == ext
