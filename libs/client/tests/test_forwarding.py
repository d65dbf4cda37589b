# SPDX-License-Identifier: Apache-2.0
"""Forwarding received messages to another topic."""

from typing import Any

import msgspec
import pytest

from cometmq.client import (
    DamagedMessage,
    InvalidArgument,
    Message,
    MessageExt,
    Producer,
    TransactionProducer,
    TransactionState,
)
from cometmq.client.message import UnreadableMessage
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.message.properties import RESERVED_KEYS, PropertyKey
from cometmq.testing.client.listening import Recorder, consumer_of

SENT = Message(
    "T", b"body", tag="A", keys=["k1", "k2"], properties={"x": "y"}, flag=7, wait_store_ok=False
)


async def received_from(cluster: MemoryCluster, message: Message) -> MessageExt:
    """Return a message with every property that a broker and a consumer add to it."""
    recorder = Recorder()
    async with Producer("pg", cluster.namesrv) as producer:
        await producer.send(message)
        async with consumer_of(cluster, recorder):
            await eventually(lambda: recorder.messages)
    return recorder.messages[0]


async def test_a_received_message_is_forwarded_as_a_new_one(cluster: MemoryCluster) -> None:
    source = await received_from(cluster, SENT)
    cluster.create_topic("Archive")
    async with Producer("pg", cluster.namesrv) as producer:
        result = await producer.send(source.to_message("Archive"))
        await producer.send_batch([source.to_message("Archive")])
        same = await producer.send(source.to_message())
    copies = cluster.messages("Archive")
    assert len(copies) == 2
    for copy in copies:
        assert (copy.body, copy.tag, copy.keys, copy.flag) == (b"body", "A", ("k1", "k2"), 7)
        assert copy.properties["x"] == "y"
        assert copy.properties.keys() <= {"x", "TAGS", "KEYS", "WAIT", "UNIQ_KEY", "CLUSTER"}
        assert copy.message_id != source.message_id
    assert result.message_id in {copy.message_id for copy in copies}
    assert same.queue.topic == "T"


async def test_no_property_of_rocketmq_is_forwarded(cluster: MemoryCluster) -> None:
    """DELAY would delay the copy again; TRAN_MSG would make it a half message that never ends."""
    source = await received_from(cluster, SENT)
    every = dict.fromkeys(RESERVED_KEYS, "true") | {"x": "y", "DELAY": "3"}
    source = msgspec.structs.replace(source, properties=every)
    assert source.user_properties == {"x": "y"}
    message = source.to_message("Archive")
    assert (message.properties, message.delay_level, message.message_id) == ({"x": "y"}, 0, None)
    async with Producer("pg", cluster.namesrv) as producer:
        new = await producer.send(message)
        await producer.send(msgspec.structs.replace(message, message_id=source.message_id))
    copies = {copy.message_id: copy for copy in cluster.messages("Archive")}
    assert copies.keys() == {new.message_id, source.message_id}
    assert {"DELAY", "TRAN_MSG", "RETRY_TOPIC"}.isdisjoint(copies[new.message_id].properties)


async def test_a_committed_message_is_forwarded_without_its_transaction(
    cluster: MemoryCluster,
) -> None:
    recorder = Recorder()
    async with TransactionProducer("tg", cluster.namesrv, check=lambda _: None) as producer:
        transaction = await producer.begin(Message("T", b"x"))
        await transaction.end(TransactionState.COMMIT)
        async with consumer_of(cluster, recorder):
            await eventually(lambda: recorder.messages)
    async with Producer("pg", cluster.namesrv) as producer:
        await producer.send(recorder.messages[0].to_message("Archive"))
    (copy,) = cluster.messages("Archive")
    assert PropertyKey.TRANSACTION_PREPARED not in copy.properties
    assert copy.sys_flag == 0


@pytest.mark.parametrize("kind", [DamagedMessage, UnreadableMessage])
async def test_a_damaged_body_is_not_forwarded(cluster: MemoryCluster, kind: Any) -> None:
    source = await received_from(cluster, SENT)
    broken = kind(**msgspec.structs.asdict(source))
    with pytest.raises(InvalidArgument, match="damaged: to forward it as it is, send Message"):
        broken.to_message("Archive")


async def test_what_cannot_be_forwarded_names_the_call(cluster: MemoryCluster) -> None:
    source: Any = await received_from(cluster, SENT)
    as_it_is = r"cannot be sent as it is: producer.send\(received.to_message\(\)\), or"
    with_all = r"take `received.user_properties` of a received message"
    copied = Message("Archive", source.body, properties=source.properties)
    async with Producer("pg", cluster.namesrv) as producer:
        for message, text in ((source, as_it_is), (copied, with_all)):
            with pytest.raises(InvalidArgument, match=text):
                await producer.send(message)
            with pytest.raises(InvalidArgument, match=text):
                await producer.send_batch([message])
