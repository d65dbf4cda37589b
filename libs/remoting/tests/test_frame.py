# SPDX-License-Identifier: Apache-2.0
"""Frames are the same however the stream is split, and hostile lengths are rejected."""

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.frame import Frame, FrameReader, frame_prefix

PARTS = st.tuples(st.integers(0, 255), st.binary(max_size=40), st.binary(max_size=40))


def frame(serialization: int, head: bytes, body: bytes) -> bytes:
    return frame_prefix(serialization, len(head), len(body)) + head + body


def read_slowly(data: bytes, frame_bytes_max: int) -> list[Frame]:
    """Parse a whole stream with plain slices; raise where the fast reader must raise."""
    frames = []
    while len(data) >= 4:
        (length,) = struct.unpack(">I", data[:4])
        if length > frame_bytes_max or length < 4:
            raise RemoteProtocolError("length")
        if len(data) < 8:
            break
        header_length = int.from_bytes(data[5:8], "big")
        if header_length > length - 4:
            raise RemoteProtocolError("header length")
        if len(data) < 4 + length:
            break
        frames.append((data[4], data[8 : 8 + header_length], data[8 + header_length : 4 + length]))
        data = data[4 + length :]
    return frames


@given(st.lists(PARTS, max_size=6), st.lists(st.integers(1, 60), min_size=1), st.integers(0, 30))
def test_any_split_gives_the_same_frames(
    parts: list[Frame], sizes: list[int], cut_bytes: int
) -> None:
    data = b"".join(frame(*part) for part in parts)
    data = data[: max(0, len(data) - cut_bytes)]
    reader = FrameReader()
    frames: list[Frame] = []
    position = 0
    for turn in range(len(data) + 1):
        size = sizes[turn % len(sizes)]
        frames += reader.feed(data[position : position + size])
        position += size
        if position >= len(data):
            break

    assert frames == read_slowly(data, 10_000)
    whole = sum(8 + len(head) + len(body) for _, head, body in frames)
    assert reader.buffered_bytes == len(data) - whole


@given(st.binary(max_size=80), st.integers(1, 80))
def test_hostile_bytes_end_as_the_slow_reader_ends(data: bytes, size: int) -> None:
    reader = FrameReader(60)
    frames: list[Frame] = []
    try:
        for position in range(0, len(data), size):
            frames += reader.feed(data[position : position + size])
    except RemoteProtocolError:
        with pytest.raises(RemoteProtocolError):
            read_slowly(data, 60)
        return
    assert frames == read_slowly(data, 60)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">II", 61, 0),
        struct.pack(">I", 61),
        struct.pack(">I", 3),
        struct.pack(">I", 0),
        struct.pack(">II", 10, 7),
        struct.pack(">II", 0xFFFFFFFF, 0xFFFFFFFF),
    ],
)
def test_a_length_beyond_its_bounds_is_refused_at_once(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        FrameReader(60).feed(data)


@pytest.mark.parametrize("size", [4, 100])
def test_the_answer_of_an_http_server_is_named(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match="it answers in HTTP"):
        FrameReader().feed(b"HTTP/1.1 400 Bad Request"[:size])


def test_a_claimed_length_allocates_nothing() -> None:
    tracemalloc.start()
    try:
        readers = [FrameReader() for _ in range(10)]
        for reader in readers:
            assert reader.feed(struct.pack(">II", 16 * 1024 * 1024, 100) + b"x" * 100) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_a_long_frame_in_small_chunks_is_not_copied_for_each() -> None:
    body = bytes(4 * 1024 * 1024)
    data = frame(0, b"{}", body)
    reader = FrameReader()
    tracemalloc.start()
    try:
        frames = [
            f
            for start in range(0, len(data), 4096)
            for f in reader.feed(data[start : start + 4096])
        ]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert frames == [(0, b"{}", body)]
    assert peak < 5 * len(body)


def test_a_header_too_long_for_its_word_is_a_bug_of_ours() -> None:
    with pytest.raises(ValueError, match="16777216"):
        frame_prefix(0, 0x1000000, 0)


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=8))
def test_a_long_frame_is_joined_from_chunks_of_any_size(sizes: list[int]) -> None:
    body = bytes(range(256)) * 4_000
    data = frame(0, b"{}", body) + frame(1, b"", b"next")[:5]
    reader = FrameReader()
    frames: list[Frame] = []
    position = turn = 0
    while position < len(data):
        size = sizes[turn % len(sizes)] + 1_000
        frames += reader.feed(data[position : position + size])
        position, turn = position + size, turn + 1

    assert frames == [(0, b"{}", body)]
    assert reader.take_tail() == data[-5:]
    assert reader.buffered_bytes == 0


def test_a_cleared_reader_holds_nothing() -> None:
    reader = FrameReader()
    reader.feed(frame(0, b"{}", bytes(2_000_000))[:-1])
    assert reader.buffered_bytes > 2_000_000

    reader.clear()

    assert reader.buffered_bytes == 0
    assert reader.feed(frame(0, b"{}", b"x")) == [(0, b"{}", b"x")]
