# SPDX-License-Identifier: Apache-2.0
"""Checks the right to messages whose topic a request does not name. It names a position in the log
(33, 36, 37), a position in a queue (321), or the client that gets the message (324, 325).

With `aclCheckStoredTopic`, handlers answer a refused request as if there were no message at the
position, so that an account cannot find out where messages of other topics are.
"""

from collections.abc import Callable
from typing import Any

from cometmq.broker.broker import Broker
from cometmq.remoting import remarks
from cometmq.remoting.command import Call
from cometmq.remoting.errors import ServerError
from cometmq.remoting.message.record import MessageRecord
from cometmq.store.reads import Lookup


def reader(broker: Broker, call: Call[Any]) -> Callable[[str], bool] | None:
    """Return a function that tells whether the sender of a call may read the messages of a topic,
    or None if it may read all messages.
    """
    if broker.admission.acl is None or not broker.settings.acl_check_stored_topic:
        return None
    return broker.admission.acl.control.reader(call)


def readable(broker: Broker, call: Call[Any], offset: int) -> Lookup[MessageRecord | None]:
    """Find the record at an offset of the log that the sender of a call has chosen; None if there
    is none, or the sender may not read it.

    The record's queue entry must refer to this offset. Otherwise a sender could store a message
    whose body looks like the beginning of a long record of a permitted topic, and read what follows
    it.
    """
    may_read = reader(broker, call)
    lookup = broker.store.reader.read_record(offset)
    return lookup if may_read is None else _permitted(broker, lookup, may_read)


def _permitted(
    broker: Broker, lookup: Lookup[MessageRecord | None], may_read: Callable[[str], bool]
) -> Lookup[MessageRecord | None]:
    record = yield from lookup
    if record is None or not may_read(record.topic):
        return None
    place = yield from broker.store.reader.place(record.topic, record.queue_id, record.queue_offset)
    return record if place == record.physical_offset else None


def check_writer(broker: Broker, call: Call[Any]) -> Callable[[str], None]:
    """Return a function that raises ServerError unless the sender of a call has PUB on a topic."""
    check = None if broker.admission.acl is None else broker.admission.acl.control.writer(call)
    return (lambda _topic: None) if check is None else check


def check_half(broker: Broker, call: Call[Any]) -> Callable[[str | None], None]:
    """Return a check that raises ServerError unless the sender of a call may know a half message.

    Its argument is the topic of the half message, or None if the position has no half message.
    """
    check = None
    if broker.admission.acl is not None and broker.settings.acl_check_stored_topic:
        check = broker.admission.acl.control.writer(call)
    if check is None:
        return lambda _topic: None
    check_topic = check

    def check_known(topic: str | None) -> None:
        try:
            if topic is not None:
                check_topic(topic)
                return
        except ServerError:
            pass  # the answer must not tell why
        raise ServerError(remarks.HALF_MESSAGE_NOT_FOUND)

    return check_known
