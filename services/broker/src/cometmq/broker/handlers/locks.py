# SPDX-License-Identifier: Apache-2.0
"""Queue locks, which orderly consumers take before they consume."""

from collections.abc import Iterator
from typing import Final

from cometmq.broker.broker import Broker
from cometmq.broker.handlers.admin import body_of
from cometmq.broker.handlers.deferred_answers import stepwise
from cometmq.broker.limits import LOCK_ITEMS, LOCK_NAMES, Room
from cometmq.broker.statistics.detours import SlowReason
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.locks import LockBatch, LockBatchReply
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.transport.dispatch import InOrder
from cometmq.runtime.incremental import Steps, finish

STEP_QUEUES: Final = 500
"""Number of queues that one step locks or unlocks: 2 to 4 ms."""


def lock_batch_mq(broker: Broker, call: Call[NoHeader]) -> Reply | InOrder:
    """Lock the queues that no other client holds; answer with those that this client now holds.

    Many queues are locked, or unlocked, in steps; the connection's next requests wait.
    """
    asked = body_of(call, LockBatch)
    _check(broker.admission.room(call), asked)
    return _served(broker, call, len(asked.mq_set), _locking(broker, call, asked))


def _locking(broker: Broker, call: Call[NoHeader], asked: LockBatch) -> Steps[Reply]:
    group, client_id, locks = asked.consumer_group, asked.client_id, broker.clients.locks
    room, refusal = broker.admission.room(call), None
    granted: list[MessageQueue] = []
    for queues in _parts(asked):
        yield
        now_ms = broker.clock.monotonic_ms()
        granted += locks.lock(group, client_id, queues, now_ms=now_ms, room=room)
        refusal = refusal or locks.refusal
    if refusal is not None and not granted:
        raise refusal
    held = locks.held(group, client_id, granted)
    body = encode_json(LockBatchReply(lock_ok_mq_set=list(held)))
    if broker.lane is not None:
        is_all = len(held) == len(asked.mq_set)
        is_new = is_all and broker.lane.learn_renewal(call, list(held.values()), body)
        broker.measured.detours.note(call.code, SlowReason.FIRST if is_new else SlowReason.UNUSUAL)
    return Reply(body=body, remark=None if refusal is None else refusal.remark)


def unlock_batch_mq(broker: Broker, call: Call[NoHeader]) -> Reply | InOrder:
    asked = body_of(call, LockBatch)
    _check(broker.admission.room(call), asked)
    return _served(broker, call, len(asked.mq_set), _unlocking(broker, asked))


def _unlocking(broker: Broker, asked: LockBatch) -> Steps[Reply]:
    for queues in _parts(asked):
        yield
        broker.clients.locks.unlock(asked.consumer_group, asked.client_id, queues)
    return OK


def _parts(asked: LockBatch) -> Iterator[list[MessageQueue]]:
    for start in range(0, len(asked.mq_set), STEP_QUEUES):
        yield asked.mq_set[start : start + STEP_QUEUES]


def _served(
    broker: Broker, call: Call[NoHeader], queue_count: int, work: Steps[Reply]
) -> Reply | InOrder:
    return finish(work) if queue_count <= STEP_QUEUES else InOrder(stepwise(broker, call, work))


def _check(room: Room, asked: LockBatch) -> None:
    """Raise CommandError if a request names too many queues, or too long names."""
    room.check(LOCK_ITEMS, len(asked.mq_set))
    names = [asked.consumer_group, asked.client_id]
    names += [name for queue in asked.mq_set for name in (queue.topic, queue.broker_name)]
    room.check(LOCK_NAMES, max(map(len, names)))
