# SPDX-License-Identifier: Apache-2.0

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.broker.acl.check import (
    ADMIN_CODES,
    ADMIN_CODES_OF_5,
    NEEDS,
    NEEDS_OF_5,
    NO_RULES,
    UNCHANGING,
    AccessControl,
    Rules,
)
from cometmq.remoting.bodies.acl import AclAccount
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Call, Request
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.connection import Codec, Connection
from cometmq.remoting.errors import ServerError
from cometmq.remoting.signature import FORWARDED, SessionCredentials, Signer, signing
from cometmq.remoting.transport.bodies import BODY_BYTES_MAX
from cometmq.remoting.transport.flow.places import requester_of
from cometmq.runtime.acl.accounts import SHARED_TOPICS, Account, Accounts
from cometmq.runtime.acl.addresses import Addresses
from cometmq.testing.broker.replay import call_of, expected_answer
from cometmq.testing.broker.scripted import ScriptedBroker, frames_of
from cometmq.testing.remoting.golden import Exchange, load_exchanges
from cometmq.testing.remoting.peer import FakePeer

NOW_MS = 1_700_000_000_000
ROCKETMQ_4 = Rules(is_rocketmq_4=True)
GOLDEN = Path(__file__).parents[4] / "tests" / "golden"
ADMIN = AclAccount("adminKey1", admin=True, secret_key="adminSecret1")
USER = AclAccount(
    "userKey1",
    default_group_perm="SUB",
    default_topic_perm="DENY",
    group_perms=["AclDenied=DENY"],
    secret_key="userSecret1",
    topic_perms=["AclTopic=PUB|SUB", "AclReadOnly=SUB"],
)
ACL = "org.apache.rocketmq.acl.common.AclException: "
PLACE = "org.apache.rocketmq.acl.plain.PlainPermissionManager."
SEND = {
    "producerGroup": "P", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
    "sysFlag": "0", "bornTimestamp": "0", "flag": "0",
}  # fmt: skip
RECALL = {"topic": "T", "recallHandle": "none"}
SEND_V2 = {"a": "P", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}
PULL = {
    "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "0", "commitOffset": "0",
    "suspendTimeoutMillis": "0", "subVersion": "0",
}  # fmt: skip
QUERY = {"key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"}
BACK = {"offset": "0", "delayLevel": "0"}
BEAT = b'{"clientID":"c","producerDataSet":[],"consumerDataSet":[{"groupName":"%b",'
BEAT += b'"subscriptionDataSet":[{"topic":"%b","subString":"*"}]}]}'
LOCK = (
    b'{"clientId":"c","consumerGroup":"%b","mqSet":[{"brokerName":"b","queueId":0,"topic":"%b"}]}'
)


def control(
    accounts: Iterable[AclAccount] = (ADMIN, USER), white: str = "", rules: Rules = NO_RULES
) -> AccessControl:
    built = [Account(account) for account in accounts]
    found = Accounts(built, [Addresses(white)], version=DataVersion(), versions={})
    return AccessControl(found, clock_ms=lambda: NOW_MS, rules=rules)


def received(code: int, ext: dict[str, str], body: bytes = b"") -> Call[Any]:
    codec = Codec(COMMANDS)
    sender, receiver = Connection(codec, FakePeer()), Connection(codec, FakePeer())
    sender.send(Request(code, None, body, ext))
    calls = receiver.receive(bytes(sender.take()), 0)
    # A request with missing fields is not returned but attached to a fault.
    return calls[0] if calls else receiver.faults[0].call


def signed(
    code: int,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
    *,
    account: AclAccount = USER,
    secret: str = "",
) -> Call[Any]:
    fields = dict(ext or {})
    credentials = SessionCredentials(account.access_key, secret or account.secret_key or "")
    signing(credentials)(code, fields, body)
    return received(code, fields, body)


def refusal(call: Call[Any], access: AccessControl | None = None) -> str | None:
    access = access or control()
    try:
        access.check(None, call)
    except ServerError as error:
        return error.remark
    return None


def denied(resource: str) -> str:
    return f"{ACL}No default permission for {resource}, "


