# SPDX-License-Identifier: Apache-2.0
"""Byte identity with files written by Java 4.9.4; docs/protocol/store.md describes each part."""

import tarfile
from pathlib import Path

from cometmq.remoting.message.ids import pack_host
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.message.properties import index_keys, parse_properties
from cometmq.remoting.message.record import decode_record
from cometmq.store.os_disk import OsDisk
from cometmq.store.queues.queue_files import ENTRY, FILLER
from cometmq.store.recovery.checkpoint import Checkpoint
from cometmq.testing.store.builders import SteppingClock, StoreRig, make_message, small_settings
from cometmq.testing.store.memory_disk import MemoryDisk

GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "store"
STORED_MS = 0x1A1F7B9E170

G1 = """
00000095 daa320a7 77d18982 00000000 00000007 0000000000000000 0000000000000000 00000000
0000018bcfe56800 0a0000020000c350 000001a1f7b9e170 0a00000100002a9f 00000000 0000000000000000
00000005 48656c6c6f 01 54 0034
4b455953016b31206b32 02 554e49515f4b4559 01 374630303030303130303031 02 57414954 01 74727565
02 54414753 01 54616741
"""
G2 = """
0000006a daa320a7 77065916 00000000 00000007 0000000000000001 0000000000000095 00000010
0000018bcfe56800 fe800000000000000000000000000001 0000c350 000001a1f7b9e1a5 0a00000100002a9f
00000000 0000000000000000 00000002 7636 01 54 0000
"""


def golden_message(body, properties, born_host=None):
    pairs = parse_properties(properties)
    return NewMessage(
        "T",
        0,
        7,
        0,
        1_700_000_000_000,
        born_host or pack_host(bytes((10, 0, 0, 2)), 50000),
        pack_host(bytes((10, 0, 0, 1)), 10911),
        body,
        properties,
        tag_code=2598919 if pairs.get("TAGS") == "TagA" else 0,
        keys=index_keys(pairs.get("UNIQ_KEY"), pairs.get("KEYS")),
    )


def test_records_entries_index_and_checkpoint_are_javas(disk):
    clock = SteppingClock(STORED_MS)
    settings = small_settings(max_hash_slot_num=8, max_index_num=16)
    rig = StoreRig(disk, settings, clock)
    first = "KEYS\x01k1 k2\x02UNIQ_KEY\x017F0000010001\x02WAIT\x01true\x02TAGS\x01TagA"
    result = rig.put(golden_message(b"Hello", first))
    assert result.message_id == "0A00000100002A9F0000000000000000"
    clock.now_ms = 0x1A1F7B9E1A5
    link_local = bytes.fromhex("fe80" + "00" * 13 + "01")
    rig.put(golden_message(b"v6", "", pack_host(link_local, 50000)))
    rig.store.close()

    log = disk.contents["/store/commitlog/" + "0" * 20]
    assert log[:149] == bytes.fromhex(G1)
    assert log[149:255] == bytes.fromhex(G2)
    queue = disk.contents["/store/consumequeue/T/0/" + "0" * 20]
    assert queue[:20] == bytes.fromhex("0000000000000000 00000095 000000000027a807")
    (name,) = disk.names("/store/index")
    index = disk.contents[f"/store/index/{name}"]
    assert len(index) == 392
    entries = index[40 + 4 * 8 :]
    assert entries[:20] == bytes(20)
    assert entries[20:40] == bytes.fromhex("6b12a980 0000000000000000 00000000 00000000")
    assert entries[40:60] == bytes.fromhex("0026bfb5 0000000000000000 00000000 00000000")
    assert index[8 * 0 : 8] == STORED_MS.to_bytes(8, "big")
    checkpoint = disk.contents["/store/checkpoint"]
    stamp = clock.now_ms.to_bytes(8, "big")
    assert checkpoint == (stamp + stamp + STORED_MS.to_bytes(8, "big")).ljust(4096, b"\0")


