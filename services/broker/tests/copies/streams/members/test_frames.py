# SPDX-License-Identifier: Apache-2.0
"""Frames of a group's stream, in pieces of any size, and frames that are refused."""

import itertools
import struct
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.copies.streams import frames
from cometmq.broker.copies.streams.frames import (
    BODY_BYTES_MAX,
    Confirm,
    Frame,
    FrameReader,
    Kind,
    Records,
    Report,
)
from cometmq.remoting.errors import RemoteProtocolError

OFFSETS = st.integers(0, 1 << 62)
EPOCHS = st.integers(0, 1 << 32)


@st.composite
def encoded(draw: st.DrawFn) -> tuple[bytes, Any]:
    """Draw a frame and the value that it carries."""
    kind = draw(st.sampled_from([Kind.RECORDS, Kind.CONFIRM, Kind.CHANGES, Kind.TABLES_END]))
    if kind is Kind.RECORDS:
        data = draw(st.binary(min_size=1, max_size=300))
        epoch, offset = draw(EPOCHS), draw(OFFSETS)
        header = frames.encode_records_header(epoch, offset, len(data))
        return header + data, Records(epoch, offset, data)
    if kind is Kind.CONFIRM:
        confirmed, more = draw(OFFSETS), draw(st.integers(0, 1 << 40))
        confirm = Confirm(draw(EPOCHS), confirmed, confirmed + more, draw(OFFSETS))
        return frames.encode(confirm), confirm
    number = draw(OFFSETS)
    if kind is Kind.TABLES_END:
        return frames.encode_tables_end(number), number
    return frames.encode_tables(kind, number, [("topics.json", b'{"a":1}')]), number


def decoded(frame: Frame) -> Any:
    if frame.kind is Kind.RECORDS:
        records = frames.decode_records(frame.body)
        return records._replace(data=bytes(records.data))
    if frame.kind is Kind.CONFIRM:
        return frames.decode(frame.body, Confirm)
    if frame.kind is Kind.TABLES_END:
        return frames.decode_tables_end(frame.body)
    changes = frames.decode_tables(frame.kind, frame.body)
    assert bytes(changes.tables["topics.json"]) == b'{"a":1}'
    return changes.number


def decoding(message: Any) -> Any:
    return partial(frames.decode, message=message)


@given(st.lists(encoded(), max_size=20), st.lists(st.integers(0, 1 << 20), max_size=30))
def test_frames_survive_any_split(sent: list[tuple[bytes, Any]], cuts: list[int]) -> None:
    data = b"".join(frame for frame, _ in sent)
    borders = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    reader = FrameReader(*Kind)
    found = [
        decoded(frame)
        for start, stop in itertools.pairwise(borders)
        for frame in reader.feed(data[start:stop])
    ]
    assert found == [value for _, value in sent]
    assert reader.held_bytes == 0


def test_the_opening_cannot_begin_a_stream_of_rocketmq() -> None:
    opening = frames.encode_opening()
    assert opening.hex() == "8b436f6d65740001"
    assert struct.unpack(">q", opening)[0] < 0
    assert frames.decode_opening(opening) == 1
    assert frames.decode_opening(frames.encode_opening(7)) == 7
    assert frames.decode_opening(bytes(8)) is None
    assert frames.decode_opening(b"\x8bcomet\0\1") is None


@pytest.mark.parametrize("kind", Kind)
def test_a_frame_above_its_bound_is_refused_by_its_header(kind: Kind) -> None:
    reader = FrameReader(*Kind)
    assert reader.feed(struct.pack(">BI", kind, BODY_BYTES_MAX[kind])) == []
    with pytest.raises(RemoteProtocolError, match=f"{kind.name} frame of .* at most"):
        FrameReader(*Kind).feed(struct.pack(">BI", kind, BODY_BYTES_MAX[kind] + 1))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (struct.pack(">BI", 0, 0), "no frame of kind 0"),
        (struct.pack(">BI", 200, 0), "no frame of kind 200"),
        (frames.encode(Report(1, 0, 0, 0)), "ACK frame is not allowed"),
    ],
)
def test_kinds_that_may_not_be_sent_are_refused(data: bytes, error: str) -> None:
    with pytest.raises(RemoteProtocolError, match=error):
        FrameReader(Kind.RECORDS, Kind.CONFIRM).feed(data)


@pytest.mark.parametrize(
    ("decode", "body", "error"),
    [
        (frames.decode_records, bytes(16), "without records"),
        (frames.decode_records, b"", "without records"),
        (decoding(Confirm), bytes(31), "31 bytes instead of 32"),
        (decoding(Confirm), struct.pack(">QQQQ", 1, 5, 4, 0), "behind the end"),
        (decoding(Report), bytes(33), "33 bytes instead of 32"),
        (decoding(Report), struct.pack(">QQqQ", 1, 5, -2, 0), "too few table changes"),
        (frames.decode_tables_end, b"", "0 bytes instead of 8"),
        (decoding(frames.WantedBlock), bytes(11), "11 bytes instead of 12"),
        (decoding(frames.WantedBlock), bytes(12), "empty or too large"),
        (frames.decode_block, bytes(7), "BLOCK frame of 7 bytes"),
    ],
)
def test_malformed_bodies_are_refused(decode: Any, body: bytes, error: str) -> None:
    with pytest.raises(RemoteProtocolError, match=error):
        decode(memoryview(body))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"1234567",
        bytes(8) + b"{",
        bytes(8) + b'{"\xff":1}',
        bytes(8) + b'{"a":' + b"[" * 10_000,
    ],
)
def test_malformed_tables_are_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="CHANGES frame"):
        frames.decode_tables(Kind.CHANGES, memoryview(body))


def test_bodies_that_do_not_fit_are_not_encoded() -> None:
    with pytest.raises(ValueError, match="REFUSED frame"):
        frames.encode_body(Kind.REFUSED, bytes(BODY_BYTES_MAX[Kind.REFUSED] + 1))


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_refused(data: bytes) -> None:
    reader = FrameReader(*Kind)
    try:
        reader.feed(data)
    except RemoteProtocolError:
        return
    assert reader.held_bytes <= len(data)