@pytest.mark.parametrize(
    "exchange",
    [one for one in load_exchanges(GOLDEN, "acl.jsonl") if one.receiver == "broker"],
    ids=lambda one: one.name,
)
def test_captured_requests_get_the_java_brokers_verdict(exchange: Exchange) -> None:
    answer = expected_answer(exchange) if exchange.response is not None else None
    remark = answer.remark if answer and "AclException" in (answer.remark or "") else None
    if exchange.request.code == Code.QUERY_MESSAGE:
        remark = None  # see cometmq.remoting.signature

    assert refusal(call_of(exchange.request, FakePeer())) == remark


@pytest.mark.parametrize("number", range(50, 55))
def test_captured_administration_is_allowed(number: int) -> None:
    requests = [exchange.request for exchange in load_exchanges(GOLDEN, f"0{number}-*.jsonl")]
    signed = [request for request in requests if "AccessKey" in request.ext]
    assert signed
    assert [refusal(call_of(request, FakePeer())) for request in signed] == [None] * len(signed)


def test_refusals_are_counted() -> None:
    access = control()
    refusal(received(Code.GET_MAX_OFFSET, {}), access)
    refusal(signed(Code.GET_MAX_OFFSET), access)
    assert access.refused_count == 1


def test_the_order_of_checks_and_their_remarks() -> None:
    unsigned = received(Code.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    assert refusal(unsigned) == (
        f"{ACL}No accessKey is configured, {PLACE}validate(PlainPermissionManager.java:663)"
    )
    stranger = AclAccount("stranger", secret_key="no matter")
    assert refusal(signed(Code.GET_MAX_OFFSET, account=stranger)) == (
        f"{ACL}No acl config for stranger, {PLACE}validate(PlainPermissionManager.java:667)"
    )
    assert refusal(signed(Code.UPDATE_BROKER_CONFIG, secret="wrong secret")) == (
        f"{ACL}Check signature failed for accessKey=userKey1, "
        f"{PLACE}validate(PlainPermissionManager.java:683)"
    )
    assert refusal(signed(Code.UPDATE_BROKER_CONFIG)) == (
        f"{ACL}Need admin permission for request code=25, but accessKey=userKey1 is not, "
        f"{PLACE}checkPerm(PlainPermissionManager.java:580)"
    )


@pytest.mark.parametrize("signature", [b'"\xed\xa0\x80"', b'"\xff"'])
async def test_a_signature_that_is_no_text_is_refused(signature: bytes) -> None:
    """It is not among the fields of the command, so the typed header has left it out."""
    scripted = ScriptedBroker(accounts=control().accounts)
    peer, wire = scripted.connect()
    head = b'{"code":36,"opaque":1,"extFields":{"offset":"0","group":"G","delayLevel":"0",'
    head += b'"AccessKey":"userKey1","Signature":' + signature + b"}}"
    peer.data_received(struct.pack(">II", 4 + len(head), len(head)) + head)
    await scripted.settle()
    ((_, answer, _),) = frames_of(bytes(wire.sent))
    assert msgspec.json.decode(answer)["code"] == ResponseCode.SYSTEM_ERROR
    assert not scripted.hub.stats.handler_failures


def test_a_modified_body_is_refused() -> None:
    call = signed(Code.UPDATE_BROKER_CONFIG, body=b"a=1", account=ADMIN)
    assert refusal(call) is None
    call.body = b"a=2"
    assert "Check signature failed" in (refusal(call) or "")


def test_the_text_of_a_captured_send_can_become_a_deletion_as_in_rocketmq() -> None:
    """The limit of RocketMQ's signatures that SECURITY.md tells."""
    credentials = SessionCredentials("adminKey1", "adminSecret1")
    send, body = {**SEND, "topic": "T"}, b"what about Orders"
    Signer("adminSecret1").add_to(send, body, credentials)
    values = [send[name] for name in sorted(send) if name not in ("AccessKey", "Signature")]
    before = ("".join(values) + body.decode()).removesuffix("Orders")
    captured = {name: send[name] for name in ("AccessKey", "Signature")}
    control().check(
        None,
        received(Code.DELETE_TOPIC_IN_BROKER, {**captured, "filler": before, "topic": "Orders"}),
    )
    with pytest.raises(ServerError, match="Check signature failed"):
        control().check(
            None,
            received(Code.DELETE_TOPIC_IN_BROKER, {**captured, "filler": before, "topic": "Other"}),
        )


def test_only_a_verified_account_owns_a_connection() -> None:
    forged, call = signed(Code.GET_MAX_OFFSET, secret="wrong secret"), signed(Code.GET_MAX_OFFSET)
    for one in (forged, call):
        refusal(one)
    owners = [requester_of(one.peer).owner for one in (forged, call)]
    assert owners == [bytes([127, 0, 0, 1]), USER.access_key]


def test_white_addresses_need_no_account_and_no_right() -> None:
    unsigned = received(Code.UPDATE_BROKER_CONFIG, {})
    assert refusal(unsigned, control(white="127.0.0.*")) is None
    assert refusal(unsigned, control(white="10.0.0.*")) is not None


def test_an_account_s_white_address_needs_no_signature() -> None:
    account = AclAccount("remote-1", secret_key="secret-1", white_remote_address="127.0.0.1")
    unsigned = received(Code.UPDATE_BROKER_CONFIG, {"AccessKey": "remote-1"})
    assert refusal(unsigned, control([account])) is None
    account.white_remote_address = "127.0.0.2"
    assert "Check signature failed" in (refusal(unsigned, control([account])) or "")


@pytest.mark.parametrize(
    ("code", "ext", "body", "resource"),
    [
        (Code.SEND_MESSAGE, {**SEND, "topic": "AclReadOnly"}, b"m", "topic:AclReadOnly"),
        (Code.SEND_MESSAGE, {**SEND, "topic": "%RETRY%AclDenied"}, b"m", "group:AclDenied"),
        (Code.SEND_MESSAGE_V2, {**SEND_V2, "b": "AclReadOnly"}, b"m", "topic:AclReadOnly"),
        (Code.SEND_MESSAGE_V2, {**SEND_V2, "b": "%RETRY%AclDenied"}, b"m", "group:AclDenied"),
        (Code.SEND_BATCH_MESSAGE, {**SEND_V2, "b": "Other"}, b"m", "topic:Other"),
        (Code.RECALL_MESSAGE, {**RECALL, "topic": "Other"}, b"", "topic:Other"),
        (Code.SEND_REPLY_MESSAGE, {**SEND, "topic": "Other"}, b"m", "topic:Other"),
        (Code.SEND_REPLY_MESSAGE_V2, {**SEND_V2, "b": "Other"}, b"m", "topic:Other"),
        (Code.CONSUMER_SEND_MSG_BACK, {**BACK, "group": "AclDenied"}, b"", "group:AclDenied"),
        (Code.PULL_MESSAGE, {**PULL, "topic": "Other", "consumerGroup": "G"}, b"", "topic:Other"),
        (
            Code.PULL_MESSAGE, {**PULL, "topic": "AclTopic", "consumerGroup": "AclDenied"}, b"",
            "group:AclDenied",
        ),
        (
            Code.LITE_PULL_MESSAGE, {**PULL, "topic": "Other", "consumerGroup": "G"}, b"",
            "topic:Other",
        ),
        (Code.QUERY_MESSAGE, {**QUERY, "topic": "Other"}, b"", "topic:Other"),
        (Code.HEART_BEAT, {}, BEAT % (b"AclDenied", b"AclTopic"), "group:AclDenied"),
        (Code.HEART_BEAT, {}, BEAT % (b"G", b"Other"), "topic:Other"),
        (
            Code.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "AclDenied"}, b"",
            "group:AclDenied",
        ),
        (
            Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "AclDenied"}, b"",
            "group:AclDenied",
        ),
        (
            Code.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "G", "topic": "Other", "queueId": "0", "commitOffset": "1"}, b"",
            "topic:Other",
        ),
        (
            Code.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "AclDenied", "topic": "AclTopic", "queueId": "0",
             "commitOffset": "1"}, b"",
            "group:AclDenied",
        ),
        (Code.LOCK_BATCH_MQ, {}, LOCK % (b"AclDenied", b"AclTopic"), "group:AclDenied"),
        (Code.LOCK_BATCH_MQ, {}, LOCK % (b"G", b"Other"), "topic:Other"),
        (Code.UNLOCK_BATCH_MQ, {}, LOCK % (b"AclDenied", b"AclTopic"), "group:AclDenied"),
        (Code.UNLOCK_BATCH_MQ, {}, LOCK % (b"G", b"Other"), "topic:Other"),
        (
            Code.GET_CONSUMER_RUNNING_INFO,
            {"consumerGroup": "AclDenied", "clientId": "c", "jstackEnable": "true"}, b"",
            "group:AclDenied",
        ),
        (
            Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            {"topic": "AclTopic", "group": "AclDenied"}, b"",
            "group:AclDenied",
        ),
    ],
)  # fmt: skip
def test_every_rule(code: int, ext: dict[str, str], body: bytes, resource: str) -> None:
    assert (refusal(signed(code, ext, body)) or "").startswith(denied(resource))

    kind, _, name = resource.partition(":")
    allowed = AclAccount(
        "userKey1",
        default_topic_perm="SUB",
        default_group_perm="SUB",
        secret_key="userSecret1",
        topic_perms=[f"{name}=PUB|SUB"] if kind == "topic" else [],
        group_perms=[f"{name}=SUB"] if kind == "group" else [],
    )
    assert refusal(signed(code, ext, body), control([allowed])) is None


