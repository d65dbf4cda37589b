# SPDX-License-Identifier: Apache-2.0
import tarfile
from pathlib import Path

import pytest

from cometmq.store.inspection.dump import dump_log, dump_queue
from cometmq.store.inspection.inspect import JournalSummary, inspect_store
from cometmq.store.inspection.verification import FindingKind, StoreState
from cometmq.store.inspection.verify import verify_store
from cometmq.store.journal import FILE_BYTES, Kind, encode_changes, encode_marks
from cometmq.store.json_config import content_digest
from cometmq.store.redo_log import RedoLog
from cometmq.testing.store.builders import StoreRig, make_message, small_settings
from cometmq.testing.store.memory_disk import MemoryDisk

GOLDEN = Path(__file__).parents[4] / "tests" / "golden" / "store"
LOG = "/store/commitlog/"
SHAPE = small_settings(max_hash_slot_num=16, max_index_num=64)


@pytest.fixture
def disk():
    disk = MemoryDisk()
    rig = StoreRig(disk)
    for number in range(100):
        rig.put(make_message("T", number % 2, b"%d" % number, keys=f"k{number}", tags="A"))
    rig.store.close()
    return disk


def verify(disk):
    return verify_store("/store", disk=disk, settings=SHAPE)


def kinds(disk):
    return {finding.kind for finding in verify(disk).findings}


def test_a_good_store_verifies_and_nothing_changes(disk):
    before = {path: bytes(data) for path, data in disk.contents.items()}
    found = verify(disk)
    assert found.findings == []
    assert found.is_good
    assert (found.record_count, found.queue_entry_count, found.index_entry_count) == (100,) * 3
    assert found.was_clean
    assert {path: bytes(data) for path, data in disk.contents.items()} == before


