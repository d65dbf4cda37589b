# SPDX-License-Identifier: Apache-2.0
"""Queue locks for orderly consumption."""

import msgspec

from cometmq.remoting.bodies.queues import MessageQueue


class LockBatch(msgspec.Struct, gc=False, rename="camel"):
    """Queues that a client locks or unlocks; the last member was added in 5.x."""

    client_id: str = ""
    consumer_group: str = ""
    mq_set: list[MessageQueue] = []
    only_this_broker: bool | None = None


class LockBatchReply(msgspec.Struct, gc=False, rename="camel"):
    """Queues whose locks the client now holds."""

    lock_ok_mq_set: list[MessageQueue] = msgspec.field(name="lockOKMQSet", default_factory=list)
