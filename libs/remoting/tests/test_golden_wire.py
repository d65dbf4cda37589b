# SPDX-License-Identifier: Apache-2.0
"""Every captured exchange decodes to typed values, which encode to an equivalent form."""

import json
from pathlib import Path
from typing import Any

import msgspec

from cometmq.remoting.bodies.dialect import parse_dialect
from cometmq.remoting.bodies.route import TopicRoute
from cometmq.remoting.command import Reply, Request
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.errors import CometError
from cometmq.remoting.frame import FrameReader
from cometmq.remoting.header import decode_header
from cometmq.remoting.message.new_message import encode_record
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.raw import RawCommand
from cometmq.remoting.typed_decode import HeaderFault, RequestDecoder, convert_ext
from cometmq.remoting.typed_encode import FrameEncoder
from cometmq.testing.remoting.cases import check_each
from cometmq.testing.remoting.frames import encode_frame
from cometmq.testing.remoting.golden import Exchange, GoldenFrame, load_exchanges

GOLDEN = Path(__file__).parents[3] / "tests" / "golden"
EXCHANGES = list(load_exchanges(GOLDEN))
FRAMES = {
    f"{exchange.name}:{side}": frame
    for exchange in EXCHANGES
    for side, frame in (("request", exchange.request), ("response", exchange.response))
    if frame is not None
}
KNOWN = {it.name: it for it in EXCHANGES if it.request.code in COMMANDS}
DEAD_CODES = {13, 22, 23, 27, 209, 210, 211, 212, 213, 214, 302, 999, 9999}
# Members that 5.x peers add and a 4.9.4 broker ignores.
NEWER_MEMBERS = {
    "attributes",
    "consumeMessageOrderly",
    "consumeTimeoutMinute",
    "groupRetryPolicy",
    "groupSysFlag",
    "mqPopTable",
    "userConsumerInfo",
}

DECODER = RequestDecoder(COMMANDS)
ENCODER = FrameEncoder()


def split(frame: GoldenFrame) -> tuple[int, bytes, bytes]:
    (only,) = FrameReader().feed(frame.data)
    return only


def raw(frame: GoldenFrame) -> RawCommand:
    serialization, head, body = split(frame)
    return decode_header(serialization, head, body)


def expected_ext(frame: GoldenFrame) -> dict[str, str]:
    """Return the ext fields without the empty fields of a binary header, which mean null."""
    if frame.data[4] == 0:
        return frame.ext
    return {name: value for name, value in frame.ext.items() if value}


def test_a_header_is_read_as_captured_and_written_to_the_same() -> None:
    check_each(check_header, FRAMES)


def check_header(frame: GoldenFrame) -> None:
    command = raw(frame)
    assert command.code == frame.code
    assert command.opaque == frame.header["opaque"]
    assert command.flag == frame.header["flag"]
    assert command.version == frame.header.get("version", 0)
    assert command.remark == frame.header.get("remark")
    assert command.ext == expected_ext(frame)
    serialization, head, body = split(GoldenFrame(encode_frame(command).hex(), {}))
    assert decode_header(serialization, head, body) == command


def is_plain_java(frame: GoldenFrame) -> bool:
    """Return whether an encoder must produce exactly these bytes.

    The order of several ext fields depends on Java's hash map, and an empty ext object is
    equivalent to none.
    """
    if frame.data[4] != 0 or not frame.data[8:].startswith(b'{"code":'):
        return False
    ext = frame.header.get("extFields")
    return b'"serializeTypeCurrentRPC"' in frame.data and (ext is None or len(ext) == 1)


PLAIN_JAVA = {name: frame for name, frame in FRAMES.items() if is_plain_java(frame)}


def test_a_plain_java_header_is_written_byte_for_byte() -> None:
    check_each(check_bytes, PLAIN_JAVA)


def check_bytes(frame: GoldenFrame) -> None:
    assert encode_frame(raw(frame)) == frame.data


def test_enough_frames_leave_no_choice_to_the_encoder() -> None:
    assert len(PLAIN_JAVA) > 200


def test_a_request_has_the_typed_header_of_the_catalogue() -> None:
    check_each(check_request, KNOWN)


def check_request(exchange: Exchange) -> None:
    serialization, head, _ = split(exchange.request)
    command = COMMANDS[exchange.request.code]
    try:
        call = DECODER.decode(serialization, head)
    except HeaderFault:
        assert exchange.response is not None
        assert exchange.response.code != 0, "we refuse what Java serves"
        return
    assert not isinstance(call, RawCommand)
    assert type(call.header) is command.header_type
    assert_says_the_same(call.header, expected_ext(exchange.request))
    out: list[Any] = []
    ENCODER.encode_request(
        out,
        serialization,
        call.opaque,
        Request(code=call.code, header=call.header, is_oneway=exchange.oneway),
    )
    (again,) = FrameReader().feed(b"".join(out))
    repeated = DECODER.decode(again[0], again[1])
    assert not isinstance(repeated, RawCommand)
    assert repeated.header == call.header
    assert repeated.is_oneway == exchange.oneway