def test_every_row_of_the_table_is_tested() -> None:
    rows = test_every_rule.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {row[0] for row in rows} == {*NEEDS, *NEEDS_OF_5}


@pytest.mark.parametrize("code", sorted(ADMIN_CODES | ADMIN_CODES_OF_5))
def test_admin_codes_are_refused_without_the_admin_role(code: int) -> None:
    assert f"Need admin permission for request code={code}" in (refusal(signed(code)) or "")
    assert refusal(signed(code, account=ADMIN)) is None


def test_explicit_rights_restrict_an_administrator() -> None:
    bound = AclAccount("adminKey1", admin=True, secret_key="adminSecret1", topic_perms=["A=PUB"])
    to_a, to_b = ({**SEND_V2, "b": topic} for topic in "AB")
    assert refusal(signed(310, to_a, account=ADMIN), control([bound])) is None
    assert refusal(signed(310, to_b, account=ADMIN), control([bound])) is not None
    assert refusal(signed(310, to_b, account=ADMIN)) is None


def test_every_account_may_send_traces() -> None:
    trace = {**SEND_V2, "b": "RMQ_SYS_TRACE_TOPIC"}
    assert refusal(signed(Code.SEND_MESSAGE_V2, trace)) is None
    assert refusal(signed(Code.SEND_BATCH_MESSAGE, trace)) is None
    assert refusal(signed(Code.QUERY_MESSAGE, {**QUERY, "topic": "RMQ_SYS_TRACE_TOPIC"}))


