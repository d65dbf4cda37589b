# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of pulls."""

from typing import Any

import msgspec

from cometmq.broker.broker import Broker
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Call
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.message.record import decode_record
from cometmq.testing.broker.stored import ask, call_with

COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4
PULL = PullMessage("G", "T", 1, 0, 32, SUBSCRIPTION, 0, 15_000, 0, "*")


def store(broker: Broker, *tags: str, topic: str = "T", queue_id: int = 1) -> None:
    for tag in tags:
        text = f"TAGS\x01{tag}" if tag else ""
        header = SendMessageV2("P", topic, "TBW102", 4, queue_id, 0, 0, 0, text)
        ask(broker, call_with(310, header, tag.encode()))


def pull_call(**fields: Any) -> Call[PullMessage]:
    return call_with(RequestCode.PULL_MESSAGE, msgspec.structs.replace(PULL, **fields))


def bodies(reply: Any) -> list[bytes]:
    return [decode_record(record).body for record in reply.body]


def hold(broker: Broker, **fields: Any) -> Call[PullMessage]:
    call = pull_call(**{"sys_flag": SUBSCRIPTION | SUSPEND, **fields})
    assert ask(broker, call) is None
    return call
