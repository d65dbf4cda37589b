# SPDX-License-Identifier: Apache-2.0
"""The fast paths of typed headers agree with the slow ones, for valid and hostile input."""

import json
import struct
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.remoting import Call, ConstantExt, Reply, Request, RequestCode, ResponseCode
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.commands.offsets import QueryConsumerOffset
from cometmq.remoting.commands.pull import PullMessageReply
from cometmq.remoting.commands.send import SendMessageReply, SendMessageV2
from cometmq.remoting.commands.table import NO_HEADER
from cometmq.remoting.errors import RemoteProtocolError, ServerError
from cometmq.remoting.frame import FrameReader
from cometmq.remoting.header import decode_header
from cometmq.remoting.raw import RawCommand
from cometmq.remoting.typed_decode import HeaderFault, RequestDecoder, convert_ext
from cometmq.remoting.typed_encode import FrameEncoder, field_text
from cometmq.remoting.types import Serialization

JSON, BINARY = Serialization.JSON, Serialization.ROCKETMQ
REGION = ConstantExt({"MSG_REGION": "Default%Region", "TRACE_ON": "true"})
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
SENDS = st.builds(
    SendMessageV2,
    producer_group=TEXT.filter(bool),
    topic=TEXT.filter(bool),
    default_topic=st.just("TBW102"),
    default_topic_queue_nums=st.just(4),
    queue_id=INT32,
    sys_flag=st.integers(0, 3),
    born_timestamp=INT64,
    flag=st.just(0),
    properties=TEXT.filter(bool),
    reconsume_times=st.just(0),
    unit_mode=st.booleans(),
    max_reconsume_times=st.none() | INT32,
    batch=st.booleans(),
)
SEND_REPLIES = st.builds(
    SendMessageReply,
    msg_id=TEXT | st.just("7F0000010000810B00000000000023A5"),
    queue_id=INT32,
    queue_offset=INT64,
    transaction_id=st.none() | TEXT,
)
PULL_REPLIES = st.builds(PullMessageReply, INT32, INT64, INT64, INT64)

DECODER = RequestDecoder(COMMANDS)
ENCODER = FrameEncoder()


def frame_of(parts: list[Any]) -> tuple[int, bytes, bytes]:
    (only,) = FrameReader().feed(b"".join(parts))
    return only


def encode_request(serialization: int, request: Request, opaque: int = 9) -> tuple[int, bytes]:
    out: list[Any] = []
    size = ENCODER.encode_request(out, serialization, opaque, request)
    assert size == sum(map(len, out))
    kind, head, _ = frame_of(out)
    return kind, head


def encode_reply(serialization: int, reply: Any, opaque: int = 9) -> RawCommand:
    out: list[Any] = []
    size = ENCODER.encode_reply(out, serialization, opaque, reply)
    assert size == sum(map(len, out))
    return decode_header(*frame_of(out))


@given(SENDS, st.sampled_from(Serialization))
def test_a_typed_request_comes_back(header: SendMessageV2, serialization: int) -> None:
    request = Request(RequestCode.SEND_MESSAGE_V2, header)
    serialization, head = encode_request(serialization, request)

    call = DECODER.decode(serialization, head)

    assert isinstance(call, Call)
    assert (call.code, call.opaque, call.flag, call.version) == (310, 9, 0, 401)
    assert call.header == header
    assert call.language.name == "PYTHON"


@given(SENDS)
def test_a_requests_template_gives_what_the_plain_way_gives(header: SendMessageV2) -> None:
    with_more = Request(RequestCode.SEND_MESSAGE_V2, header, ext={})  # no template fits these
    by_template = Request(RequestCode.SEND_MESSAGE_V2, header)
    assert encode_request(JSON, by_template) == encode_request(JSON, with_more)