def test_an_answer_has_the_typed_header_of_the_catalogue() -> None:
    check_each(check_answer, KNOWN)


def check_answer(exchange: Exchange) -> None:
    response = exchange.response
    if response is None or response.code != 0:
        return
    reply_type = COMMANDS[exchange.request.code].reply_type
    header = convert_ext(response.ext, reply_type)
    assert_says_the_same(header, expected_ext(response))
    out: list[Any] = []
    serialization = split(response)[0]
    opaque = response.header["opaque"]
    ENCODER.encode_reply(out, serialization, opaque, Reply(header=header))
    (again,) = FrameReader().feed(b"".join(out))
    command = decode_header(*again)
    assert (command.code, command.flag, command.opaque) == (0, 1, opaque)
    assert convert_ext(command.ext, reply_type) == header


def assert_says_the_same(header: msgspec.Struct, ext: dict[str, str]) -> None:
    """Assert that each field of the header has the captured value or is a default."""
    written = ENCODER.ext(header)
    for field in msgspec.structs.fields(type(header)):
        captured = ext.get(field.encode_name)
        if captured is not None:
            # The C++ client sends false as 0.
            same = {captured, "false"} if captured == "0" else {captured}
            assert written[field.encode_name] in same
        else:
            assert getattr(header, field.name) == field.default


def test_bodies_are_typed_and_mean_the_same_when_written_again() -> None:
    check_each(check_bodies, KNOWN)


def check_bodies(exchange: Exchange) -> None:
    command = COMMANDS[exchange.request.code]
    request_body = split(exchange.request)[2]
    if request_body and command.body is not None:
        refused = exchange.response is not None and exchange.response.code != 0
        check_body(command.body, request_body, may_be_broken=refused)
    response = exchange.response
    if response is None or response.code != 0:
        return
    response_body = split(response)[2]
    if response_body:
        assert command.reply_body is not None, "an answer with a body that is not in the table"
        check_body(command.reply_body, response_body, may_be_broken=False)


def check_body(codec: Any, data: bytes, *, may_be_broken: bool) -> None:
    try:
        value = codec.decode(data)
    except CometError:
        assert may_be_broken
        return
    if isinstance(value, list) and value and isinstance(value[0], MessageRecord):
        assert b"".join(map(encode_again, value)) == data
    elif codec.name.startswith("JSON"):
        check_json(codec, value, data)
    else:
        assert codec.encode(value) == data


def encode_again(record: MessageRecord) -> bytes:
    return encode_record(
        record.to_new_message(), record.queue_offset, record.physical_offset, record.store_timestamp
    )


def check_json(codec: Any, value: Any, data: bytes) -> None:
    written = codec.encode(value)
    assert codec.decode(written) == value
    if data[:1] != b"x":
        assert_covers(normal(parse_dialect(written)), normal(parse_dialect(data)), "$")


def normal(tree: Any) -> Any:
    """Return the tree with all keys as strings; key objects become sorted JSON."""
    if isinstance(tree, list):
        return [normal(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    return {normal_key(key): normal(value) for key, value in tree.items() if value is not None}


def normal_key(key: Any) -> str:
    if isinstance(key, dict):
        return json.dumps(normal(key), sort_keys=True)
    if key.startswith("{"):
        return json.dumps(json.loads(key), sort_keys=True)
    return str(key)


def assert_covers(written: Any, captured: Any, path: str) -> None:
    """Assert that CometMQ's encoding contains everything that Java wrote."""
    if isinstance(captured, dict):
        for key, value in captured.items():
            if key in NEWER_MEMBERS and key not in written:
                continue
            assert key in written, f"{path}.{key} is lost"
            assert_covers(written[key], value, f"{path}.{key}")
    elif isinstance(captured, list):
        assert len(written) == len(captured), path
        for index, value in enumerate(captured):
            assert_covers(written[index], value, f"{path}[{index}]")
    else:
        assert written == captured or str(written) == captured, path


def test_every_live_code_was_captured() -> None:
    captured = {exchange.request.code for exchange in EXCHANGES}
    assert captured - DEAD_CODES <= set(COMMANDS)
    assert len(EXCHANGES) > 700


def test_route_bodies_are_the_same_in_both_dialects() -> None:
    dialect = b'{"brokerDatas":[{"brokerAddrs":{0:"a",1:"b"},"brokerName":"n","cluster":"c"}]}'
    strict = b'{"brokerDatas":[{"brokerAddrs":{"0":"a","1":"b"},"brokerName":"n","cluster":"c"}]}'
    codec = COMMANDS[105].reply_body
    assert codec is not None
    route: TopicRoute = codec.decode(dialect)
    assert route == codec.decode(strict)
    assert route.broker_datas[0].broker_addrs == {0: "a", 1: "b"}