def test_inspect_says_what_a_store_holds(disk):
    found = inspect_store("/store", disk=disk, settings=SHAPE)
    assert found.was_clean
    assert found.record_count == 100
    assert found.commit_log_file_size == 4096
    assert [(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in found.queues] == [
        ("T", 0, 0, 50),
        ("T", 1, 0, 50),
    ]
    assert found.progress
    assert found.progress.offset == found.max_offset
    assert sum(file.entry_count for file in found.index_files) == 100
    assert found.damages == []


JOURNAL = "/store/config/journal"


def write_journal(disk, *, offsets):
    """Write consumerOffset.json with this content, and a journal with its mark and ten entries."""
    name = "consumerOffset.json"
    disk.contents[f"/store/config/{name}"] = bytearray(offsets)
    log = RedoLog(disk, JOURNAL, file_bytes=FILE_BYTES)
    marks = {name: {content_digest(offsets): 4}, "topics.json": {"of another content": 4}}
    log.begin_file(Kind.MARKS, encode_marks(0, {}))
    for number in range(1, 11):
        if number == 5:
            log.append(Kind.MARKS, encode_marks(4, marks))
        changes = [(name, b'{"T@g":{"0":%d}}' % number)]
        log.append(
            Kind.CHANGES, encode_changes(number, changes + [("topics.json", b"{}")] * (number > 7))
        )


def test_inspect_says_what_the_journal_of_the_tables_holds(disk):
    write_journal(disk, offsets=b"{}")
    found = inspect_store("/store", disk=disk, settings=SHAPE)
    assert found.journal == [
        JournalSummary("consumerOffset.json", 10, 10, is_applied=True),
        JournalSummary("topics.json", 3, 10, is_applied=False),
    ]
    assert (found.journal_number, found.journal_damage) == (10, "")
    assert verify(disk).journal_entry_count == 10
    assert verify(disk).state is StoreState.HEALTHY


def test_damage_in_the_journal_is_found_and_no_reason_not_to_start(disk):
    write_journal(disk, offsets=b"{}")
    path = f"{JOURNAL}/{0:020d}"
    place = disk.contents[path].index(b'{"T@g":{"0":5}}')
    disk.contents[path][place] ^= 1
    found = verify(disk)
    assert [finding.kind for finding in found.findings] == [FindingKind.JOURNAL_DAMAGED]
    assert path in found.findings[0].text
    assert (found.state, found.journal_entry_count) == (StoreState.NEEDS_RECOVERY, 4)
    assert path in inspect_store("/store", disk=disk, settings=SHAPE).journal_damage


def test_an_entry_of_the_journal_that_is_nested_too_deeply_is_damage(disk):
    write_journal(disk, offsets=b"{}")
    log = RedoLog(disk, JOURNAL, file_bytes=FILE_BYTES)
    for _ in log.records():
        pass
    log.append(Kind.CHANGES, encode_changes(11, [("topics.json", b'{"a":' * 10_000)]))
    found = verify(disk)
    assert [finding.kind for finding in found.findings] == [FindingKind.JOURNAL_DAMAGED]
    assert (found.state, found.journal_entry_count) == (StoreState.NEEDS_RECOVERY, 10)


def test_a_torn_entry_at_the_end_of_the_journal_is_no_finding(disk):
    write_journal(disk, offsets=b"{}")
    data = disk.contents[f"{JOURNAL}/{0:020d}"]
    data[len(data.rstrip(b"\0")) - 5 :] = bytes(len(data) - len(data.rstrip(b"\0")) + 5)
    found = verify(disk)
    assert (found.findings, found.journal_entry_count) == ([], 9)


def test_dumps_yield_records_of_the_log_and_of_a_queue(disk):
    assert [r.body for r in dump_log("/store", disk=disk)] == [b"%d" % n for n in range(100)]
    assert [r.body for r in dump_queue("/store", "T", 1, 48, disk=disk)] == [b"97", b"99"]
    assert list(dump_queue("/store", "Nobody", 0, disk=disk)) == []


def test_damage_in_the_log_is_found_with_its_place(disk):
    body_at = list(dump_log("/store", disk=disk))[5].physical_offset + 88
    disk.contents[LOG + "0" * 20][body_at] ^= 0xFF
    found = inspect_store("/store", disk=disk, settings=SHAPE)
    (damage,) = found.damages
    assert damage.path == LOG + "0" * 20
    assert damage.physical_offset < body_at < damage.next_offset
    assert found.record_count == 99
    assert FindingKind.LOG_DAMAGED in kinds(disk)


def test_a_wrong_queue_entry_is_found(disk):
    disk.contents["/store/consumequeue/T/0/" + "0" * 20][39] ^= 1
    assert kinds(disk) == {FindingKind.QUEUE_ENTRY_WRONG}


def test_missing_queue_files_are_found(disk):
    disk.remove_tree("/store/consumequeue/T/1")
    found = verify(disk)
    assert {finding.kind for finding in found.findings} == {FindingKind.QUEUE_ENTRY_MISSING}
    assert found.finding_count == 50


def test_entries_without_a_record_are_found(disk):
    last = disk.names("/store/commitlog")[-1]
    disk.remove(LOG + last)
    assert FindingKind.QUEUE_ENTRY_WITHOUT_RECORD in kinds(disk)


@pytest.mark.parametrize(
    ("position", "kind"),
    [
        (40 + 4 * 16 + 20 * 3 + 3, FindingKind.INDEX_ENTRY_WRONG),  # hash
        (40 + 4 * 16 + 20 * 3 + 11, FindingKind.INDEX_ENTRY_WRONG),  # offset
        (40 + 4 * 16 + 20 * 3 + 19, FindingKind.INDEX_CHAIN_BROKEN),  # number of the previous entry
        (40 + 3, FindingKind.INDEX_CHAIN_BROKEN),  # slot
    ],
)
def test_damage_in_the_index_is_found(disk, position, kind):
    name = disk.names("/store/index")[0]
    disk.contents[f"/store/index/{name}"][position] ^= 1
    assert kind in kinds(disk)


def test_a_missing_index_file_is_found(disk):
    disk.remove("/store/index/" + disk.names("/store/index")[-1])
    assert kinds(disk) == {FindingKind.INDEX_KEYS_MISSING}


def test_findings_are_counted_but_not_kept_without_bound(disk, monkeypatch):
    monkeypatch.setattr("cometmq.store.inspection.verification.FINDINGS_PER_KIND_MAX", 10)
    disk.remove_tree("/store/consumequeue")
    found = verify(disk)
    assert (len(found.findings), found.finding_count) == (10, 100)


def test_a_missing_file_in_the_middle_of_the_log_is_damage(disk):
    disk.remove(LOG + disk.names("/store/commitlog")[1])
    found = verify(disk)
    assert found.state is StoreState.DAMAGED
    (fault,) = [it for it in found.findings if it.kind is FindingKind.FILE_DAMAGED]
    assert "does not follow" in fault.text


def test_progress_is_told(disk):
    heard = []
    verify_store(
        "/store", disk=disk, settings=SHAPE, on_progress=lambda done, total: heard.append(total)
    )
    assert heard


@pytest.mark.parametrize("name", ["clean", "killed", "trimmed"])
def test_java_stores_verify(name, tmp_path):
    with tarfile.open(GOLDEN / name / "store.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    shape = small_settings(max_hash_slot_num=100, max_index_num=400)
    found = verify_store(str(tmp_path / "store"), settings=shape)
    assert found.record_count > 0
    assert found.was_clean == (name != "killed")
    allowed = {FindingKind.QUEUE_ENTRY_MISSING, FindingKind.INDEX_KEYS_MISSING}
    assert {finding.kind for finding in found.findings} <= (allowed if name == "killed" else set())