@given(
    SEND_REPLIES | PULL_REPLIES,
    st.sampled_from(Serialization),
    st.sampled_from([None, REGION]),
    st.sampled_from(ResponseCode),
    st.none() | TEXT.filter(bool),
)
def test_templates_give_what_the_plain_way_gives(
    header: Any, serialization: int, ext: Any, code: ResponseCode, remark: str | None
) -> None:
    said = encode_reply(serialization, Reply(code, header, ext=ext, remark=remark))
    plain = encode_reply(serialization, Reply(code, header, ext=dict(ext or {}), remark=remark))

    wanted = {
        field.encode_name: str(getattr(header, field.name))
        for field in msgspec.structs.fields(header)
        if getattr(header, field.name) is not None
    } | (ext or {})
    if serialization == BINARY:
        wanted = {name: value for name, value in wanted.items() if value}
    assert said.ext == plain.ext == wanted
    assert (said.code, said.flag, said.opaque, said.remark) == (code, 1, 9, remark)
    assert (plain.code, plain.flag, plain.opaque, plain.remark) == (code, 1, 9, remark)


@pytest.mark.parametrize("code", [32_767, 32_768, -32_769, (1 << 31) - 1])
@pytest.mark.parametrize("header", [None, PullMessageReply(1, 2, 3, 4)])
@pytest.mark.parametrize("ext", [None, {"k" * 65_536: "v"}])
def test_a_forwarded_answer_that_does_not_fit_the_binary_form_is_json(
    code: int, header: Any, ext: Any
) -> None:
    said = encode_reply(BINARY, Reply(code, header, ext=ext, remark="mine"))
    fits = code == 32_767 and ext is None
    assert said.serialization == (BINARY if fits else JSON)
    assert (said.code, said.flag, said.opaque, said.remark) == (code, 1, 9, "mine")
    assert said.ext.items() >= (ext or {}).items()


@given(PULL_REPLIES, st.sampled_from(Serialization))
def test_a_reply_of_numbers_only(header: PullMessageReply, serialization: int) -> None:
    said = encode_reply(serialization, header)

    assert convert_ext(said.ext, PullMessageReply) == header


def test_a_template_keeps_the_order_of_java_and_its_bytes() -> None:
    out: list[Any] = []
    reply = Reply(header=SendMessageReply("7F", 1, 2), ext=REGION, body=[b"a", memoryview(b"bc")])
    ENCODER.encode_reply(out, JSON, 3, reply)

    assert out[0][8:].decode() == (
        '{"code":0,"extFields":{"msgId":"7F","queueId":"1","queueOffset":"2",'
        '"MSG_REGION":"Default%Region","TRACE_ON":"true"},"flag":1,"language":"PYTHON",'
        '"opaque":3,"serializeTypeCurrentRPC":"JSON","version":401}'
    )
    assert struct.unpack(">I", out[0][:4])[0] == len(out[0]) - 4 + 3
    assert out[1:] == [b"a", b"bc"]


def test_replies_without_header_and_with_an_empty_one() -> None:
    out: list[Any] = []
    ENCODER.encode_reply(out, JSON, 3, Reply())
    ENCODER.encode_reply(out, JSON, 3, NO_HEADER())

    assert b"extFields" not in out[0]
    assert b'"extFields":{}' in out[1]


class Odd(msgspec.Struct):
    """A header with fields that the templates do not support."""

    number: int | str
    flag: bool
    code: Annotated[int, msgspec.Meta(ge=0)]
    ratio: float = 0.5
    empty: str | None = None


@pytest.mark.parametrize("serialization", list(Serialization))
def test_headers_of_odd_types_take_the_plain_way(serialization: int) -> None:
    said = encode_reply(serialization, Odd("a", True, RequestCode.PULL_MESSAGE))

    assert said.ext == {"number": "a", "flag": "true", "code": "11", "ratio": "0.5"}


def test_a_header_value_that_no_ext_field_can_hold() -> None:
    with pytest.raises(Exception, match="no text"):
        field_text([1])


