# SPDX-License-Identifier: Apache-2.0
"""Differential tests: a decoder with a memo decodes exactly like one without."""

import json
from collections import Counter
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from cometmq.remoting import Call, RequestCode
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.header import encode_binary_ext
from cometmq.remoting.send_memo import SendMemo
from cometmq.remoting.typed_decode import HeaderFault, RequestDecoder
from cometmq.remoting.types import Serialization

JSON, BINARY = int(Serialization.JSON), int(Serialization.ROCKETMQ)
Ext = dict[str, str]
PLAIN: Ext = {"a": "g", "b": "T", "c": "D", "d": "4", "e": "0", "f": "0", "g": "1700000000000"}
PLAIN |= {"h": "0"}


def ext(properties: str, **more: str) -> Ext:
    return PLAIN | {"i": properties} | more | {"k": "false", "m": "false"}


def head(serialization: int, fields: Ext) -> bytes:
    if serialization == JSON:
        header = {"code": RequestCode.SEND_MESSAGE_V2, "extFields": fields, "opaque": 1}
        return json.dumps(header, separators=(",", ":")).encode()
    entries = encode_binary_ext(fields)
    fixed = (310).to_bytes(2, "big") + b"\0" + (401).to_bytes(2, "big") + bytes(12)
    return fixed + len(entries).to_bytes(4, "big") + entries


def decode(decoder: RequestDecoder, serialization: int, data: bytes) -> Any:
    """Return the typed header, or the text of the error."""
    try:
        call = decoder.decode(serialization, data)
    except HeaderFault as fault:
        return str(fault)
    assert isinstance(call, Call)
    return call.header


def decode_alone(serialization: int, data: bytes) -> Any:
    return decode(RequestDecoder(COMMANDS), serialization, data)


ENTRY_BYTES = len(encode_binary_ext({"j": "0"}))
LENGTHS = [1, 1 + ENTRY_BYTES, 1 + 2 * ENTRY_BYTES, 1 + 3 * ENTRY_BYTES]
"""Property lengths that differ by whole fields, so that headers with and without a field can have
the same size."""


@st.composite
def sends(draw: st.DrawFn) -> Ext:
    """Generate headers of a few sizes, with several layouts of each size."""
    more = draw(st.sampled_from([{}, {"j": "0"}, {"j": "0", "l": "1"}, {"l": "1"}]))
    fields = ext(draw(st.sampled_from("pqä")) * draw(st.sampled_from(LENGTHS)), **more)
    fields["e"] = draw(st.sampled_from(["0", "3", "07", "12", "-1", "x", "999999999"]))
    fields["g"] = draw(st.sampled_from(["1700000000000", "1700000000001", "17", "9" * 18]))
    fields["b"] = draw(st.sampled_from(["T", "U", "T" * (1 + ENTRY_BYTES)]))
    if draw(st.booleans()):
        moved = draw(st.sampled_from("egij"))
        fields |= {moved: fields.pop(moved, "0")}  # to the end of the header
    return fields


SWALLOWED = [ext("p" * 28), ext("p" * 20), ext("p" * 20, j="0")]
"""The memo once read the third header with the layout of the first: the properties swallowed a
field.
"""


def test_what_is_remembered_is_what_a_full_parse_gives() -> None:
    counts: Counter[str] = Counter()

    @example(SWALLOWED)
    @given(st.lists(sends(), min_size=10, max_size=40))
    def check(headers: list[Ext]) -> None:
        memo = SendMemo()
        for fields in headers * 3:
            entries = encode_binary_ext(fields)
            found = memo.find(entries, 0)
            counts["asked"] += 1
            counts["found"] += found is not None
            full = decode_alone(BINARY, head(BINARY, fields))
            assert found is None or found == full
            if isinstance(full, SendMessageV2):
                memo.learn(entries, 0, full)

    check()

    assert counts["found"] > counts["asked"] // 5


@example([(BINARY, fields) for fields in SWALLOWED])
@given(
    st.lists(st.tuples(st.sampled_from([JSON, BINARY]), sends()), min_size=1, max_size=40),
)
def test_a_decoder_of_all_connections_answers_as_one_for_each_header(
    headers: list[tuple[int, Ext]],
) -> None:
    shared = RequestDecoder(COMMANDS)
    for serialization, fields in headers:
        data = head(serialization, fields)
        assert decode(shared, serialization, data) == decode_alone(serialization, data)


@given(sends())
def test_both_serializations_say_the_same(fields: Ext) -> None:
    assert decode_alone(JSON, head(JSON, fields)) == decode_alone(BINARY, head(BINARY, fields))
