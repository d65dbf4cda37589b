# SPDX-License-Identifier: Apache-2.0
"""Reads at offsets of the log that a client chose: cheap, unless a record begins there."""

import struct

import pytest

from cometmq.remoting.message.new_message import encode_record, record_size
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.message.record_layout import FIXED_V4
from cometmq.store.reads import Lookup
from cometmq.testing.store.builders import StoreRig, make_message, small_settings
from cometmq.testing.store.memory_disk import MemoryDisk

FILE_BYTES = 1 << 20
CLAIMED = 450_000
"""A size that a body claims: larger than any message, but within the file."""
FIRST_READ = 1_024


@pytest.fixture
def rig() -> StoreRig:
    settings = small_settings(mapped_file_size_commit_log=FILE_BYTES, max_message_size=300_000)
    return StoreRig(MemoryDisk(), settings)


def fill(rig: StoreRig) -> None:
    """Make the log so long that it has all the bytes that a body claims."""
    for _ in range(2):
        rig.put(make_message(body=bytes(250_000)))


def cost(lookup: Lookup[object]) -> tuple[object, int]:
    """Return the result of a search, and the number of bytes that it read."""
    total = 0
    try:
        read = next(lookup)
        while True:
            total += read.size
            read = lookup.send(read.load())
    except StopIteration as end:
        return end.value, total


def test_an_offset_inside_a_body_costs_one_small_read(rig: StoreRig) -> None:
    rig.put(make_message(body=struct.pack(">i", CLAIMED) * 20))
    fill(rig)
    begin = rig.entry("T", 0, 0).physical_offset
    for offset in range(begin + 1, begin + FIXED_V4.size + 80):
        for lookup in (rig.store.reader.read_record, rig.store.reader.record_bytes):
            found, read_bytes = cost(lookup(offset))
            assert found is None
            assert read_bytes <= FIRST_READ


@pytest.mark.parametrize("topic", ["T", "missing"])
def test_a_size_that_no_message_may_have_is_read_only_if_a_queue_has_it(
    rig: StoreRig, topic: str
) -> None:
    """A client that guesses the log offset of its body can send the first bytes of a record in it,
    and what should follow them in a later message.
    """
    rest = bytes((len(topic),)) + topic.encode() + struct.pack(">h", 0)
    fillers = [make_message(body=bytes(250_000)) for _ in range(2)]
    forged = bytearray(encode_record(make_message(topic), 0, 0, 1))
    size = record_size(make_message(body=bytes(forged)))
    size += sum(map(record_size, fillers)) + len(rest)
    inner = rig.store.commit_log.end + FIXED_V4.size
    forged[:4] = struct.pack(">i", size)
    forged[28:36] = struct.pack(">q", inner)
    forged[FIXED_V4.size - 4 : FIXED_V4.size] = struct.pack(">i", size - FIXED_V4.size - len(rest))
    for message in (make_message(body=bytes(forged)), *fillers, make_message(body=rest)):
        rig.put(message)
    fill(rig)
    log = rig.store.commit_log.view()
    assert log.read(inner + size - len(rest), len(rest), may_block=True) == rest
    found, read_bytes = cost(rig.store.reader.record_bytes(inner))
    assert found is None
    assert FIRST_READ < read_bytes < 50_000


def test_a_message_larger_than_the_present_limit_is_found(rig: StoreRig) -> None:
    body = bytes(range(256)) * 1_000
    rig.put(make_message(body=body))
    fill(rig)
    rig.store.apply(small_settings(mapped_file_size_commit_log=FILE_BYTES, max_message_size=1_000))
    found, _ = cost(rig.store.reader.read_record(rig.entry("T", 0, 0).physical_offset))
    assert isinstance(found, MessageRecord)
    assert found.body == body
