# SPDX-License-Identifier: Apache-2.0
"""An account that may only consume creates nothing but its own group and its retry topic."""

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.broker.acl.check import AccessControl
from cometmq.broker.broker import Broker
from cometmq.remoting.bodies.acl import AclAccount
from cometmq.remoting.bodies.dialect import decode_bounded, encode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData, Heartbeat, SubscriptionData
from cometmq.remoting.bodies.topic_config import DataVersion, TopicConfig
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.command import Call, Request
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.connection import Codec, Connection
from cometmq.remoting.errors import CommandError
from cometmq.remoting.signature import SessionCredentials, signing
from cometmq.remoting.transport import bodies
from cometmq.runtime.acl.accounts import Account, Accounts
from cometmq.runtime.acl.addresses import Addresses
from cometmq.testing.broker.stored import ask, stored_broker
from cometmq.testing.remoting.peer import FakePeer

READER = AclAccount(
    "readerKey",
    default_group_perm="DENY",
    default_topic_perm="DENY",
    group_perms=["Own=SUB"],
    secret_key="readerSecret",
    topic_perms=["T=SUB"],
)
OWN = {"%RETRY%Own", "%DLQ%Own", "RMQ_SYS_TRACE_TOPIC"}
SEND = {
    "producerGroup": "P", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
    "sysFlag": "0", "bornTimestamp": "0", "flag": "0", "properties": "", "reconsumeTimes": "99",
    "unitMode": "false",
}  # fmt: skip
V2 = dict(zip(SEND, "acdefghijk", strict=True))
PULL = {
    "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "5", "commitOffset": "7",
    "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*",
}  # fmt: skip


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with stored_broker(tmp_path) as broker:
        broker.tables.topics.put(TopicConfig(topic_name="T"))
        accounts = Accounts([Account(READER)], [Addresses("")], version=DataVersion(), versions={})
        broker.admission.acl = SimpleNamespace(control=AccessControl(accounts, clock_ms=lambda: 0))  # type: ignore[assignment]
        yield broker


def serve(broker: Broker, code: int, ext: dict[str, str], body: bytes = b"") -> Any:
    """Sign, send and serve a request as the server does."""
    fields = dict(ext)
    signing(SessionCredentials(READER.access_key, READER.secret_key or ""))(code, fields, body)
    codec = Codec(COMMANDS)
    sender, receiver = Connection(codec, FakePeer()), Connection(codec, FakePeer())
    sender.send(Request(code, None, body, fields))
    call: Call[Any] = receiver.receive(bytes(sender.take()), 0)[0]
    call.peer = FakePeer()
    assert broker.admission.acl is not None
    try:
        broker.admission.acl.control.check(broker, call)
    except CommandError as error:
        return error
    return ask(broker, call)


def beat(group: str, topic: str = "T") -> bytes:
    wanted = [SubscriptionData(topic=topic, sub_string="*")]
    consumers = [ConsumerData(group_name=group, subscription_data_set=wanted)]
    return encode_json(Heartbeat("c", consumers))


async def test_a_reader_creates_only_what_is_its_own(broker: Broker) -> None:
    topics, groups = set(broker.tables.topics.table), set(broker.tables.groups.table)
    for group in ("Own", "Other"):
        serve(broker, Code.HEART_BEAT, {}, beat(group))
        for topic in ("T", "New"):
            pull = PULL | {"consumerGroup": group, "topic": topic}
            for code in (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE):
                serve(broker, code, pull)
            commit = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "3"}
            serve(broker, Code.UPDATE_CONSUMER_OFFSET, commit)
        serve(
            broker, Code.CONSUMER_SEND_MSG_BACK, {"group": group, "offset": "0", "delayLevel": "0"}
        )
        for topic in ("New", f"%RETRY%{group}", f"%DLQ%{group}", "RMQ_SYS_TRACE_TOPIC"):
            for code in (Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE):
                header = SEND | {"topic": topic}
                if code != Code.SEND_MESSAGE:
                    header = {V2.get(name, "b"): value for name, value in header.items()}
                serve(broker, code, header, b"x")

    assert set(broker.tables.topics.table) - topics <= OWN
    assert set(broker.tables.groups.table) - groups == {"Own"}
    assert {key.partition("@")[2] for key in broker.tables.offsets.table} <= {"Own"}


@pytest.mark.parametrize("topic", ["New_REPLY_TOPIC", "New", "%RETRY%Other"])
async def test_a_reply_creates_no_topic(broker: Broker, topic: str) -> None:
    before = set(broker.tables.topics.table)
    result = serve(broker, Code.SEND_REPLY_MESSAGE, SEND | {"topic": topic}, b"x")
    reply = result if isinstance(result, CommandError) else await result.header
    assert reply.code != 0
    assert set(broker.tables.topics.table) == before


async def test_the_peer_of_a_signed_request_is_its_account(broker: Broker) -> None:
    groups_max = str(len(broker.tables.groups.table))
    broker.apply(broker.config.loaded.updated({"groupsMax": groups_max}))
    reply = serve(broker, Code.HEART_BEAT, {}, beat("Own"))
    assert reply.code == 26
    bounds = {"groupsMax": "1000", "peerShareMax": "1", "topicsMax": "50"}
    broker.apply(broker.config.loaded.updated(bounds))
    reply = serve(broker, Code.HEART_BEAT, {}, beat("Own"))
    assert "the account readerKey has 0" in reply.remark


async def test_a_body_is_decoded_once_for_the_check_and_the_handler(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding one may take as long as a request may hold the loop."""
    decoded: list[str] = []

    def decode(type_: type[Any], data: bytes) -> Any:
        decoded.append(type_.__name__)
        return decode_bounded(type_, data)

    monkeypatch.setattr(bodies, "decode_bounded", decode)
    assert serve(broker, Code.HEART_BEAT, {}, beat("Own")).code == 0
    locks = b'{"consumerGroup":"Own","clientId":"c","mqSet":[]}'
    serve(broker, Code.LOCK_BATCH_MQ, {}, locks)
    assert decoded == ["Heartbeat", "LockBatch"]
    assert isinstance(serve(broker, Code.HEART_BEAT, {}, beat("Other")), CommandError)
    assert serve(broker, Code.HEART_BEAT, {}, beat("Own")).code == 0
    assert decoded == ["Heartbeat", "LockBatch", "Heartbeat", "Heartbeat"]
