# SPDX-License-Identifier: Apache-2.0
"""Queue locks of the in-memory broker; they never expire."""

from typing import Any

from cometmq.client.testing.broker import MemoryBroker
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.locks import LockBatch, LockBatchReply
from cometmq.remoting.command import OK, Call, Reply


def lock_batch_mq(broker: MemoryBroker, call: Call[Any]) -> Reply:
    """Lock queues that are free or held by the client; return all that it holds."""
    asked = decode_json(LockBatch, call.body)
    granted = [
        queue
        for queue in asked.mq_set
        if broker.locks.setdefault((asked.consumer_group, queue), asked.client_id)
        == asked.client_id
    ]
    return Reply(body=encode_json(LockBatchReply(granted)))


def unlock_batch_mq(broker: MemoryBroker, call: Call[Any]) -> Reply:
    """Unlock the queues that the client holds."""
    asked = decode_json(LockBatch, call.body)
    for queue in asked.mq_set:
        key = (asked.consumer_group, queue)
        if broker.locks.get(key) == asked.client_id:
            del broker.locks[key]
    return OK
