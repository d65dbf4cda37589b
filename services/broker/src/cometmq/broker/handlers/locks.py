# SPDX-License-Identifier: Apache-2.0
"""Queue locks, which orderly consumers take before they consume."""

from cometmq.broker.broker import Broker
from cometmq.broker.handlers.admin import body_of
from cometmq.broker.limits import LOCK_ITEMS, LOCK_NAMES, Room
from cometmq.broker.statistics.detours import SlowReason
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.locks import LockBatch, LockBatchReply
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.table import NoHeader


def lock_batch_mq(broker: Broker, call: Call[NoHeader]) -> Reply:
    """Lock the queues that no other client holds; answer with those that this client now holds."""
    asked = body_of(call, LockBatch)
    room = broker.admission.room(call)
    _check(room, asked)
    granted = broker.clients.locks.lock(
        asked.consumer_group,
        asked.client_id,
        asked.mq_set,
        now_ms=broker.clock.monotonic_ms(),
        room=room,
    )
    refusal = broker.clients.locks.refusal
    if refusal is not None and not granted:
        raise refusal
    body = encode_json(LockBatchReply(lock_ok_mq_set=granted))
    if broker.lane is not None:
        locks = broker.clients.locks.held(asked.consumer_group, granted)
        is_all = len(granted) == len(asked.mq_set)
        is_new = is_all and broker.lane.learn_renewal(call, locks, body)
        broker.measured.detours.note(call.code, SlowReason.FIRST if is_new else SlowReason.UNUSUAL)
    return Reply(body=body, remark=None if refusal is None else refusal.remark)


def unlock_batch_mq(broker: Broker, call: Call[NoHeader]) -> Reply:
    asked = body_of(call, LockBatch)
    _check(broker.admission.room(call), asked)
    broker.clients.locks.unlock(asked.consumer_group, asked.client_id, asked.mq_set)
    return OK


def _check(room: Room, asked: LockBatch) -> None:
    """Raise CommandError if a request names too many queues, or too long names."""
    room.check(LOCK_ITEMS, len(asked.mq_set))
    names = [asked.consumer_group, asked.client_id]
    names += [name for queue in asked.mq_set for name in (queue.topic, queue.broker_name)]
    room.check(LOCK_NAMES, max(map(len, names)))
