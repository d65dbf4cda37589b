# SPDX-License-Identifier: Apache-2.0
"""The right to messages that a request names by their position in the log (33, 36, 37)."""

from collections.abc import Callable
from typing import Any

from cometmq.broker.broker import Broker
from cometmq.remoting.command import Call
from cometmq.remoting.message.record import MessageRecord


def reader(broker: Broker, call: Call[Any]) -> Callable[[MessageRecord], bool]:
    """Return whether the sender of a call may read a message.

    Handlers answer a refused request as if there were no message at the position, so that an
    account cannot find out where messages of other topics are.
    """
    if broker.acl is None or not broker.settings.acl_check_stored_topic:
        return lambda _record: True
    may_read = broker.acl.control.reader(call)
    return lambda record: may_read(record.topic)


def check_ender(broker: Broker, call: Call[Any]) -> Callable[[str], None]:
    """Return a function that raises ServerError unless the sender of a call may end transactions
    of a topic.
    """
    return (lambda _topic: None) if broker.acl is None else broker.acl.control.ender(call)
