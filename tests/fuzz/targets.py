# SPDX-License-Identifier: Apache-2.0
"""The decoders: each target takes bytes and may reject them only with documented errors.

A target raises only RemoteProtocolError (the peer is wrong), CorruptRecord (the bytes are not a
message), or CommandError (the request is answered with a code). Any other exception is a finding.
"""

import contextlib
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from tests.fuzz.streams import FILE_TARGETS, corpus

from cometmq.broker.filters.records import sql_record_filter
from cometmq.broker.filters.sql import SqlError, compile_sql
from cometmq.remoting.bodies.codec import REGISTER
from cometmq.remoting.bodies.dialect import decode_json, encode_json, parse_dialect
from cometmq.remoting.bodies.topic_config import encode_register_body
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.errors import (
    CommandError,
    CorruptRecord,
    RemoteProtocolError,
    SubscriptionParseFailed,
)
from cometmq.remoting.frame import FrameReader
from cometmq.remoting.header import decode_header
from cometmq.remoting.message.batch import join_batch, split_batch
from cometmq.remoting.message.compression import decompress
from cometmq.remoting.message.flags import CompressionType, index_hash, java_hash
from cometmq.remoting.message.new_message import encode_record, record_size
from cometmq.remoting.message.properties import (
    index_keys,
    parse_properties,
    property_value,
    render_properties,
    without_property,
)
from cometmq.remoting.message.record import ScanStatus, decode_record, scan_record
from cometmq.remoting.raw import RawCommand
from cometmq.remoting.typed_decode import HeaderFault, RequestDecoder, convert_ext
from cometmq.remoting.typed_encode import FrameEncoder
from cometmq.runtime import properties as java_properties
from cometmq.testing.remoting.golden import load_exchanges

ALLOWED: Final = (RemoteProtocolError, CorruptRecord, CommandError)
_DECOMPRESSED_BYTES_MAX: Final = 1 << 20
_SEED_BYTES_MAX: Final = 6 * 1024
_DECODER: Final = RequestDecoder(COMMANDS)
_ENCODER: Final = FrameEncoder()
_RECORD_FILTER: Final = sql_record_filter(compile_sql("a > 5 OR TAGS = 'TagA' OR KEYS IS NULL"))
_EXPRESSIONS: Final = (
    "a > 5 AND b <= -3.5E2 OR NOT (c = 'it''s') AND d <> TRUE\x007",
    "a BETWEEN 1 AND 5 AND b NOT BETWEEN .5 AND c OR d IS NOT NULL\x00 2.5",
    "a IN ('x', 'y') OR b NOT IN ('z') OR (a = 1) = (b = 2)\x00x",
    "a CONTAINS 'x' AND b NOT STARTSWITH 'y' AND c endswith '' -- z\n /* */ OR - - 5L < a\x00NaN",
)

Target = Callable[[bytes], None]


def frames(data: bytes) -> None:
    """Split a stream of frames; decode headers and bodies as server and client do."""
    reader = FrameReader(frame_bytes_max=1 << 20)
    cut = data[0] % len(data) if data else 0
    for part in (data[:cut], data[cut:]):
        for serialization, head, body in reader.feed(part):
            _request(serialization, head, body)


def _request(serialization: int, head: bytes, body: bytes) -> None:
    try:
        call = _DECODER.decode(serialization, head)
    except HeaderFault as fault:
        call = fault.call
    command = COMMANDS.get(call.code)
    if isinstance(call, RawCommand) or command is None:
        return
    if call.header is not None:
        _ENCODER.ext(call.header)
    if command.body is not None:
        command.body.decode(body)


def json_header(data: bytes) -> None:
    _header(0, data)


def binary_header(data: bytes) -> None:
    _header(1, data)


