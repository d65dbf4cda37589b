# SPDX-License-Identifier: Apache-2.0
"""The right to messages that requests name by their position (33, 36, 37, 321), or by the client
that gets them (325).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.acl.check import AccessControl
from cometmq.broker.acl.files import AclFiles
from cometmq.broker.acl.keeper import AclKeeper
from cometmq.broker.broker import Broker
from cometmq.broker.clients.producers import Client
from cometmq.broker.handlers import replies
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.command import Call, Request, Response
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.commands.queries import QueryConsumeQueue, ViewMessageById
from cometmq.remoting.commands.request_reply import SendReplyMessageV2
from cometmq.remoting.commands.send import ConsumerSendMsgBack, SendMessageV2
from cometmq.remoting.commands.transactions import EndTransaction
from cometmq.remoting.connection import Codec, Connection
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.message.flags import TRANSACTION_ROLLBACK
from cometmq.remoting.message.ids import parse_offset_message_id
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.remoting.message.record import decode_record
from cometmq.remoting.names import SCHEDULE_TOPIC
from cometmq.runtime.acl.accounts import Accounts
from cometmq.runtime.acl.addresses import Addresses
from cometmq.runtime.worker import Worker
from cometmq.testing.broker.stored import ask, call_with, stored_broker
from cometmq.testing.remoting.peer import FakePeer

ACCOUNTS = """\
globalWhiteRemoteAddresses: []
accounts:
- {accessKey: adminKey1, secretKey: adminSecret1, admin: true}
- accessKey: userKey1
  secretKey: userSecret1
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
  topicPerms: [Open=PUB|SUB, Sealed=DENY, Sendable=PUB]
  groupPerms: [closed=DENY]
