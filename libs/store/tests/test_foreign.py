# SPDX-License-Identifier: Apache-2.0
"""Folders of RocketMQ 5 whose content is not read here are refused by name, and left unchanged."""

import pytest

from cometmq.store.errors import ForeignStore
from cometmq.store.inspection.inspect import inspect_store
from cometmq.store.inspection.verify import verify_store
from cometmq.store.message_store import MessageStore
from cometmq.store.os_disk import OsDisk
from cometmq.testing.store.builders import small_settings

MAPPING = '{"topicQueueMappingInfoMap":{"ST":{"hostedQueues":{0:[{"queueId":0}]}}}}'
BATCH = '{"topicConfigTable":{"BT":{"attributes":{"queue.type":"BatchCQ"}},"T":{}}}'
CONTENT = {
    "config/topics/CURRENT": ("MANIFEST-1", "rocksDBConfigToJson -p"),
    "config/consumerOffsets/CURRENT": ("MANIFEST-1", "consumerOffset.json"),
    "consumequeue/CURRENT": ("MANIFEST-1", "made again from the log"),
    "config/topicQueueMapping.json": (MAPPING, "static topics of RocketMQ 5 are not read: ST"),
    "config/topics.json": (BATCH, "(BatchCQ) of RocketMQ 5 are not read: BT;"),
    "batchconsumequeue/BT/0/00000000000000000000": ("", "not read: BT;"),
    "brokerIdentity": ("c#b#2", "a controller of RocketMQ 5"),
}
HARMLESS = {
    "epochFileCheckpoint": "1\n",  # of a member of our own broker groups
    "timerwheel": "",
    "timerlog/00000000000000000000": "",
    "rocksdbstore/CURRENT": "MANIFEST-1",
    "compaction/position-checkpoint": "",
    "abort.bak": "",
    "config/timercheck": "",
    "config/consumerOrderInfo.json": "{}",
    "config/topicQueueMapping.json": '{"topicQueueMappingInfoMap":{}}',
    "config/topics.json": '{"topicConfigTable":{"T":{"attributes":{"message.type":"FIFO"}}}}',
}


def fill(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def opened(root):
    settings = small_settings(store_path_root_dir=str(root))
    return MessageStore.open(settings, disk=OsDisk(), clock_ms=lambda: 1)


@pytest.mark.parametrize("name", CONTENT)
def test_content_that_is_not_read_is_refused_by_name(tmp_path, name):
    text, words = CONTENT[name]
    fill(tmp_path, {name: text})
    before = sorted(tmp_path.rglob("*"))
    for look in (
        opened,
        lambda root: inspect_store(str(root)),
        lambda root: verify_store(str(root)),
    ):
        with pytest.raises(ForeignStore) as caught:
            look(tmp_path)
        assert words in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_all_that_is_not_read_is_named_at_once(tmp_path):
    fill(tmp_path, {name: text for name, (text, _) in CONTENT.items()})
    with pytest.raises(ForeignStore) as caught:
        opened(tmp_path)
    assert all(words in str(caught.value) for _, words in CONTENT.values())


def test_other_files_of_rocketmq_5_are_left_alone(tmp_path):
    fill(tmp_path, HARMLESS)
    opened(tmp_path).close()
    assert inspect_store(str(tmp_path)).record_count == 0
    assert all((tmp_path / name).read_text() == text for name, text in HARMLESS.items())
