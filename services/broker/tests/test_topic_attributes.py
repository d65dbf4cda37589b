# SPDX-License-Identifier: Apache-2.0
"""Attributes of topics change, or are refused, as by a broker of RocketMQ 5.5.0."""

import pytest

from cometmq.broker.topic_attributes import changed, parse_changes
from cometmq.remoting.errors import CommandError

TYPES = "UNSPECIFIED, MIXED, TRANSACTION, PRIORITY, FIFO, DELAY, LITE, NORMAL"
FIFO = {"message.type": "FIFO"}
SIMPLE = {"queue.type": "SimpleCQ"}


@pytest.mark.parametrize(
    ("current", "text", "after"),
    [
        (None, "", {}),
        (None, ",", {}),
        (None, "+message.type=FIFO", FIFO),
        (None, "+message.type=FIFO,,", FIFO),
        (None, "+message.type=FIFO=X", FIFO),
        (None, "+message.type=UNSPECIFIED", {"message.type": "UNSPECIFIED"}),
        (None, "+queue.type=SimpleCQ", SIMPLE),
        (None, "+cleanup.policy=DELETE", {"cleanup.policy": "DELETE"}),
        (None, "+reserve.time=9223372036854775807", {"reserve.time": "9223372036854775807"}),
        (None, "+lite.topic.expiration=-1", {"lite.topic.expiration": "-1"}),
        (FIFO, "", FIFO),
        (FIFO, "+message.type=DELAY", {"message.type": "DELAY"}),
        (FIFO, "-message.type", {}),
        (FIFO, "+reserve.time=3,-message.type", {"reserve.time": "3"}),
    ],
)
def test_a_change_of_rocketmq_5_is_carried_out(
    current: dict[str, str] | None, text: str, after: dict[str, str]
) -> None:
    assert changed(current, parse_changes(text)) == after


@pytest.mark.parametrize(
    ("current", "text", "code", "remark"),
    [
        (None, " ", 1, "delete attribute format is wrong:  "),
        (None, "garbage", 1, "delete attribute format is wrong: garbage"),
        (None, ",+message.type=FIFO", 1, "delete attribute format is wrong: "),
        (None, "message.type=FIFO", 1, "add/alter attribute format is wrong: message.type"),
        (None, "=+message.type", 1, "add/alter attribute format is wrong: "),
        (None, "-message.type", 1,
         "only add attribute is supported while creating topic. key: message.type"),
        (None, "+message.type=fifo", 1, f"value is not in set: [{TYPES}]"),
        (None, "+message.type==FIFO", 1, f"value is not in set: [{TYPES}]"),
        (None, "+message.type=MIXED,+bad.key=1", 29, "MIXED message type is not supported."),
        (None, "+a=1,+a=2", 1, "key duplication: +a"),
        (None, "++message.type=FIFO", 1, "kv string format wrong."),
        (None, " +message.type=FIFO", 1, "kv string format wrong."),
        (None, "+=FIFO", 1, "kv string format wrong."),
        (None, "-", 1, "kv string format wrong."),
        (None, "+message.type =FIFO", 1, "unsupported key: message.type "),
        (None, "+priority.factor=1", 1, "unsupported key: priority.factor"),
        (None, "+queue.type=Bad", 1, "value is not in set: [SimpleCQ, BatchCQ]"),
        (None, "+reserve.time=x", 1, 'For input string: "x"'),
        (None, "+reserve.time=-2", 1, "value is not in range(-1, 9223372036854775807)"),
        (None, "+lite.topic.expiration=43201", 1, "value is not in range(-1, 43200)"),
        (FIFO, "-unknown", 1, "attempt to delete a nonexistent key: unknown"),
        (FIFO, "+message.type=DELAY,-message.type", 1,
         "alter duplication key. key: message.type"),
        ({}, "+message.type=FIFO,-message.type", 1,
         "attempt to delete a nonexistent key: message.type"),
        (FIFO, "+queue.type=SimpleCQ", 1,
         "attempt to update an unchangeable attribute. key: queue.type"),
        (SIMPLE, "-queue.type", 1, "attempt to update an unchangeable attribute. key: queue.type"),
        # RocketMQ accepts these, and keeps one entry for a batch, or the last message of a key.
        (None, "+queue.type=BatchCQ", 1, "this broker does not support queue.type=BatchCQ"),
        (None, "+cleanup.policy=COMPACTION", 1,
         "this broker does not support cleanup.policy=COMPACTION"),
        # RocketMQ answers with Java's "Index 1 out of bounds for length 1".
        (None, "+message.type=", 1, "the attribute message.type has no value"),
    ],
)  # fmt: skip
def test_a_change_that_rocketmq_5_refuses_has_its_remark(
    current: dict[str, str] | None, text: str, code: int, remark: str
) -> None:
    with pytest.raises(CommandError) as refused:
        changed(current, parse_changes(text))
    assert (refused.value.code, refused.value.remark) == (code, remark)
