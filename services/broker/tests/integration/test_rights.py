# SPDX-License-Identifier: Apache-2.0
"""An account with DENY for everything sends every request, and changes nothing on a broker."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq.broker.handlers import HANDLERS
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.commands.acl import (
    DeleteAclConfig,
    UpdateAndCreateAclConfig,
    UpdateGlobalWhiteAddrsConfig,
)
from cometmq.remoting.commands.clients import GetConsumerListByGroup
from cometmq.remoting.commands.offsets import GetMaxOffset
from cometmq.remoting.commands.send import RecallMessage, SendMessageReply, SendMessageV2
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.commands.transactions import EndTransaction
from cometmq.remoting.errors import CommandError
from cometmq.remoting.message.flags import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from cometmq.remoting.message.ids import parse_offset_message_id
from cometmq.remoting.message.recall_handle import RecallHandle
from cometmq.remoting.signature import SessionCredentials, signing
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings
from cometmq.runtime.clock import SystemClock
from cometmq.testing.broker.process import BrokerProcess

TIMEOUT_MS: Final = 20_000
ACCOUNTS: Final = """\
accounts:
- {accessKey: admin-key, secretKey: admin-secret, admin: true}
- accessKey: nothing-key
  secretKey: nothing-secret
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
"""
ADMIN: Final = SessionCredentials("admin-key", "admin-secret")
NOTHING: Final = SessionCredentials("nothing-key", "nothing-secret")
HALF: Final = "UNIQ_KEY\x01K\x02TRAN_MSG\x01true\x02PGROUP\x01P"
ACL_CODES: Final[dict[type[msgspec.Struct], Code]] = {
    UpdateAndCreateAclConfig: Code.UPDATE_AND_CREATE_ACL_CONFIG,
    DeleteAclConfig: Code.DELETE_ACL_CONFIG,
    UpdateGlobalWhiteAddrsConfig: Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
}
STATE: Final = (
    Code.GET_ALL_TOPIC_CONFIG, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Code.GET_ALL_CONSUMER_OFFSET,
    Code.GET_ALL_DELAY_OFFSET, Code.GET_ALL_PRODUCER_INFO, Code.GET_BROKER_CONFIG,
    Code.GET_BROKER_CLUSTER_ACL_CONFIG,
)  # fmt: skip
FIELDS: Final = {
    "topic": "Orders", "a": "P", "b": "Orders", "c": "TBW102", "d": "4", "e": "0", "f": "0",
    "g": "0", "h": "0", "i": "", "producerGroup": "P", "defaultTopic": "TBW102", "key": "K",
    "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0", "bornTimestamp": "0", "flag": "0",
    "queueOffset": "0", "maxMsgNums": "32", "commitOffset": "7", "suspendTimeoutMillis": "0",
    "subVersion": "0", "consumerGroup": "G", "group": "G", "groupName": "G", "offset": "0",
    "delayLevel": "0", "clientID": "stranger", "clientId": "stranger", "timestamp": "0",
    "isForce": "true", "srcGroup": "G", "destGroup": "G2", "offline": "false", "perm": "6",
    "readQueueNums": "1", "writeQueueNums": "1", "topicFilterType": "SINGLE_TAG", "order": "false",
    "topicSysFlag": "0", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1", "count": "1",
    "statsName": "TOPIC_PUT_NUMS", "statsKey": "Orders", "filterServerAddr": "127.0.0.1:1",
    "accessKey": "nothing-key", "secretKey": "other-secret", "index": "0",
}  # fmt: skip
BEAT: Final = (
    b'{"clientID":"stranger","producerDataSet":[{"groupName":"P"}],"consumerDataSet":[{'
    b'"groupName":"G","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
    b'"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[{"topic":"Orders",'
    b'"subString":"*"}]}]}'
)
LOCK: Final = (
    b'{"clientId":"%b","consumerGroup":"G","mqSet":[{"brokerName":"broker-a","queueId":0,'
    b'"topic":"Orders"}]}'
)
BODIES: Final[dict[int, bytes]] = {
    Code.HEART_BEAT: BEAT,
    Code.LOCK_BATCH_MQ: LOCK % b"stranger",
    Code.UNLOCK_BATCH_MQ: LOCK % b"owner",
    Code.UPDATE_BROKER_CONFIG: b"fileReservedTime=1",
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: b'{"groupName":"G","consumeEnable":false}',
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: (
        b'{"groupConfigList":[{"groupName":"G","consumeEnable":false}]}'
    ),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: b'{"topicConfigList":[{"topicName":"Orders","perm":4}]}',
}


@dataclass
class Caller:
    """Sends requests of one account to a broker."""

    address: str
    client: RemotingClient

    async def ask(self, code: int, header: msgspec.Struct | None = None, body: bytes = b"") -> Any:
        return await self.client.invoke(self.address, code, header, body, timeout_ms=TIMEOUT_MS)

    async def refused(
        self, code: int, header: msgspec.Struct | None = None, body: bytes = b""
    ) -> str:
        """Return the remark of a refusal, or an empty string if the request succeeds."""
        try:
            await self.ask(code, header, body)
        except CommandError as error:
            return f"{error.code} {error.remark}"
        return ""


def header_of(code: int) -> Any:
    """Return a header with plausible values for every field; None if the code has none."""
    kind = COMMANDS[code].header_type
    if kind is NoHeader:
        return None
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    return msgspec.convert({it: FIELDS.get(it, "1") for it in names}, kind, strict=False)


@asynccontextmanager
async def calling(address: str, credentials: SessionCredentials) -> AsyncIterator[Caller]:
    client = RemotingClient(
        ClientSettings(), clock_ms=SystemClock().monotonic_ms, before=[signing(credentials)]
    )
    try:
        yield Caller(address, client)
    finally:
        await client.close()


async def state_of(admin: Caller) -> dict[str, object]:
    found: dict[str, object] = {code.name: (await admin.ask(code)).body for code in STATE}
    for topic in ("Orders", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"):
        try:
            found[topic] = (await admin.ask(Code.GET_MAX_OFFSET, GetMaxOffset(topic, 0))).header
        except CommandError as error:
            found[topic] = error.code
    locks = await admin.ask(Code.LOCK_BATCH_MQ, body=LOCK % b"owner")
    found["lock of its owner"] = locks.body
    return found


async def half_message(admin: Caller) -> EndTransaction:
    header = SendMessageV2("P", "Orders", "TBW102", 4, 0, 4, 0, 0, HALF)
    reply = (await admin.ask(Code.SEND_MESSAGE_V2, header, b"body")).header
    assert isinstance(reply, SendMessageReply)
    place = parse_offset_message_id(reply.msg_id).physical_offset
    return EndTransaction("P", reply.queue_offset, place, TRANSACTION_COMMIT, "K")


async def delayed_message(admin: Caller) -> RecallMessage:
    text = "UNIQ_KEY\x01D\x02DELAY\x0118"
    header = SendMessageV2("P", "Orders", "TBW102", 4, 0, 0, 0, 0, text)
    await admin.ask(Code.SEND_MESSAGE_V2, header, b"body")
    return RecallMessage("Orders", RecallHandle("Orders", "broker-a", 0, "D").encode())


async def test_an_account_with_deny_for_everything_changes_nothing(tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.yml"
    accounts.write_text(ACCOUNTS)
    broker = BrokerProcess(tmp_path, aclEnable="true", aclFile=str(accounts))
    async with broker, calling(broker.address, ADMIN) as admin:
        end = await half_message(admin)
        recall = await delayed_message(admin)
        rollback = msgspec.structs.replace(end, commit_or_rollback=TRANSACTION_ROLLBACK)
        async with calling(broker.address, NOTHING) as nobody:
            before = await state_of(admin)
            for code in sorted(HANDLERS):
                await nobody.refused(code, header_of(code), BODIES.get(code, b"x"))
            for wanted in (end, rollback):
                remark = await nobody.refused(Code.END_TRANSACTION, wanted)
                assert "No default permission for topic:Orders" in remark
            remark = await nobody.refused(Code.RECALL_MESSAGE, recall)
            assert "No default permission for topic:Orders" in remark
            late = (await admin.ask(Code.LOCK_BATCH_MQ, body=LOCK % b"late")).body
            assert b"Orders" not in bytes(late), "its owner's lock is gone"
            assert await state_of(admin) == before
        assert (await admin.ask(Code.END_TRANSACTION, end)).code == 0  # its owner still can
        assert (await admin.ask(Code.RECALL_MESSAGE, recall)).code == 0
        assert await state_of(admin) != before


MEMBER: Final = UpdateAndCreateAclConfig(
    "member-key", "member-secret", default_topic_perm="PUB", default_group_perm="SUB"
)
"""An account that sends and consumes."""


def changed(**fields: str) -> UpdateAndCreateAclConfig:
    return msgspec.structs.replace(MEMBER, **fields)


CONSUMING: Final = (
    b'{"clientID":"member","producerDataSet":[],"consumerDataSet":[{"groupName":"G",'
    b'"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
    b'"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[]}]}'
)
PRODUCING: Final = b'{"clientID":"member","producerDataSet":[{"groupName":"P"}]}'


async def members_of(admin: Caller) -> tuple[bool, bool]:
    """Return whether the producer group has a member, and whether the consumer group has one."""
    body = (await admin.ask(Code.GET_ALL_PRODUCER_INFO)).body
    produces = "P" in msgspec.json.decode(bytes(body))["data"]
    absent = await admin.refused(Code.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroup("G"))
    return produces, not absent


async def test_connections_end_when_their_account_loses_the_right_to_their_group(
    tmp_path: Path,
) -> None:
    """The broker sends replies and questions about transactions to members unasked."""
    accounts = tmp_path / "accounts.yml"
    accounts.write_text(ACCOUNTS)
    broker = BrokerProcess(tmp_path, aclEnable="true", aclFile=str(accounts))
    member = SessionCredentials("member-key", "member-secret")
    changes: dict[tuple[bool, bool], list[msgspec.Struct]] = {
        (True, True): [
            changed(default_topic_perm="PUB|SUB"),
            DeleteAclConfig("nothing-key"),
            UpdateGlobalWhiteAddrsConfig("10.9.8.7"),
        ],
        (False, True): [changed(default_topic_perm="SUB")],
        (True, False): [changed(default_group_perm="DENY")],
        (False, False): [changed(secret_key="another-secret"), DeleteAclConfig("member-key")],
    }
    async with broker, calling(broker.address, ADMIN) as admin:
        for left, each in changes.items():
            for change in each:
                await admin.ask(ACL_CODES[type(MEMBER)], MEMBER)
                async with (
                    calling(broker.address, member) as producer,
                    calling(broker.address, member) as consumer,
                ):
                    await producer.ask(Code.HEART_BEAT, body=PRODUCING)
                    await consumer.ask(Code.HEART_BEAT, body=CONSUMING)
                    await admin.ask(ACL_CODES[type(change)], change)
                    assert await members_of(admin) == left, change


async def test_members_without_an_account_leave_with_their_white_address(tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.yml"
    accounts.write_text(f"globalWhiteRemoteAddresses: [127.0.0.1]\n{ACCOUNTS}")
    broker = BrokerProcess(tmp_path, aclEnable="true", aclFile=str(accounts))
    async with (
        broker,
        calling(broker.address, ADMIN) as admin,
        calling(broker.address, NOTHING) as member,
    ):
        await member.ask(Code.HEART_BEAT, body=PRODUCING)
        assert await members_of(admin) == (True, False)
        change = UpdateGlobalWhiteAddrsConfig("10.9.8.7")
        await admin.ask(ACL_CODES[type(change)], change)
        assert await members_of(admin) == (False, False)