def test_an_account_without_rights_may_not_send_traces() -> None:
    trace = signed(Code.SEND_MESSAGE_V2, {**SEND_V2, "b": "RMQ_SYS_TRACE_TOPIC"})
    nothing = AclAccount("userKey1", secret_key="userSecret1")
    assert refusal(trace, control([nothing])) is not None
    assert refusal(trace, control([nothing], rules=ROCKETMQ_4)) is None
    refused = AclAccount(**(vars_of(USER) | {"topic_perms": ["RMQ_SYS_TRACE_TOPIC=DENY"]}))
    assert refusal(trace, control([refused])) is not None


def vars_of(account: AclAccount) -> dict[str, Any]:
    return {name: getattr(account, name) for name in account.__struct_fields__}


def test_a_reply_needs_a_right_to_the_reply_topic_except_with_rights_of_4() -> None:
    reply = signed(Code.SEND_REPLY_MESSAGE_V2, {**SEND_V2, "b": "DefaultCluster_REPLY_TOPIC"})
    assert (refusal(reply) or "").startswith(denied("topic:DefaultCluster_REPLY_TOPIC"))
    assert refusal(reply, control(rules=ROCKETMQ_4)) is None


@pytest.mark.parametrize("code", sorted({*NEEDS_OF_5, *ADMIN_CODES_OF_5} - NEEDS.keys()))
def test_rights_of_4_demand_only_a_signature(code: int) -> None:
    nothing = AclAccount("userKey1", secret_key="userSecret1")
    call = signed(code, {**NAMES, **PULL}, BODIES.get(code, b""))
    assert refusal(call, control([nothing], rules=ROCKETMQ_4)) is None
    assert refusal(call, control([nothing])) is not None