"""
BODY_OFFSET = 88
"""Where the body of a record begins, which is also the length of its fields up to there."""
HOST = bytes((127, 0, 0, 1, 0, 0, 0, 1))
TOPICS = ("Open", "Sealed", "Sendable", "%RETRY%closed", SCHEDULE_TOPIC)


@asynccontextmanager
async def guarded(tmp_path: Path, *, is_on: bool) -> AsyncIterator[Broker]:
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    worker = Worker("test-acl")
    settings = {"aclCheckStoredTopic": str(is_on).lower()}
    async with stored_broker(tmp_path / "store", **settings) as broker:
        files = AclFiles(path, clock_ms=broker.clock.now_ms, log=NO_LOG)
        broker.admission.acl = AclKeeper(
            files, AccessControl(files.load(), clock_ms=lambda: 0), worker=worker, log=NO_LOG
        )
        yield broker
    worker.close()


def store(broker: Broker, topic: str) -> int:
    """Store a message in a topic; return its position in the log."""
    is_delayed = topic == SCHEDULE_TOPIC
    name, queue_id, properties = ("Open", 0, "DELAY\x011") if is_delayed else (topic, 1, "")
    broker.tables.topics.create(name, queue_nums=4)
    header = SendMessageV2("P", name, "TBW102", 4, 1, 0, 0, 0, properties)
    reply = ask(broker, call_with(310, header, topic.encode()))
    assert reply.code == 0, reply
    (record,) = broker.store.reader.get_messages(topic, queue_id, 0, 1).records
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
        assert broker.admission.acl is not None
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
        assert broker.admission.acl.control.refused_count == 8


async def test_a_refusal_is_like_a_position_without_a_message(tmp_path: Path) -> None:
    async with guarded(tmp_path, is_on=True) as broker:
        sealed = store(broker, "Sealed")
        missing = view(broker, sealed + 1)
        refused = view(broker, sealed)
        assert refused.code == missing.code
        assert refused.remark == missing.remark.replace(str(sealed + 1), str(sealed))


async def test_an_address_without_an_account_reads_everything(tmp_path: Path) -> None:
    async with guarded(tmp_path, is_on=True) as broker:
        assert broker.admission.acl is not None
        white = [Addresses("127.0.0.1")]
        broker.admission.acl.control.accounts = Accounts(
            (), white, version=DataVersion(), versions={}
        )
        assert view(broker, store(broker, "Sealed"), None).body


@pytest.mark.parametrize("topic", TOPICS)
async def test_without_the_setting_every_account_reads_as_in_rocketmq(
    tmp_path: Path, topic: str
) -> None:
    async with guarded(tmp_path, is_on=False) as broker:
        place = store(broker, topic)
        assert decode_record(view(broker, place).body).body == topic.encode()
        assert send_back(broker, place).code == 0


def send_raw(broker: Broker, topic: str, body: bytes, properties: str = "") -> int:
    """Store a message in the first queue of a topic; return its position in the log."""
    broker.tables.topics.create(topic, queue_nums=4)
    header = SendMessageV2("P", topic, "TBW102", 4, 0, 0, 0, 0, properties)
    reply = ask(broker, call_with(310, header, body))
    assert reply.code == 0, reply
    return parse_offset_message_id(reply.header.msg_id).physical_offset


def end_of(broker: Broker, place: int) -> int:
    """Return where the record after this one begins."""
    body = bytes(view(broker, place, "adminKey1").body)
    return place + int.from_bytes(body[:4], "big")


def begun_record(physical_offset: int, body_bytes: int, tail: bytes) -> bytes:
    """Return the beginning of a record whose body and end are in later messages."""
    fields = NewMessage("Open", 0, 0, 0, 0, HOST, HOST, b"")
    record = bytearray(encode_record(fields, 0, physical_offset, 0))
    head = record[:BODY_OFFSET]
    head[0:4] = (len(head) + body_bytes + len(tail)).to_bytes(4, "big")
    head[-4:] = body_bytes.to_bytes(4, "big")
    return bytes(head)


async def test_a_record_that_a_sender_has_put_around_others_is_not_read(tmp_path: Path) -> None:
    """Its beginning is in the body of one message, and its end in the body of a later one."""
    tail = b"\x04Open\x00\x00"
    async with guarded(tmp_path, is_on=True) as broker:
        first = send_raw(broker, "Open", b"")
        inner = end_of(broker, first) + BODY_OFFSET
        send_raw(broker, "Open", begun_record(inner, 2_000, tail))
        sealed = send_raw(broker, "Sealed", b"sealed")
        filler = inner + 2_000 - end_of(broker, sealed)
        send_raw(broker, "Open", b"." * filler + tail)
        whole = view(broker, inner, "adminKey1")
        assert b"sealed" in bytes(whole.body), "the record is well-formed"
        assert view(broker, inner).remark == f"can not find message by the offset, {inner}"
        assert send_back(broker, inner).remark == f"look message by offset failed, {inner}"
        assert decode_record(view(broker, first).body).topic == "Open"


async def test_positions_are_listed_only_with_the_right_to_the_topic(tmp_path: Path) -> None:
    async with guarded(tmp_path, is_on=True) as broker:
        for topic in TOPICS[:3]:
            store(broker, topic)

        def listed(topic: str, access_key: str) -> Any:
            header = QueryConsumeQueue(topic, 1, 0, 10)
            return ask(broker, call_of(Code.QUERY_CONSUME_QUEUE, header, access_key))

        assert b"physicOffset" in listed("Open", "userKey1").body
        for topic in TOPICS[1:3]:
            refused, missing = listed(topic, "userKey1"), listed("Nothing", "userKey1")
            assert (refused.code, refused.body) == (missing.code, b"")
            assert refused.remark == missing.remark.replace("Nothing", topic)
            assert b"physicOffset" in listed(topic, "adminKey1").body


async def test_ending_transactions_tells_nothing_about_positions(tmp_path: Path) -> None:
    half = "UNIQ_KEY\x01K\x02TRAN_MSG\x01true\x02PGROUP\x01P"
    async with guarded(tmp_path, is_on=True) as broker:
        places = [
            store(broker, "Open"), store(broker, "Sealed"), send_raw(broker, "Sealed", b"", half)
        ]  # fmt: skip

        def end(place: int, group: str) -> str | None:
            header = EndTransaction(group, 0, place, TRANSACTION_ROLLBACK, "K")
            reply = ask(broker, call_of(Code.END_TRANSACTION, header, "userKey1"))
            assert reply.code == 1
            return reply.remark

        nothing = end(places[0] + 1, "P")
        for group in ("P", "Other"):
            assert {end(place, group) for place in places} == {nothing}
        own = send_raw(broker, "Open", b"", half)
        assert end(own, "Other") == "The producer group wrong"


@pytest.mark.parametrize("topic", ["Open", "RMQ_SYS_TRACE_TOPIC", "Open_REPLY_TOPIC"])
async def test_a_reply_needs_the_right_to_the_reply_topic_whatever_its_topic(
    tmp_path: Path, topic: str
) -> None:
    async with guarded(tmp_path, is_on=False) as broker:
        broker.tables.topics.create(topic, queue_nums=1)
        asker = FakePeer("127.0.0.1:50001")
        asker.answers[326] = Response(0, None, {}, b"", None)
        broker.clients.producers.register(
            "P", Client(asker, "asker", language=0, version=401, seen_ms=0)
        )
        text = "MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01asker"
        header = SendReplyMessageV2("P", topic, "TBW102", 4, 0, 0, 0, 0, text)
        call = call_of(Code.SEND_REPLY_MESSAGE_V2, header, "userKey1")
        refused = await replies.send_reply_message(broker, call)
        assert refused.remark is not None
        assert "No default permission for topic:PeersCluster_REPLY_TOPIC" in refused.remark
        assert asker.asked == []
