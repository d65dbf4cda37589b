# SPDX-License-Identifier: Apache-2.0
"""The bytes of RocketMQ 4.9.4's stream, split into pieces of any size."""

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.copies.streams.rocketmq.frames import (
    BODY_BYTES_MAX,
    HEADER_BYTES,
    ReportReader,
    Transfer,
    TransferReader,
    encode_header,
    encode_report,
)
from cometmq.remoting.errors import RemoteProtocolError


@pytest.mark.parametrize(
    ("offset", "golden"),
    [(0, "0000000000000000"), (300, "000000000000012c"), (2610, "0000000000000a32")],
)
def test_reports_have_the_bytes_of_a_java_slave(offset: int, golden: str) -> None:
    assert encode_report(offset).hex() == golden
    assert ReportReader().feed(bytes.fromhex(golden)) == [offset]


@pytest.mark.parametrize(
    ("offset", "size", "golden"),
    [
        (0, 1389, "00000000000000000000056d"),
        (1389, 150, "000000000000056d00000096"),
        (2610, 0, "0000000000000a3200000000"),
    ],
)
def test_transfers_have_the_bytes_of_a_java_master(offset: int, size: int, golden: str) -> None:
    assert encode_header(offset, size).hex() == golden
    body = bytes(size)
    assert TransferReader().feed(bytes.fromhex(golden) + body) == [Transfer(offset, body)]


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    borders = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:stop] for start, stop in itertools.pairwise(borders)]


@given(
    st.lists(st.tuples(st.integers(0, 1 << 62), st.binary(max_size=300)), max_size=20),
    st.lists(st.integers(0, 1 << 20), max_size=30),
)
def test_transfers_survive_any_split(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(encode_header(offset, len(body)) + body for offset, body in frames)
    reader = TransferReader()
    found = [transfer for piece in pieces(data, cuts) for transfer in reader.feed(piece)]
    assert found == frames


@given(
    st.lists(st.integers(0, (1 << 63) - 1), max_size=20),
    st.lists(st.integers(0, 1 << 20), max_size=30),
)
def test_reports_survive_any_split(offsets: list[int], cuts: list[int]) -> None:
    data = b"".join(map(encode_report, offsets))
    reader = ReportReader()
    assert [one for piece in pieces(data, cuts) for one in reader.feed(piece)] == offsets


@pytest.mark.parametrize(
    ("offset", "size"), [(-1, 0), (0, -1), (0, BODY_BYTES_MAX + 1), (-(1 << 63), -(1 << 31))]
)
def test_a_bad_header_is_refused_before_its_body_comes(offset: int, size: int) -> None:
    reader = TransferReader()
    header = struct.pack(">qi", offset, size)
    assert reader.feed(header[:-1]) == []
    with pytest.raises(RemoteProtocolError, match=str(offset)):
        reader.feed(header[-1:])


def test_a_negative_report_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="-1"):
        ReportReader().feed(b"\xff" * 8)


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_hostile_bytes_end_in_transfers_or_an_error(parts: list[bytes]) -> None:
    reader, received, taken = TransferReader(), 0, 0
    try:
        for part in parts:
            received += len(part)
            taken += sum(HEADER_BYTES + len(found.data) for found in reader.feed(part))
    except RemoteProtocolError:
        return
    assert taken <= received