PRODUCERS = b'{"clientID":"c","consumerDataSet":[],"producerDataSet":[{"groupName":"%b"}]}'


def test_only_an_account_that_may_send_joins_a_producer_group() -> None:
    """The broker asks the members of a producer group about half messages and shows them."""
    reader = AclAccount(**(vars_of(USER) | {"topic_perms": ["AclReadOnly=SUB"]}))
    beat = signed(Code.HEART_BEAT, body=PRODUCERS % b"Shop")
    assert (refusal(beat, control([reader])) or "").startswith(denied("producer group:Shop"))
    assert refusal(beat, control([reader], rules=ROCKETMQ_4)) is None
    assert refusal(beat) is None  # AclTopic=PUB|SUB
    inner = signed(Code.HEART_BEAT, body=PRODUCERS % b"CLIENT_INNER_PRODUCER")
    assert refusal(inner, control([reader])) is None


NAMES = {
    "topic": "T", "b": "T", "consumerGroup": "G", "group": "G", "clientId": "c", "clientID": "c",
    "queueId": "0", "commitOffset": "1", "jstackEnable": "true",
}  # fmt: skip
BODIES: dict[int, bytes] = {
    Code.HEART_BEAT: BEAT % (b"G", b"T"),
    Code.LOCK_BATCH_MQ: LOCK % (b"G", b"T"),
    Code.UNLOCK_BATCH_MQ: LOCK % (b"G", b"T"),
}
ACCOUNTS = {
    "nothing": {},
    "consumes": {"default_topic_perm": "SUB", "default_group_perm": "SUB"},
    "sends": {"default_topic_perm": "PUB"},
    "both": {"default_topic_perm": "PUB|SUB", "default_group_perm": "SUB"},
    "admin": {"admin": True},
}
SENDS = {
    Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.SEND_REPLY_MESSAGE,
    Code.SEND_REPLY_MESSAGE_V2, Code.RECALL_MESSAGE,
}  # fmt: skip
CONSUMES = {*NEEDS, *NEEDS_OF_5} - SENDS
ALLOWED = {
    "nothing": set(),
    "consumes": CONSUMES,
    "sends": SENDS,
    "both": SENDS | CONSUMES,
    "admin": SENDS | CONSUMES | ADMIN_CODES | ADMIN_CODES_OF_5,
}


@pytest.mark.parametrize("name", ACCOUNTS)
def test_each_account_may_change_what_its_rights_cover(name: str) -> None:
    """Every request that changes something, for every kind of account."""
    account = AclAccount("userKey1", secret_key="userSecret1", **ACCOUNTS[name])  # type: ignore[arg-type]
    access = control([account])
    changing = sorted(COMMANDS.keys() & {*NEEDS, *NEEDS_OF_5, *ADMIN_CODES, *ADMIN_CODES_OF_5})
    fields: dict[int, dict[str, str]] = {
        code: (SEND_V2 if code in (310, 320, 325) else SEND) | RECALL for code in SENDS
    }
    others = {**PULL, **QUERY, **BACK}
    allowed = {
        code for code in changing
        if refusal(
            signed(code, fields.get(code, others) | NAMES, BODIES.get(code, b"m")), access
        ) is None
    }  # fmt: skip
    assert allowed == ALLOWED[name]


@pytest.mark.parametrize("code", sorted(UNCHANGING))
def test_every_account_may_read_what_changes_nothing(code: int) -> None:
    nothing = AclAccount("userKey1", secret_key="userSecret1")
    assert refusal(signed(code), control([nothing])) is None


