# SPDX-License-Identifier: Apache-2.0
"""Queue locks, which orderly consumers take before they consume."""

from cometmq.broker.broker import Broker
from cometmq.broker.handlers.bodies import json_body
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.locks import LockBatch, LockBatchReply
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.table import NoHeader


def lock_batch_mq(broker: Broker, call: Call[NoHeader]) -> Reply:
    """Lock the queues that no other client holds; answer with those that this client now holds."""
    asked = json_body(call, LockBatch)
    granted = broker.locks.lock(
        asked.consumer_group,
        asked.client_id,
        asked.mq_set,
        now_ms=broker.clock.monotonic_ms(),
    )
    body = encode_json(LockBatchReply(lock_ok_mq_set=granted))
    if broker.lane is not None and len(granted) == len(asked.mq_set):
        broker.lane.learn_renewal(call, broker.locks.held(asked.consumer_group, granted), body)
    return Reply(body=body)


def unlock_batch_mq(broker: Broker, call: Call[NoHeader]) -> Reply:
    asked = json_body(call, LockBatch)
    broker.locks.unlock(asked.consumer_group, asked.client_id, asked.mq_set)
    return OK