@pytest.mark.parametrize(
    ("ext", "field"),
    [
        ({"consumerGroup": "g", "topic": "t"}, "queueId"),
        ({"consumerGroup": "g", "topic": "t", "queueId": "x"}, "queueId"),
        ({"consumerGroup": "g", "topic": "t", "queueId": str(2**31)}, "queueId"),
        ({}, "consumerGroup"),
    ],
)
@pytest.mark.parametrize("serialization", list(Serialization))
def test_a_wrong_field_is_an_answer_that_names_it(
    serialization: int, ext: dict[str, str], field: str
) -> None:
    request = Request(RequestCode.QUERY_CONSUMER_OFFSET, ext=ext)
    serialization, head = encode_request(serialization, request, opaque=77)

    with pytest.raises(HeaderFault) as fault:
        DECODER.decode(serialization, head)

    assert isinstance(fault.value.error, ServerError)
    assert field in fault.value.error.remark
    assert (fault.value.call.opaque, fault.value.call.code) == (77, 14)


def test_texts_become_numbers_and_booleans_as_in_java() -> None:
    ext = {"a": "g", "b": "t", "c": "d", "d": "+4", "e": "-1", "f": "0", "g": "1", "h": "0"}

    header = convert_ext(ext | {"k": "TRUE", "m": "1"}, SendMessageV2)

    assert isinstance(header, SendMessageV2)
    assert (header.default_topic_queue_nums, header.queue_id) == (4, -1)
    assert (header.unit_mode, header.batch) == (True, False)


def test_json_with_numbers_nulls_and_another_order_goes_the_slow_way() -> None:
    header = {
        "language": "GO",
        "extFields": {"queueId": 3, "topic": "t", "consumerGroup": "g", "setZeroIfNotFound": None},
        "opaque": 4,
        "code": 14,
    }

    call = DECODER.decode(JSON, json.dumps(header).encode())

    assert isinstance(call, Call)
    assert call.header == QueryConsumerOffset("g", "t", 3)
    assert (call.opaque, call.language.name, call.is_oneway) == (4, "GO", False)


FIELDS = '"extFields":{"consumerGroup":"g","topic":"t","queueId":"3"}}'


def test_a_second_code_is_not_served_as_the_first() -> None:
    with pytest.raises(HeaderFault) as fault:
        DECODER.decode(JSON, f'{{"code":14,"opaque":1,"code":11,{FIELDS}'.encode())

    assert fault.value.call.code == 11


def test_a_reply_is_not_taken_for_a_request() -> None:
    decoded = DECODER.decode(JSON, f'{{"code":14,"opaque":1,"flag":1,{FIELDS}'.encode())

    assert isinstance(decoded, RawCommand)
    assert (decoded.is_reply, decoded.opaque) == (True, 1)


def test_an_unknown_code_has_no_header() -> None:
    call = DECODER.decode(JSON, b'{"code":999,"opaque":5}')

    assert isinstance(call, Call)
    assert (call.header, call.opaque) == (None, 5)


@given(st.binary(max_size=100), st.integers(0, 2))
def test_hostile_headers_raise_the_documented_errors_only(head: bytes, kind: int) -> None:
    head = b'{"code":310,"' + head if kind == 2 else head
    try:
        DECODER.decode(kind % 2, head)
    except (RemoteProtocolError, HeaderFault):
        return


@given(st.lists(SENDS, min_size=1, max_size=6), st.data())
def test_the_memo_answers_as_the_full_parse(headers: list[SendMessageV2], data: Any) -> None:
    decoder = RequestDecoder(COMMANDS)
    for header in headers:
        _, head = encode_request(BINARY, Request(RequestCode.SEND_MESSAGE_V2, header))
        for _ in range(2):
            call = decoder.decode(BINARY, head)
            assert isinstance(call, Call)
            assert call.header == header
        position = data.draw(st.integers(0, len(head) - 1))
        byte = data.draw(st.integers(0, 255))
        broken = head[:position] + bytes([byte]) + head[position + 1 :]
        assert outcome(decoder, broken) == outcome(RequestDecoder(COMMANDS), broken)


def outcome(decoder: RequestDecoder, head: bytes) -> Any:
    try:
        decoded = decoder.decode(BINARY, head)
    except (RemoteProtocolError, HeaderFault) as error:
        return type(error), str(error)
    return decoded.header if isinstance(decoded, Call) else decoded