def test_a_batch_is_stored_as_javas(disk):
    clock = SteppingClock(0x1A1F7B9E1AB)
    rig = StoreRig(disk, small_settings(), clock)
    rig.put(make_message(body=bytes(409 - 92)))  # places the next record at 409
    message = golden_message(b"b2", "WAIT\x01true\x02CLUSTER\x01c0\x02WAIT\x01true")
    message.flag = 3
    message.born_timestamp += 1
    for _ in range(2):
        rig.queue("T", 0).stage(0, 91, 0, 0)
        rig.queue("T", 0).publish()
    assert rig.put(message).physical_offset == 409
    stored = rig.store.reader.get_messages("T", 0, 3, 1).records[0]
    assert bytes(stored) == bytes.fromhex(
        "0000007c daa320a7 5ec54a5a 00000000 00000003 0000000000000003 0000000000000199 00000000"
        "0000018bcfe56801 0a0000020000c350 000001a1f7b9e1ab 0a00000100002a9f 00000000"
        "0000000000000000 00000002 6232 01 54 001e 574149540174727565 02 434c5553544552016330"
        "02 574149540174727565"
    )


def test_a_file_that_a_record_does_not_fit_is_closed_as_javas(disk):
    rig = StoreRig(disk, small_settings(mapped_file_size_commit_log=1024))
    while rig.store.commit_log.end < 1024:
        rig.put(make_message(body=bytes(114)))
    data = disk.contents["/store/commitlog/" + "0" * 20]
    size = 206
    end = 1024 // size * size
    assert data[end:] == (1024 - end).to_bytes(4, "big") + bytes.fromhex("cbd43194") + bytes(
        1024 - end - 8
    )
    second = disk.contents["/store/commitlog/00000000000000001024"]
    assert decode_record(bytes(second)).physical_offset == 0x400


def test_checkpoint_and_filler_bytes():
    stamp = 0x1A1F7BA0012
    encoded = Checkpoint(stamp, stamp, 0).encode()
    assert encoded == bytes.fromhex("000001a1f7ba0012" * 2).ljust(4096, b"\0")
    assert Checkpoint.decode(encoded) == Checkpoint(stamp, stamp, 0)
    assert bytes.fromhex("0000000000000000 7fffffff 0000000000000000") == FILLER
    assert ENTRY.size == 20


def test_a_queue_that_begins_late_is_filled_as_javas(tmp_path):
    """The log's head is lost and the queue begins at 16: the file that begins at byte 200
    starts with six fillers.
    """
    disk = MemoryDisk()
    rig = StoreRig(disk, small_settings(mapped_file_size_commit_log=1024))
    for _ in range(30):
        rig.put(make_message(body=bytes(114 - 30)))
    entry = rig.entry("T", 0, 16)
    rig.store.close()
    disk.remove_tree("/store/consumequeue")
    disk.remove("/store/progress")
    for name in disk.names("/store/commitlog"):
        if int(name) + 1024 <= entry.physical_offset:
            disk.remove(f"/store/commitlog/{name}")
    rig = StoreRig(disk, small_settings(mapped_file_size_commit_log=1024))
    first = rig.store.reader.min_offset("T", 0)
    rig.work(3)
    start = first * 20 // 200 * 200
    data = disk.contents[f"/store/consumequeue/T/0/{start:020d}"]
    fillers = first - start // 20
    assert fillers > 0
    assert data[: fillers * 20] == FILLER * fillers
    assert ENTRY.unpack_from(data, fillers * 20)[1] > 0


def test_queues_and_index_built_from_a_java_log_are_javas(tmp_path):
    """Only the names of the index files differ, because they are creation times."""
    with tarfile.open(GOLDEN / "clean" / "store.tar.gz") as archive:
        archive.extractall(tmp_path / "java", filter="data")
        archive.extractall(tmp_path / "ours", filter="data")
    java, ours = tmp_path / "java" / "store", tmp_path / "ours" / "store"
    for path in sorted(ours.rglob("*"), reverse=True):
        keep = path.is_relative_to(ours / "commitlog") or path.is_relative_to(ours / "config")
        if path.is_file() and not keep:
            path.unlink()
        elif path.is_dir() and not keep:
            path.rmdir()
    settings = small_settings(
        store_path_root_dir=str(ours),
        mapped_file_size_commit_log=65536,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=100,
        max_index_num=400,
    )
    StoreRig(OsDisk(), settings).store.close()

    def queue_files(root):
        folder = root / "consumequeue"
        files = (path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    def index_files(root):
        return [path.read_bytes() for path in sorted((root / "index").iterdir())]

    assert queue_files(ours) == queue_files(java)
    assert index_files(ours) == index_files(java)
    assert (ours / "checkpoint").stat().st_size == 4096