@pytest.mark.parametrize(("age_ms", "is_refused"), [(0, False), (60_000, False), (60_001, True),
                                                    (-60_000, False), (-60_001, True)])  # fmt: skip
def test_a_send_that_was_signed_long_ago_is_refused_on_request(
    age_ms: int, is_refused: bool
) -> None:
    born = {**SEND_V2, "b": "AclTopic", "g": str(NOW_MS - age_ms)}
    call = signed(Code.SEND_MESSAGE_V2, born)
    assert refusal(call) is None
    found = refusal(call, control(rules=Rules(signed_age_ms_max=60_000)))
    assert (found is not None and "aclSignedAgeMax allows 60000 ms" in found) is is_refused


@pytest.mark.parametrize(
    ("code", "ext", "resource"),
    [
        *(
            (Code.PULL_MESSAGE, {**PULL, "topic": topic, "consumerGroup": "G"}, f"topic:{topic}")
            for topic in sorted(SHARED_TOPICS)
        ),
        (
            Code.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "CID_RMQ_SYS_TRANS", "topic": "A", "queueId": "0",
             "commitOffset": "1"},
            "group:CID_RMQ_SYS_TRANS",
        ),
    ],
)  # fmt: skip
def test_default_rights_exclude_shared_topics(
    code: int, ext: dict[str, str], resource: str
) -> None:
    """The shared topics hold half and delayed messages of topics that the account cannot read."""
    fields: dict[str, Any] = {"access_key": "userKey1", "secret_key": "userSecret1"}
    every = AclAccount(**fields, default_topic_perm="PUB|SUB", default_group_perm="SUB")
    assert (refusal(signed(code, ext), control([every])) or "").startswith(denied(resource))
    kind, _, name = resource.partition(":")
    every.topic_perms, every.group_perms = (
        ([f"{name}=SUB"], []) if kind == "topic" else ([], [f"{name}=SUB"])
    )
    assert refusal(signed(code, ext), control([every])) is None
    assert refusal(signed(code, ext, account=ADMIN)) is None


def test_missing_and_denied_rights_have_different_remarks() -> None:
    missing = refusal(signed(Code.SEND_MESSAGE_V2, {**SEND_V2, "b": "Other"})) or ""
    given = refusal(signed(Code.SEND_MESSAGE_V2, {**SEND_V2, "b": "AclReadOnly"})) or ""
    assert missing.endswith("checkPerm(PlainPermissionManager.java:605)")
    assert given.endswith("checkPerm(PlainPermissionManager.java:610)")


def test_an_undecodable_heartbeat_is_answered() -> None:
    assert refusal(signed(Code.HEART_BEAT, {}, b"{")) is not None


@pytest.mark.parametrize("white", ["127.0.0.1", ""])
def test_the_address_of_a_forwarding_broker_grants_nothing(white: str) -> None:
    """A follower checks what the header names; the master, the topic of a half message."""
    user = msgspec.structs.replace(USER, white_remote_address="127.0.0.1")
    access = control([user], white=white)
    end = {"producerGroup": "P", "tranStateTableOffset": "0", "commitLogOffset": "0",
           "commitOrRollback": "8"}  # fmt: skip
    assert access.writer(signed(37, end)) is None, "the client itself has this address"

    forwarded = signed(37, {**end, FORWARDED: "true"})
    check = access.writer(forwarded)
    assert check is not None
    with pytest.raises(ServerError, match="No default permission for topic:Secret"):
        check("Secret")

    assert refusal(received(37, {**end, FORWARDED: "true"}), control([user], "127.0.0.1")) is None


@pytest.mark.parametrize("code", [Code.HEART_BEAT, Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ])
def test_a_large_body_is_not_decoded_for_its_rights(code: Code) -> None:
    """The handler refuses it, but this check comes first: 15 MB held the loop for half a second."""
    body = b'{"consumerGroup":"g","clientId":"%b","mqSet":[]}' % bytes(b"c" * BODY_BYTES_MAX)
    remark = refusal(signed(code, body=body))
    assert remark is not None
    assert "may have at most 1048576 bytes" in remark