def _header(serialization: int, data: bytes) -> None:
    with contextlib.suppress(HeaderFault):  # answered with a code
        _DECODER.decode(serialization, data)
    raw = decode_header(serialization, data)
    for code in (10, 11, 103):
        try:
            convert_ext(raw.ext, COMMANDS[code].reply_type)
        except CommandError:
            continue


def record(data: bytes) -> None:
    """Decode a stored record; its size must equal the scanned size, and re-encoding must work."""
    scan = scan_record(data, check_crc=True)
    try:
        found = decode_record(data, check_crc=True)
    except CorruptRecord:
        assert scan.status is not ScanStatus.RECORD, "scan accepts what decode refuses"
        raise
    assert scan.size == found.size, "scan and decode disagree"
    assert found.size <= len(data), "a record reaches beyond its buffer"
    _ = (found.tags, found.keys, found.unique_key, found.offset_message_id)
    again = found.to_new_message()
    encoded = encode_record(again, found.queue_offset, found.physical_offset, 0)
    assert len(encoded) == record_size(again), "record_size is wrong"
    found.decompressed_body(bytes_max=_DECOMPRESSED_BYTES_MAX)


def batch(data: bytes) -> None:
    """Split a batch body, join the messages and split again; the messages must not change."""
    items = split_batch(data)
    assert len(split_batch(join_batch(items))) == len(items), "a batch changes its length"


def compressed_body(data: bytes) -> None:
    """Decompress a body; its first byte chooses the compression."""
    kinds = (CompressionType.ZLIB, CompressionType.LZ4, CompressionType.ZSTD)
    plain = decompress(data[1:], kinds[data[0] % 3 if data else 0], bytes_max=1 << 20)
    assert len(plain) <= _DECOMPRESSED_BYTES_MAX, "the bound does not hold"


def property_text(data: bytes) -> None:
    text = str(data, "utf-8", "replace")
    properties = parse_properties(text)
    assert parse_properties(render_properties(properties)) == properties
    for key, value in properties.items():
        assert property_value(text, key) == value, "two readers disagree"
        assert key not in parse_properties(without_property(text, key))
        java_hash(value)
        assert index_hash(key, value) >= 0
    index_keys(properties.get("UNIQ_KEY"), properties.get("KEYS"))


def json_body(data: bytes) -> None:
    """Decode a JSON body; its first byte chooses the type."""
    codec = _JSON_BODIES[data[0] % len(_JSON_BODIES) if data else 0]
    value = codec.decode(data[1:])
    again = codec.decode(encode_json(value))
    # JSON has no infinity: it is encoded as null, as in Java.
    assert again == value or "inf" in repr(value), "a body changes its meaning"


def dialect(data: bytes) -> None:
    """Decode a body in Java's dialect, without a type."""
    parse_dialect(data)


def register_body(data: bytes) -> None:
    """Decode a broker's registration in either form; other input is compressed first."""
    if data[:1] not in (b"x", b"{"):
        data = zlib.compress(data, 1)
    body = REGISTER.decode(data)
    again = REGISTER.decode(encode_register_body(body, compressed=True))
    assert len(again.topic_config_serialize_wrapper.topic_config_table) <= len(
        body.topic_config_serialize_wrapper.topic_config_table
    )


def config_table(data: bytes) -> None:
    """Decode a configuration table of a broker's store, such as `topics.json`."""
    kinds: tuple[type[msgspec.Struct], ...] = tuple(codec.type for codec in _TABLES)
    decode_json(kinds[data[0] % len(kinds) if data else 0], data[1:])


def settings_file(data: bytes) -> None:
    """Parse a `.properties` file; ValueError must name the broken line."""
    try:
        values = java_properties.parse(str(data, "utf-8", "replace"))
    except ValueError as exc:
        raise RemoteProtocolError(str(exc)) from exc
    assert java_properties.parse(java_properties.render(values)) == values


