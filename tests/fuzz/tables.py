# SPDX-License-Identifier: Apache-2.0
"""The journal of a broker's tables, read at a start after a kill.

What precedes the damage is kept, an event names the damage, and changes after the start are kept
over a second kill.
"""

import zlib
from collections.abc import Iterator
from struct import Struct
from typing import Final

import msgspec

from cometmq.remoting.errors import RemoteProtocolError
from cometmq.store.journal import Kind
from cometmq.testing.broker.journals import FILE_BYTES, FOLDER, MemoryFiles, Node
from cometmq.testing.store.memory_disk import MemoryDisk

_HEAD: Final = Struct(">IIB")
_PLACE: Final = Struct(">QIB")
_OFFSETS: Final = "consumerOffset.json"
_DAMAGE: Final = frozenset({"journal.damaged", "journal.torn"})
_FIRST: Final = f"{FOLDER}/{0:020d}"


def journal_file(data: bytes) -> None:
    """Start with a journal file of these bytes."""
    kept = list(_records(data))
    node = _start(data)
    end = sum(_HEAD.size + len(payload) for _, payload in kept)
    told = {event.name for event in node.log.events} & _DAMAGE
    is_damaged = not kept or any(data[end:])
    assert bool(told) == is_damaged, f"{told}, and {len(data) - end} bytes after the records"
    _check_offsets(node, kept)
    _check_offsets(node, kept)
    if not kept:
        raise RemoteProtocolError("no record can be read")


def journal_record(data: bytes) -> None:
    """Start with a journal whose last record has this kind and this content, and a checksum."""
    last = Node(MemoryDisk(), MemoryFiles())
    last.offsets.commit("group", "topic", 0, 1)
    last.journal.write()
    before = list(_records(bytes(last.disk.contents[_FIRST])))
    node = _start(_encoded([*before, (data[0] if data else 0, data[1:])]))
    if any(event.name in _DAMAGE for event in node.log.events):
        _check_offsets(node, before)
        raise RemoteProtocolError("the record is damaged")


def _start(data: bytes) -> Node:
    disk = MemoryDisk()
    disk.make_folder(FOLDER)
    disk.contents[_FIRST] = bytearray(data[:FILE_BYTES].ljust(FILE_BYTES, b"\0"))
    node = Node(disk, MemoryFiles(), was_killed=True, keeps_position=True)
    node.offsets.commit("new-group", "new-topic", 0, 7)
    node.journal.write()
    before = node.state()
    again = node.killed(was_killed=True, keeps_position=True)
    assert again.state() == before, "the second start has lost changes"
    return node


def _records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield kind and payload of the whole records before the first damage."""
    place = 0
    while place + _HEAD.size <= len(data):
        length, check, kind = _HEAD.unpack_from(data, place)
        payload = data[place + _HEAD.size : place + _HEAD.size + length]
        whole = zlib.crc32(payload, zlib.crc32(_PLACE.pack(place, len(payload), kind)))
        if len(payload) < length or check != whole:
            return
        yield kind, payload
        place += _HEAD.size + length


def _encoded(records: list[tuple[int, bytes]]) -> bytes:
    data = b""
    for kind, payload in records:
        check = zlib.crc32(payload, zlib.crc32(_PLACE.pack(len(data), len(payload), kind)))
        data += _HEAD.pack(len(payload), check, kind) + payload
    return data


def _check_offsets(node: Node, records: list[tuple[int, bytes]]) -> None:
    """Check that the offsets have the last value of each queue in these records."""
    wanted: dict[str, dict[str, int]] = {}
    for kind, payload in records:
        if kind == Kind.CHANGES:
            for key, queues in msgspec.json.decode(payload[8:]).get(_OFFSETS, {}).items():
                wanted.setdefault(key, {}).update(queues)
    found = {
        key: {str(queue): offset for queue, offset in node.offsets.table[key].items()}
        for key in wanted
    }
    assert found == wanted, "the start has lost acknowledged offsets"


TABLE_TARGETS: Final = {target.__name__: target for target in (journal_file, journal_record)}
