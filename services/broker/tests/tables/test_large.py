# SPDX-License-Identifier: Apache-2.0

import pytest

from cometmq.broker.tables.offsets import OffsetFile
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.large import PART_ENTRIES, PART_WEIGHT, encode_with_table
from cometmq.remoting.bodies.topic_config import DataVersion, TopicConfig, TopicConfigTable
from cometmq.runtime.incremental import finish


@pytest.mark.parametrize("count", [0, 1, PART_ENTRIES, PART_ENTRIES + 1, 3 * PART_ENTRIES])
def test_the_bytes_equal_those_of_one_encoding(count: int) -> None:
    offsets = {f"t{number}@g": {0: number, 1: -1} for number in range(count)}
    whole = OffsetFile(offset_table=offsets)
    assert finish(encode_with_table(OffsetFile(), offsets, len)) == encode_json(whole)


def test_members_beside_the_table_stay_in_their_place() -> None:
    topics = {name: TopicConfig(topic_name=name, attributes={}) for name in ("a", "{}")}
    whole = TopicConfigTable(DataVersion(3, 4), topics)
    around = TopicConfigTable(DataVersion(3, 4))
    assert finish(encode_with_table(around, topics)) == encode_json(whole)


def test_heavy_entries_get_steps_of_their_own() -> None:
    queues = dict.fromkeys(range(PART_WEIGHT), 0)
    table = {"a@g": queues, "b@g": queues, "c@g": {0: 1}}
    assert len(list(encode_with_table(OffsetFile(), table, len))) == 2


def test_entries_added_and_removed_between_steps() -> None:
    table = {f"t{number}@g": {0: 1} for number in range(PART_ENTRIES + 2)}
    parts = encode_with_table(OffsetFile(), table, len)
    next(parts)
    del table[f"t{PART_ENTRIES}@g"]
    table["new@g"] = {0: 1}
    assert finish(parts).endswith(b',"t%d@g":{"0":1}}}' % (PART_ENTRIES + 1))
