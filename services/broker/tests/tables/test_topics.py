# SPDX-License-Identifier: Apache-2.0

import json
from pathlib import Path

import msgspec
import pytest

from cometmq.broker.settings import BrokerSettings
from cometmq.broker.tables.topics import READ_WRITE, Topics, topic_file
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.runtime.incremental import finish
from cometmq.testing.broker.saves import Saves

SETTINGS = BrokerSettings(broker_name="broker-a", broker_cluster_name="C")


@pytest.fixture
def saves() -> Saves:
    return Saves()


@pytest.fixture
def topics(saves: Saves) -> Topics:
    table = Topics(clock_ms=lambda: 1_700_000_000_000, changed=saves)
    table.boot(SETTINGS)
    return table


def config(topic: str, queues: int = 4, perm: int = READ_WRITE) -> TopicConfig:
    return TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm)


def ordered(topics: Topics) -> set[str]:
    return {name for name, entry in topics.table.items() if entry.order}


def test_the_topics_of_a_new_broker_are_rocketmqs(topics: Topics) -> None:
    found = {
        name: (entry.read_queue_nums, entry.write_queue_nums, entry.perm)
        for name, entry in topics.table.items()
    }

    assert found == {
        "SELF_TEST_TOPIC": (1, 1, 6),
        "TBW102": (8, 8, 7),
        "BenchmarkTest": (1024, 1024, 6),
        "C": (16, 16, 7),
        "broker-a": (1, 1, 7),
        "OFFSET_MOVED_EVENT": (1, 1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 18, 6),
        "C_REPLY_TOPIC": (1, 1, 6),
    }
    assert topics.version.counter == 0
    assert topics.is_dirty


def test_settings_decide_which_system_topics_exist() -> None:
    topics = Topics(clock_ms=lambda: 0)
    topics.boot(
        BrokerSettings(
            broker_name="b",
            broker_cluster_name="C",
            auto_create_topic_enable=False,
            cluster_topic_enable=False,
            trace_topic_enable=True,
            msg_trace_topic_name="Traces",
        )
    )

    assert "TBW102" not in topics.table
    assert topics.table["C"].perm == 1
    assert topics.table["Traces"].read_queue_nums == 1
    assert topics.is_reserved("Traces")


def test_names_of_the_system_and_of_this_broker_are_reserved(topics: Topics) -> None:
    for name in ("TBW102", "rmq_sys_x", "C", "broker-a", "C_REPLY_TOPIC"):
        assert topics.is_reserved(name)
    assert not topics.is_reserved("orders")


def test_the_first_send_creates_a_topic_after_its_template(topics: Topics, saves: Saves) -> None:
    created = topics.create_for_send("T", default_topic="TBW102", queue_nums=4)

    assert created is not None
    assert (created.read_queue_nums, created.write_queue_nums, created.perm) == (4, 4, 6)
    assert topics.create_for_send("T", default_topic="nothing", queue_nums=9) is created
    assert (saves.count, topics.version.counter) == (1, 1)


@pytest.mark.parametrize(("asked", "created"), [(16, 8), (8, 8), (0, 1), (-5, 1)])
def test_the_template_bounds_the_number_of_queues(topics: Topics, asked: int, created: int) -> None:
    topic = topics.create_for_send("T", default_topic="TBW102", queue_nums=asked)

    assert topic is not None
    assert topic.write_queue_nums == created


def test_no_topic_is_created_without_a_template_that_allows_it(topics: Topics) -> None:
    topics.put(config("plain"))

    assert topics.create_for_send("T", default_topic="plain", queue_nums=4) is None
    assert topics.create_for_send("T", default_topic="unknown", queue_nums=4) is None
    assert (
        topics.create_for_send("T", default_topic="TBW102", queue_nums=4, auto_create=False) is None
    )
    assert "T" not in topics.table


def test_other_templates_work_without_automatic_creation(topics: Topics) -> None:
    topics.put(config("template", perm=7))

    created = topics.create_for_send("T", default_topic="template", queue_nums=2, auto_create=False)

    assert created is not None
    assert created.perm == 6


def test_a_retry_topic_is_created_once(topics: Topics) -> None:
    first = topics.create("%RETRY%G", queue_nums=1, sys_flag=2)

    assert (first.read_queue_nums, first.perm, first.topic_sys_flag) == (1, 6, 2)
    assert topics.create("%RETRY%G", queue_nums=5) is first


def test_the_order_flag_follows_the_name_servers_only(topics: Topics, saves: Saves) -> None:
    topics.put(config("T"))
    topics.put(config("U"))
    topics.set_ordered({"T", "unknown"})
    version = topics.version

    topics.put(config("T", queues=8))
    assert ordered(topics) == {"T"}
    topics.set_ordered({"T"})
    topics.set_ordered({"U"})

    assert ordered(topics) == {"U"}
    assert topics.version.counter == version.counter + 2


