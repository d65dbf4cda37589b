# SPDX-License-Identifier: Apache-2.0
"""`verify` names each file of a table that cannot be read."""

import json

import pytest

from cometmq.store.inspection.verification import FindingKind, StoreState
from cometmq.store.inspection.verify import verify_store
from cometmq.testing.remoting.hostile_json import hostile
from cometmq.testing.store.builders import StoreRig, make_message, small_settings

CONFIG = "/store/config"
SHAPE = small_settings(max_hash_slot_num=16, max_index_num=64)
DEEP = b'{"a":' * 100_000
TABLES = {
    "topics.json": {"topicConfigTable": {"T": {"topicName": "T"}}},
    "subscriptionGroup.json": {"subscriptionGroupTable": {"G": {"groupName": "G"}}},
    "consumerOffset.json": {"offsetTable": {"T@G": {"0": 5}}},
    "delayOffset.json": {"offsetTable": {"1": 5}},
    "consumerFilter.json": {"filterDataByTopic": {"T": {"topic": "T"}}},
}


@pytest.fixture
def store(disk):
    rig = StoreRig(disk, SHAPE)
    rig.put(make_message("T", 0, b"x"))
    for name, table in TABLES.items():
        for file in (name, f"{name}.bak"):
            write(disk, file, json.dumps(table).encode())
    return rig


@pytest.fixture
def stopped(store):
    store.store.close()


def write(disk, name, data):
    disk.contents[f"{CONFIG}/{name}"] = bytearray(data)


def verify(disk):
    return verify_store("/store", disk=disk, settings=SHAPE)


@pytest.mark.usefixtures("stopped")
@pytest.mark.parametrize("name", TABLES)
def test_a_table_without_a_readable_copy_is_damage(disk, name):
    assert verify(disk).state is StoreState.HEALTHY
    for file in (name, f"{name}.bak"):
        write(disk, file, DEEP)
    found = verify(disk)
    assert found.state is StoreState.DAMAGED
    assert [(it.kind, it.place) for it in found.findings] == [
        (FindingKind.TABLE_DAMAGED, f"{CONFIG}/{name}"),
        (FindingKind.TABLE_DAMAGED, f"{CONFIG}/{name}.bak"),
    ]
    (text,) = {it.text for it in found.findings}
    assert text == (
        "a JSON text is nested too deeply; no copy can be read, so a broker does not start: restore"
        " the file, or remove it and its .bak"
    )


@pytest.mark.usefixtures("stopped")
@pytest.mark.parametrize("suffix", ["", ".bak"])
def test_a_start_repairs_a_table_with_a_readable_copy(disk, suffix):
    write(disk, f"topics.json{suffix}", b'{"topicConfigTable":')
    found = verify(disk)
    assert found.state is StoreState.NEEDS_RECOVERY
    (finding,) = found.findings
    assert finding.place == f"{CONFIG}/topics.json{suffix}"
    assert finding.text.endswith("; a broker reads the other copy, and writes both again")


@pytest.mark.usefixtures("store")
def test_a_store_in_use_has_its_tables_checked(disk):
    assert verify(disk).state is StoreState.IN_USE
    for file in ("topics.json", "topics.json.bak"):
        write(disk, file, DEEP)
    assert verify(disk).state is StoreState.DAMAGED


@pytest.mark.usefixtures("stopped")
@pytest.mark.parametrize("name", TABLES)
def test_missing_and_blank_tables_are_no_damage(disk, name):
    write(disk, name, b" \n")
    del disk.contents[f"{CONFIG}/{name}.bak"]
    assert verify(disk).state is StoreState.HEALTHY


@pytest.mark.usefixtures("stopped")
@pytest.mark.parametrize("name", TABLES)
def test_every_fault_is_one_line(disk, name):
    for case, data in hostile(TABLES[name]):
        write(disk, name, data)
        for finding in verify(disk).findings:
            assert finding.text.count("\n") == 0, case
            assert len(finding.text) < 500, case