def _json_codecs() -> list[Any]:
    codecs = [
        codec
        for command in COMMANDS.values()
        for codec in (command.body, command.reply_body)
        if codec is not None and codec.name.startswith("JSON `") and codec.type is not None
    ]
    by_name = {codec.name: codec for codec in codecs if "or its" not in codec.name}
    return [by_name[name] for name in sorted(by_name)]


_JSON_BODIES: Final = _json_codecs()
_TABLES: Final = [
    codec for code in (21, 201, 43, 45) if (codec := COMMANDS[code].reply_body) is not None
]


def sql_expression(data: bytes) -> None:
    """Compile an SQL filter; if it is accepted, it must not raise for any message."""
    text, _, value = data.decode(errors="replace").partition("\x00")
    try:
        sql = compile_sql(text)
    except SqlError as exc:
        raise SubscriptionParseFailed(str(exc)) from exc
    sql.matches(dict.fromkeys(sql.names, value))
    sql.matches({})


def filtered_record(data: bytes) -> None:
    _RECORD_FILTER.matches(data)


TARGETS: Final[Mapping[str, Target]] = {
    target.__name__: target
    for target in (
        frames,
        json_header,
        binary_header,
        record,
        batch,
        compressed_body,
        property_text,
        json_body,
        dialect,
        register_body,
        config_table,
        settings_file,
        sql_expression,
        filtered_record,
    )
} | FILE_TARGETS


def seeds(golden: Path) -> Mapping[str, list[bytes]]:
    found: dict[str, list[bytes]] = {name: [] for name in TARGETS} | corpus()
    for exchange in load_exchanges(golden):
        for side in (exchange.request, exchange.response):
            if side is not None and len(side.data) <= _SEED_BYTES_MAX:
                _seed_frame(found, side.data, COMMANDS.get(exchange.request.code))
    _seed_files(found)
    return found


def _seed_frame(found: dict[str, list[bytes]], data: bytes, command: Any) -> None:
    ((serialization, head, body),) = FrameReader().feed(data)
    found["frames"].append(data)
    found["binary_header" if serialization else "json_header"].append(head)
    if not body or command is None:
        return
    if body[:4] == b"\xda\xa3\x20\xa7" or body[4:8] == b"\xda\xa3\x20\xa7":
        found["record"].append(body)
        found["filtered_record"].append(body)
        found["property_text"].append(decode_record(body).properties_text.encode())
    elif command.code == 320:
        found["batch"].append(body)
    elif command.code == 103:
        found["register_body"].append(body)
        if body[:1] == b"x":
            found["register_body"].extend([zlib.decompress(body)] * 3)
    elif body[:1] == b"{":
        found["dialect"].append(body)
        found["json_body"].extend(_with_type(_JSON_BODIES, command, body))
        found["config_table"].extend(_with_type(_TABLES, command, body))
    elif b"=" in body:
        found["settings_file"].append(body[:2000])


def _with_type(codecs: list[Any], command: Any, body: bytes) -> list[bytes]:
    return [
        bytes([index]) + body
        for index, codec in enumerate(codecs)
        if codec in (command.body, command.reply_body)
    ]


def _seed_files(found: dict[str, list[bytes]]) -> None:
    for index, text in enumerate(
        (
            "785e4b4c240e000036eb0f29",
            "04224d186070730b0000001f6101000f50616161616100000000",
            "28b52ffd005844000010616101001f8005010000",
        )
    ):
        found["compressed_body"].append(bytes([index]) + bytes.fromhex(text))
    found["sql_expression"].extend(text.encode() for text in _EXPRESSIONS)
    found["settings_file"].append(b"# broker\nbrokerName=a\\u0041\\\n  b\nlistenPort = 10911\n")
    assert all(found.values()), [name for name, inputs in found.items() if not inputs]


def main(arguments: list[str]) -> int:
    name, path = arguments
    try:
        TARGETS[name](Path(path).read_bytes())
    except ALLOWED as exc:
        sys.stdout.write(f"refused as documented: {exc!r}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
