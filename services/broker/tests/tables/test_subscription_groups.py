# SPDX-License-Identifier: Apache-2.0

import json
from pathlib import Path

import msgspec
import pytest

from cometmq.broker.tables.subscription_groups import Groups, group_file
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.names import BOOT_GROUPS
from cometmq.runtime.incremental import finish
from cometmq.testing.broker.saves import Saves


@pytest.fixture
def saves() -> Saves:
    return Saves()


@pytest.fixture
def groups(saves: Saves) -> Groups:
    return Groups(clock_ms=lambda: 1_700_000_000_000, changed=saves)


def test_the_groups_of_the_system_exist_from_the_start(groups: Groups) -> None:
    assert set(groups.table) == set(BOOT_GROUPS)
    assert groups.version.counter == 0


def test_an_unknown_group_is_created_only_where_that_is_allowed(
    groups: Groups, saves: Saves
) -> None:
    assert groups.find("G", auto_create=False) is None

    created = groups.find("G", auto_create=True)

    assert created is not None
    assert (created.retry_queue_nums, created.retry_max_times) == (1, 16)
    assert created.consume_enable
    assert created.consume_broadcast_enable
    assert groups.find("G", auto_create=False) is created
    assert (saves.count, groups.version.counter) == (1, 1)


def test_groups_of_the_system_are_created_even_if_others_are_not(groups: Groups) -> None:
    assert groups.find("CID_RMQ_SYS_TRANS", auto_create=False) is not None


def test_a_dangerous_name_is_never_created(groups: Groups) -> None:
    assert groups.find("../G", auto_create=True) is None
    assert "../G" not in groups.table


def test_each_change_is_a_new_version(groups: Groups, saves: Saves) -> None:
    groups.put(SubscriptionGroupConfig(group_name="G"))
    groups.put(SubscriptionGroupConfig(group_name="G", retry_max_times=3))
    assert groups.remove("G")
    assert not groups.remove("G")

    assert (saves.count, groups.version.counter) == (3, 3)


def test_disabling_a_group_twice_is_no_change(groups: Groups) -> None:
    groups.put(SubscriptionGroupConfig(group_name="G"))

    assert groups.disable("G")
    assert not groups.disable("G")
    assert not groups.disable("unknown")

    disabled = groups.get("G")
    assert disabled is not None
    assert not disabled.consume_enable


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    file = group_file(tmp_path / "subscriptionGroup.json")
    groups = Groups(file, clock_ms=lambda: 7)
    groups.put(SubscriptionGroupConfig(group_name="G", retry_max_times=3))
    file.write(finish(groups.encode_for_file()))
    assert not groups.is_dirty

    loaded = Groups(group_file(file.path), clock_ms=lambda: 8)

    assert loaded.get("G") == SubscriptionGroupConfig(group_name="G", retry_max_times=3)
    assert loaded.version == groups.version
    stored = json.loads(file.path.read_bytes())
    assert stored["dataVersion"] == {"counter": 1, "timestamp": 7}
    assert stored["subscriptionGroupTable"]["G"]["whichBrokerWhenConsumeSlowly"] == 1


def test_a_file_of_an_old_broker_gets_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "subscriptionGroup.json"
    path.write_text('{"subscriptionGroupTable":{"G":{"groupName":"G","retryQueueNums":2}}}')

    group = Groups(group_file(path), clock_ms=lambda: 8).get("G")

    assert group is not None
    assert group.retry_queue_nums == 2
    assert group.notify_consumer_ids_changed_enable


FROM_5 = {
    "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 9},
    "forbiddenTable": {"G": {"T": 4, "U": 2}},
    "ofTheFuture": [1, {}],
    "subscriptionGroupTable": {
        "G": {
            "groupName": "G",
            "attributes": {"+k": "v"},
            "consumeMessageOrderly": True,
            "consumeTimeoutMinute": 7,
            "groupRetryPolicy": {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"max": 5}},
            "groupSysFlag": 1,
            "invented": {"a": [None, 1.5]},
        },
        "H": {"groupName": "H", "invented": "b"},
    },
}


def loaded(path: Path) -> Groups:
    return Groups(group_file(path), clock_ms=lambda: 1)


def test_members_that_only_newer_brokers_know_are_kept_and_written_back(tmp_path: Path) -> None:
    path = tmp_path / "subscriptionGroup.json"
    path.write_text(json.dumps(FROM_5))
    first = loaded(path)
    journal = Groups(group_file(path), clock_ms=lambda: 1)
    first.noted = lambda: None
    first.put(SubscriptionGroupConfig(group_name="G", retry_max_times=3))
    first.put(SubscriptionGroupConfig(group_name="N"))
    for piece in first.noted_changes():
        journal.apply_changes(msgspec.Raw(piece))

    for groups in (first, journal):
        path.write_bytes(finish(groups.encode()))
        saved = json.loads(path.read_bytes())
        assert list(saved)[-1] == "subscriptionGroupTable", "as slaves expect it"
        table = saved.pop("subscriptionGroupTable")
        assert saved.keys() == FROM_5.keys() - {"subscriptionGroupTable"}
        assert saved["forbiddenTable"] == FROM_5["forbiddenTable"]
        assert saved["ofTheFuture"] == FROM_5["ofTheFuture"]
        before = FROM_5["subscriptionGroupTable"]
        assert isinstance(before, dict)
        assert table["G"] | before["G"] == table["G"]
        assert table["G"]["retryMaxTimes"] == 3
        assert table["H"]["invented"] == "b"
        assert "invented" not in table["N"]


def test_a_group_that_sets_a_member_of_rocketmq_5_replaces_it(groups: Groups) -> None:
    groups.put(SubscriptionGroupConfig(group_name="G", consume_message_orderly=True))
    groups.put(SubscriptionGroupConfig(group_name="G", consume_message_orderly=False))
    assert groups.table["G"].consume_message_orderly is False


def test_a_topic_that_rocketmq_5_forbids_is_forbidden(tmp_path: Path) -> None:
    path = tmp_path / "subscriptionGroup.json"
    path.write_text(json.dumps(FROM_5))
    groups = loaded(path)
    assert groups.is_forbidden("G", "T")
    assert not groups.is_forbidden("G", "U"), "another right"
    assert not groups.is_forbidden("H", "T")
    path.write_text('{"forbiddenTable": {"G": 7}, "subscriptionGroupTable": {}}')
    assert not loaded(path).is_forbidden("G", "T")
