# SPDX-License-Identifier: Apache-2.0
"""`verify` reports bytes that changed on the disk without a write by the store."""

import pytest

from cometmq.store.inspection.dump import dump_log
from cometmq.store.inspection.verification import FindingKind, StoreState
from cometmq.store.inspection.verify import verify_store
from cometmq.testing.store.builders import SMALL, StoreRig, make_message


@pytest.fixture
def rig(disk):
    rig = StoreRig(disk)
    for number in range(60):
        rig.put(make_message(queue_id=number % 2, body=b"%d" % number, properties={"p": "x" * 30}))
    rig.work(3)
    return rig


def verify(disk):
    return verify_store("/store", disk=disk, settings=SMALL)


def change_property(disk, number):
    """Change a byte of a record's properties, which no CRC of RocketMQ covers; return the file."""
    record = list(dump_log("/store", disk=disk))[number]
    start = record.physical_offset - record.physical_offset % 4096
    path = f"/store/commitlog/{start:020d}"
    disk.contents[path][record.physical_offset - start + record.size - 5] ^= 1
    return path


@pytest.mark.parametrize("how", ["stopped", "killed", "running"])
def test_a_changed_property_is_damage_with_the_names_of_its_messages(disk, rig, how):
    if how == "stopped":
        rig.store.close()
    elif how == "killed":
        disk.crash()
    path = change_property(disk, 3)
    found = verify(disk)
    assert found.state is StoreState.DAMAGED
    (finding,) = found.findings
    assert (finding.kind, finding.place) == (FindingKind.CHECKSUM_WRONG, path)
    assert finding.text.startswith("4096 bytes from byte 0 (physical offset 0) differ")
    assert "messages: T/0: 0-15, T/1: 0-15" in finding.text
    assert finding.text.endswith("beside them: 0")  # a page is a file here


def test_damaged_checksums_are_no_damage(disk, rig):
    rig.store.close()
    for path in [path for path in disk.contents if path.startswith("/store/checksums/")]:
        disk.contents[path][5:] = b"\xff" * (len(disk.contents[path]) - 5)
    assert verify(disk).state is StoreState.HEALTHY


def test_what_a_broker_has_found_is_damage_even_without_its_checksum(disk, rig):
    change_property(disk, 3)
    rig.scrub(1)
    rig.store.close()
    disk.contents["/store/checksums/" + "0" * 20][:] = bytes(12)
    (finding,) = verify(disk).findings
    assert finding.kind is FindingKind.CHECKSUM_WRONG


def test_damage_behind_the_last_message_of_a_file_costs_no_message(disk, rig):
    rig.store.close()
    disk.contents["/store/commitlog/" + "0" * 20][4095] ^= 1
    (finding,) = verify(disk).findings
    assert finding.kind is FindingKind.CHECKSUM_WRONG


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_damage_comes_before_what_a_start_repairs(disk, rig, how):
    """A copy without its queues has a finding for each message, which a start repairs."""
    if how == "stopped":
        rig.store.close()
    else:
        disk.crash()
    change_property(disk, 3)
    disk.remove_tree("/store/consumequeue")
    found = verify(disk)
    assert found.state is StoreState.DAMAGED
    assert found.findings[0].kind is FindingKind.CHECKSUM_WRONG
    assert found.finding_count == sum(found.counts.values()) >= len(found.findings)