def test_an_unchanged_list_of_ordered_topics_is_skipped(topics: Topics) -> None:
    topics.put(config("T"))
    topics.set_ordered({"T"})
    version = topics.version
    looks: list[None] = []

    class Names(set[str]):
        def __contains__(self, name: object) -> bool:
            looks.append(None)
            return super().__contains__(name)

    topics.set_ordered(Names({"T"}))
    assert not looks
    topics.put(config("U"))
    topics.set_ordered(Names({"T", "U"}))
    assert looks
    assert topics.table["U"].order
    assert topics.version.counter == version.counter + 2


def test_setting_a_topic_again_is_a_change_for_the_name_servers(
    topics: Topics, saves: Saves
) -> None:
    topics.put(config("T"))
    before = topics.version
    topics.put(config("T"))

    assert saves.count == 2
    assert set(topics.changes(before)) == {"T"}


def test_changes_since_a_version_are_exact(topics: Topics) -> None:
    assert topics.changes(None) == topics.table
    start = topics.version
    assert topics.changes(start) == {}

    topics.put(config("T"))
    middle = topics.version
    topics.put(config("U"))
    topics.put(config("V"))
    topics.remove("V")

    assert set(topics.changes(start)) == {"T", "U"}
    assert set(topics.changes(middle)) == {"U"}
    assert topics.changes(topics.version) == {}


def test_a_touch_invalidates_all_older_versions(topics: Topics) -> None:
    topics.put(config("T"))
    before = topics.version

    topics.touch()

    assert topics.changes(before) == topics.table
    assert topics.changes(topics.version) == {}


def test_saved_topics_are_loaded_with_their_version(tmp_path: Path) -> None:
    file = topic_file(tmp_path / "topics.json")
    topics = Topics(file, clock_ms=lambda: 7)
    topics.boot(SETTINGS)
    topics.put(config("T", queues=3))
    file.write(finish(topics.encode_for_file()))

    loaded = Topics(topic_file(file.path), clock_ms=lambda: 8)
    loaded.boot(SETTINGS)

    assert loaded.table == topics.table
    assert loaded.version == topics.version
    assert not loaded.is_dirty
    stored = json.loads(file.path.read_bytes())
    assert stored["topicConfigTable"]["T"] == {
        "order": False,
        "perm": 6,
        "readQueueNums": 3,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 0,
        "writeQueueNums": 3,
    }


def test_a_missing_system_topic_makes_a_new_version(tmp_path: Path) -> None:
    file = topic_file(tmp_path / "topics.json")
    topics = Topics(file, clock_ms=lambda: 7)
    topics.put(config("T"))
    file.write(finish(topics.encode_for_file()))

    loaded = Topics(topic_file(file.path), clock_ms=lambda: 8)
    loaded.boot(SETTINGS)

    assert "TBW102" in loaded.table
    assert loaded.version.counter == topics.version.counter + 1


def test_javas_dialect_is_read(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_text(
        '{\n\t"dataVersion":{\n\t\t"counter":3,\n\t\t"timestatmp":1\n\t},\n'
        '\t"topicConfigTable":{"T":{"perm":6,"readQueueNums":4,"topicName":"T",'
        '"writeQueueNums":4,"topicFilterType":"SINGLE_TAG"}}}'
    )

    topics = Topics(topic_file(path), clock_ms=lambda: 8)

    assert topics.table["T"] == config("T")
    assert topics.version.counter == 3


def test_topics_whose_configuration_was_lost_are_adopted(topics: Topics) -> None:
    topics.put(config("known", queues=2))

    topics.adopt({"lost": 3, "known": 8, "RMQ_SYS_TRANS_OP_HALF_TOPIC": 1, "../bad": 1})

    assert topics.table["lost"].read_queue_nums == 3
    assert topics.table["known"].read_queue_nums == 2
    assert "RMQ_SYS_TRANS_OP_HALF_TOPIC" not in topics.table
    assert "../bad" not in topics.table


def test_the_queues_of_all_topics_are_counted(topics: Topics) -> None:
    def expected() -> int:
        return sum(max(one.read_queue_nums, one.write_queue_nums) for one in topics.table.values())

    assert topics.queue_count == expected()
    topics.put(config("A", queues=5))
    topics.put(config("A", queues=3))
    topics.create_retry("G", queue_nums=2)
    topics.create_retry("G", queue_nums=6)
    assert topics.queue_count == expected()
    topics.remove("A")
    assert topics.queue_count == expected()
    finish(topics.becoming([{"B": config("B", queues=7)}], topics.version))
    assert topics.queue_count == 7
    topics.apply_changes(msgspec.Raw(b'{"dataVersion":{},"changed":{},"removed":["B"]}'))
    assert topics.queue_count == 0
