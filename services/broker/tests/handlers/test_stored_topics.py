# SPDX-License-Identifier: Apache-2.0
"""The right to messages that requests name by their position (33, 36)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.acl.check import AccessControl
from cometmq.broker.acl.files import AclFiles
from cometmq.broker.acl.keeper import AclKeeper
from cometmq.broker.broker import Broker
from cometmq.broker.testing.peers import FakePeer
from cometmq.broker.testing.stored import ask, call_with, stored_broker
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.command import Call, Request
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.commands.queries import ViewMessageById
from cometmq.remoting.commands.send import ConsumerSendMsgBack, SendMessageV2
from cometmq.remoting.connection import Codec, Connection
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.message.record import decode_record
from cometmq.remoting.names import SCHEDULE_TOPIC
from cometmq.runtime.acl.accounts import Accounts
from cometmq.runtime.acl.addresses import Addresses
from cometmq.runtime.worker import Worker

ACCOUNTS = """\
globalWhiteRemoteAddresses: []
accounts:
- {accessKey: adminKey1, secretKey: adminSecret1, admin: true}
- accessKey: userKey1
  secretKey: userSecret1
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
  topicPerms: [Open=SUB, Sealed=DENY, Sendable=PUB]
  groupPerms: [closed=DENY]
"""
TOPICS = ("Open", "Sealed", "Sendable", "%RETRY%closed", SCHEDULE_TOPIC)


@asynccontextmanager
async def guarded(tmp_path: Path, *, is_on: bool) -> AsyncIterator[Broker]:
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    worker = Worker("test-acl")
    settings = {"aclCheckStoredTopic": str(is_on).lower()}
    async with stored_broker(tmp_path / "store", **settings) as broker:
        files = AclFiles(path, clock_ms=broker.clock.now_ms, log=NO_LOG)
        broker.acl = AclKeeper(
            files, AccessControl(files.load(), clock_ms=lambda: 0), worker=worker, log=NO_LOG
        )
        yield broker
    worker.close()


def store(broker: Broker, topic: str) -> int:
    """Store a message in a topic; return its position in the log."""
    is_delayed = topic == SCHEDULE_TOPIC
    name, queue_id, properties = ("Open", 0, "DELAY\x011") if is_delayed else (topic, 1, "")
    broker.topics.create(name, queue_nums=4)
    header = SendMessageV2("P", name, "TBW102", 4, 1, 0, 0, 0, properties)
    reply = ask(broker, call_with(310, header, topic.encode()))
    assert reply.code == 0, reply
    (record,) = broker.store.get_messages(topic, queue_id, 0, 1).records
    return decode_record(record).physical_offset


def call_of(code: int, header: Any, access_key: str | None) -> Call[Any]:
    sender, receiver = (Connection(Codec(COMMANDS), FakePeer()) for _ in range(2))
    sender.send(Request(code, header, b"", {"AccessKey": access_key} if access_key else None))
    (call,) = receiver.receive(bytes(sender.take()), 0)
    return call


def view(broker: Broker, offset: int, access_key: str | None = "userKey1") -> Any:
    return ask(broker, call_of(Code.VIEW_MESSAGE_BY_ID, ViewMessageById(offset), access_key))


def send_back(broker: Broker, offset: int) -> Any:
    header = ConsumerSendMsgBack(offset, "readers", 0, "U", "T", max_reconsume_times=16)
    return ask(broker, call_of(Code.CONSUMER_SEND_MSG_BACK, header, "userKey1"))


async def test_a_message_needs_the_right_to_its_own_topic(tmp_path: Path) -> None:
    async with guarded(tmp_path, is_on=True) as broker:
        assert broker.acl is not None
        places = {topic: store(broker, topic) for topic in TOPICS}
        assert decode_record(view(broker, places["Open"]).body).body == b"Open"
        assert send_back(broker, places["Open"]).code == 0
        for topic in TOPICS[1:]:
            refused = view(broker, places[topic])
            text = f"can not find message by the offset, {places[topic]}"
            assert (refused.code, refused.remark, refused.body) == (1, text, b"")
            back = send_back(broker, places[topic])
            assert (back.code, back.remark) == (
                1, f"look message by offset failed, {places[topic]}",
            )  # fmt: skip
            assert view(broker, places[topic], "adminKey1").code == 0
        assert broker.acl.control.refused_count == 8


async def test_a_refusal_is_like_a_position_without_a_message(tmp_path: Path) -> None:
    async with guarded(tmp_path, is_on=True) as broker:
        sealed = store(broker, "Sealed")
        missing = view(broker, sealed + 1)
        refused = view(broker, sealed)
        assert refused.code == missing.code
        assert refused.remark == missing.remark.replace(str(sealed + 1), str(sealed))


async def test_an_address_without_an_account_reads_everything(tmp_path: Path) -> None:
    async with guarded(tmp_path, is_on=True) as broker:
        assert broker.acl is not None
        white = [Addresses("127.0.0.1")]
        broker.acl.control.accounts = Accounts((), white, version=DataVersion(), versions={})
        assert view(broker, store(broker, "Sealed"), None).body


@pytest.mark.parametrize("topic", TOPICS)
async def test_without_the_setting_every_account_reads_as_in_rocketmq(
    tmp_path: Path, topic: str
) -> None:
    async with guarded(tmp_path, is_on=False) as broker:
        place = store(broker, topic)
        assert decode_record(view(broker, place).body).body == topic.encode()
        assert send_back(broker, place).code == 0
