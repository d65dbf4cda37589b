# SPDX-License-Identifier: Apache-2.0
"""RECALL_MESSAGE (370): makes sure that a waiting delayed message is never delivered.

All messages with the unique key are recalled, because a producer that sends a
message again uses the same key.

Compatibility: RocketMQ 5 has this request for its timed messages; 4.9 does not. The time in the
handle is not used, because this broker knows when the message is due.
"""

import asyncio
from functools import partial
from typing import Final, NoReturn

from cometmq.broker.broker import Broker
from cometmq.broker.delays.recalled import AlreadyDue, Delayed, OnItsWay, find_delayed
from cometmq.broker.handlers.admin import refuse_on_slave
from cometmq.broker.handlers.deferred_answers import found
from cometmq.broker.limits import RECALLED
from cometmq.remoting.command import Call
from cometmq.remoting.commands.send import RecallMessage, RecallMessageReply
from cometmq.remoting.errors import IllegalOperation, ServerError, TopicNotExist
from cometmq.remoting.message.recall_handle import parse_recall_handle
from cometmq.remoting.names import RETRY_PREFIX

KEY_CHARS_MAX: Final = 255
MOVE_S: Final = 0.02
"""The pause before the next search for a message that moves to another level."""
SEARCH_MS_MAX: Final = 3_000
"""How long messages with the key are searched; after that, the recall is refused."""


async def recall_message(broker: Broker, call: Call[RecallMessage]) -> RecallMessageReply:
    """Recall a message; answer once the journal and the group's copies have the recall."""
    refuse_on_slave(broker)
    topic, key = call.header.topic, _key_of(broker, call.header)
    name, end_ms = broker.settings.broker_name, broker.clock.monotonic_ms() + SEARCH_MS_MAX

    def has_time() -> bool:
        return broker.clock.monotonic_ms() < end_ms

    while True:
        is_past = broker.deferred.delays.positions.is_past
        delayed = await found(
            broker, find_delayed(broker.store.reader, topic, key, has_time, is_past)
        )
        if delayed is None:
            _refuse(
                f"too many messages have the key {key} to examine all, or one of them is damaged"
            )
        if not delayed:
            _refuse(f"{name} has no delayed message of the topic {topic} with the id {key}")
        refuse_on_slave(broker)  # the role may have changed during the search
        try:
            _recall(broker, call, delayed, key)
        except OnItsWay:
            if not has_time():
                _refuse(f"the message {key} moves to another delay level: try again")
            await asyncio.sleep(MOVE_S)
        else:
            broker.log.info("delay.recalled", topic=topic, unique_key=key, peer=call.peer.address)
            return RecallMessageReply(key)


def _recall(broker: Broker, call: Call[RecallMessage], delayed: list[Delayed], key: str) -> None:
    delays, journal, room = (
        broker.deferred.delays,
        broker.tables.journal,
        broker.admission.room(call),
    )
    recalled = delays.positions.recalled
    _check_journal(broker, "nothing is recalled")
    is_past = delays.positions.is_past
    places = [(it.level, it.queue_offset) for it in delayed]
    new = [it for it in places if not is_past(*it) and recalled.key_at(*it) != key]
    room.check_journal()
    room.admit(RECALLED, recalled.count, len(new))
    try:
        delays.recall(delayed, key, broker.clock.now_ms())
    except (AlreadyDue, OnItsWay) as error:
        room.limits.release(RECALLED, room.peer, len(new))
        if isinstance(error, OnItsWay):
            raise
        _refuse(f"the message {key} is due now or has been delivered")
    for place in new:
        recalled.when_removed(*place, partial(room.limits.release, RECALLED, room.peer))
    if journal is not None:
        journal.write()
        _check_journal(broker, "recalled, but a crash would undo it")


def _check_journal(broker: Broker, outcome: str) -> None:
    journal = broker.tables.journal
    if journal is not None and journal.fault:
        raise ServerError(f"{outcome}: the journal cannot be written: {journal.fault}")


def _key_of(broker: Broker, header: RecallMessage) -> str:
    """Return the unique key in a handle; raise CommandError if it is not of this broker."""
    name, topic = broker.settings.broker_name, header.topic
    try:
        handle = parse_recall_handle(header.recall_handle)
    except ValueError as error:
        _refuse(f"the handle is invalid: {error}")
    if handle.topic != topic:
        _refuse(f"the handle names the topic {handle.topic}, the request {topic}")
    if handle.broker_name != name:
        _refuse(f"the handle names the broker {handle.broker_name}, and this is {name}")
    if topic.startswith(RETRY_PREFIX):
        _refuse("a message that waits for its next attempt cannot be recalled")
    if broker.tables.topics.get(topic) is None:
        raise TopicNotExist(f"recall failed: the topic {topic} does not exist")
    if len(handle.unique_key) > KEY_CHARS_MAX:
        _refuse(f"the id has more than {KEY_CHARS_MAX} characters")
    if not broker.settings.message_index_enable:
        _refuse(f"{name} has no index of messages (messageIndexEnable=false)")
    return handle.unique_key


def _refuse(reason: str) -> NoReturn:
    raise IllegalOperation(f"recall failed: {reason}")
