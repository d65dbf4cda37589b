# SPDX-License-Identifier: Apache-2.0
"""Explanations of codes, events and remarks."""

import inspect
import re
from collections.abc import Collection

import pytest

from cometmq.broker import limits as broker_limits
from cometmq.broker import refusals
from cometmq.broker.names import group_fault
from cometmq.broker.settings import BrokerSettings
from cometmq.namesrv import limits as namesrv_limits
from cometmq.remoting import remarks
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.refusals import plain_remark
from cometmq.runtime.limits import Limits
from cometmq.runtime.meanings.answers import REMARKS, answer, remark
from cometmq.runtime.meanings.runbooks import runbook_text
from cometmq.store.writing.write_state import Refusal


def test_every_answer_has_a_meaning():
    assert all(answer(code).meaning for code in ResponseCode)


VALUES = {int: 7, float: 0.9, str: "Thing", TopicConfig: TopicConfig(topic_name="Thing"),
          Collection[str]: ["Reason"]}  # fmt: skip


def remarks_of(module):
    """Return the remarks that a module defines: its texts, and what its functions return."""
    for name, it in vars(module).items():
        if name in NO_REMARKS or name.startswith("_"):
            continue
        if isinstance(it, str):
            yield name, it
        elif inspect.isfunction(it) and it.__module__ == module.__name__:
            asked = inspect.signature(it).parameters.items()
            yield name, it(**{key: VALUES[of.annotation] for key, of in asked})
        elif inspect.isbuiltin(it):  # `"...{}".format`
            yield name, re.sub(r"\{\w*\}", "7", str(it.__self__))


NO_REMARKS = {"FAQ_SUFFIX", "describe", "permission"}
"""Parts of remarks."""


@pytest.mark.parametrize(
    ("name", "text"), [*remarks_of(remarks), *remarks_of(refusals)], ids=lambda it: it[:40]
)
def test_every_remark_of_the_servers_is_explained(name, text):
    found = remark(plain_remark(text))
    assert found is not None, name
    assert found.meaning
    assert found.advice, name


CAUSES = {
    "from the broker to the name server": ["CRC_MISMATCH"],
    "lines of the form": ["PROPERTIES_UNREADABLE"],
    "went to a slave": ["SLAVE_MODIFY_REFUSED", "NOT_THE_MASTER"],
    "another member": ["not_the_master"],
    "confirm the log's end": ["ENDS_UNCONFIRMED"],
    "at most 127 characters": [
        "TOPIC_BLANK", "TOPIC_ILLEGAL", "TOPIC_TOO_LONG", "send_topic_forbidden",
        "system_topic_conflict",
    ],
    "shorter name": ["retry_topic_too_long"],
    "group create": ["GROUP_INFO_MISSING", "pull_group_not_exist", "send_back_group_not_exist"],
    "no heartbeat has told": ["SUBSCRIPTION_MISSING"],
    "older, subscription": [
        "SUBSCRIPTION_NOT_LATEST", "FILTER_DATA_NOT_EXIST", "FILTER_DATA_NOT_LATEST",
    ],
    "Correct the filter": ["SUBSCRIPTION_PARSE_FAILED"],
    "fileReservedTime hours": [
        "QUERY_MESSAGE_NOT_FOUND", "HALF_MESSAGE_NOT_FOUND", "message_not_found",
        "send_back_not_found",
    ],
    "not committed an offset": ["CONSUMER_OFFSET_NOT_FOUND"],
    "txn resolve": [
        "DECISION_WRONG", "PRODUCER_GROUP_WRONG", "TRANSACTION_OFFSET_WRONG",
        "COMMIT_LOG_OFFSET_WRONG",
    ],
    "writes-refused.md": ["MAPPED_FILE_CREATE_FAILED", "service_not_available", "store_refuses"],
    "accept the last write": ["PAGE_CACHE_BUSY"],
    "one by one": ["BATCH_RETRY_TOPIC", "BATCH_TIMED"],
    "lacks a field": ["NOT_SET", "REPLY_TO_CLIENT_MISSING", "missing_field"],
    "ha status": ["STALE_EPOCH", "UNPROVEN"],
    "enablePropertyFilter": ["filter_refused"],
    "older than the client": ["request_not_supported"],
    "fewer connections": ["rejected"],
    "before its turn": ["queue_timeout"],
    "maxMessageSize": ["message_illegal"],
    "timerMaxDelaySec": ["timer_too_far"],
    "whole number of milliseconds": ["timer_no_number"],
    "topic create": ["topic_not_exist", "send_topic_not_exist", "pull_topic_not_exist", "no_route"],
    "shows the queues": [
        "send_queue_illegal", "pull_queue_illegal", "queue_illegal", "queue_not_exist",
        "queue_index_not_exist",
    ],
    "brokerPermission": ["broker_send_forbidden", "broker_pull_forbidden", "topic_pull_forbidden"],
    "--perm rw": ["topic_send_forbidden"],
    "rejectTransactionMessage": ["transaction_forbidden"],
    "--enabled": ["group_pull_forbidden"],
    "forbiddenTable": ["group_forbidden_for_topic"],
    "nothing of this name": ["kv_not_found", "kv_namespace_not_found", "stats_not_exist"],
    "a member of the group": [
        "group_not_online", "consumers_offline", "reset_offset_offline", "no_consumer_online",
        "consumer_not_online",
    ],
    "producer of the group": ["producer_group_not_exist"],
    "no offsets in this topic": ["reset_offset_no_topic", "reset_offset_no_group"],
    "3.1.8": ["client_too_old", "consumer_too_old"],
    "did not answer in time": ["consumer_timeout"],
    "the member's log": ["consumer_call_failed"],
    "its request has timed out": ["reply_channel_missing", "reply_push_failed"],
    "startAcceptSendRequestTimeStamp": ["before_start"],
    "--broadcast": ["broadcast_forbidden"],
    "too few copies": ["too_few_copies"],
}  # fmt: skip
"""Words of the advice, or of the cause that it is given for, by the names of the remarks."""
OTHERS = {
    "the name of the topic or group": group_fault("") or "",
    "reads of old messages": "[OVERLOAD]too many cold reads, 9 are pending: try again later",
    "compiled the SQL92 filter": "[COMPILING_FILTER]the filter is being compiled, try again later",
    "offsetsMax": "the broker stores at most 9 offsets (offsetsMax)",
    "one half message": "[TOO_MANY_ENDS]too many requests",
    "body_bytes_max": "the body has 9 bytes, more than body_bytes_max (8)",
    "Start one": "no name server answers: no connection to 127.0.0.1:9876",
    "does not know this account": "No accessKey is configured",
    "secret key of the client differs": "Check signature failed for accessKey=x",
    "does not have the right": "No default permission for topic:T",
    "Free space": refusals.store_refuses("b", [Refusal.DISK_FULL], 97),
    "names the limit": "limit reached: filters: there are 5 of at most 5",
    "lets producers write": "the topic T accepts no messages: a has no write permission for it",
}
"""Remarks that other modules, clients or RocketMQ's servers write."""


def test_the_advice_of_a_remark_is_about_its_cause():
    texts = dict([*remarks_of(remarks), *remarks_of(refusals)])
    wanted = {name: words for words, names in CAUSES.items() for name in names}
    assert wanted.keys() == texts.keys()
    said = {name: remark(plain_remark(text)) for name, text in texts.items()}
    said |= {text: remark(plain_remark(text)) for text in OTHERS.values()}
    wanted |= {text: words for words, text in OTHERS.items()}
    for name, found in said.items():
        assert found is not None, name
        assert wanted[name] in f"{found.meaning}; {found.advice}", (name, found)
    unused = [pattern for pattern, it in REMARKS if not any(it is found for found in said.values())]
    assert unused == [], "no cause is known for them"


@pytest.mark.parametrize("table", [broker_limits.LIMITS, namesrv_limits.LIMITS])
def test_every_limit_that_refuses_is_explained(table):
    limits = Limits(table, BrokerSettings, clock_ms=lambda: 0)
    for limit in table:
        text = limits.refusal(limit, "there are 5 of at most 5").remark
        assert remark(plain_remark(text)) is not None, limit.name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2", "overloaded"),
        ("SYSTEM_BUSY", "overloaded"),
        ("system_busy", "overloaded"),
        ("slave_not_available", "would store it twice"),
        ("disk.full", "docs/runbooks/disk-full.md"),
        ("CODE: 2  DESC: [TIMEOUT_CLEAN_QUEUE]broker busy, start flow", "waitTimeMillsInSend"),
        (remarks.rejected(in_flight=5, waited_ms=7), "in flight"),
        (refusals.store_refuses("b", ["disk-full"], 97), "lower fileReservedTime"),
        (remarks.no_route("orders"), "No name server".lower()),
        (remarks.send_topic_not_exist("orders"), "cometmq topic create"),
        (remarks.pull_group_not_exist("billing"), "cometmq group create"),
        (remarks.group_pull_forbidden("billing"), "--enabled"),
        (remarks.request_not_supported(-5), "does not serve"),
        ("[TOO_MANY_ENDS]too many requests", "one half message"),
        ("broker busy", "waitTimeMillsInSend"),
        ("No route info of this topic: invoices", "cometmq topic list"),
        ("the topic[invoices] sending message is forbidden", "the topic's permission"),
        ("BROKER_BUSY", "accept the last write"),
        ("org.apache.rocketmq.acl.common.AclException: Check signature failed", "secret key"),
    ],
)
def test_codes_events_and_remarks_are_explained_with_advice(call, text, words):
    done = call("explain", text)
    assert done.status == 0, done.err
    assert words in " ".join(done.out.split())


def test_settings_are_explained_from_their_tables(call):
    found, other = call("explain", "filereservedtime", "--json").json
    assert other["of"] == ["txn-checker"], "where it means something else"
    assert (found["setting"], found["default"]) == ("fileReservedTime", "72")
    assert found["of"] == ["broker"]
    assert "at any time" in found["changes"]
    fixed = call("explain", "brokerName", "--json").json
    assert not [it for it in fixed if "at any time" in it["changes"]]
    programs = [name for it in call("explain", "namesrvAddr", "--json").json for name in it["of"]]
    assert {"broker", "txn-checker"} <= set(programs)


def test_a_number_is_explained_as_an_answer_and_as_a_request(call):
    found = call("explain", "17", "--json").json
    assert [next(iter(facts.values())) for facts in found] == [
        "17 TOPIC_NOT_EXIST",
        "17 UPDATE_AND_CREATE_TOPIC",
    ]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("disk.ful", "did you mean disk.full?"),
        ("SYSTEM_BUZY", "SYSTEM_BUSY"),
        ("fileReservedTim", "did you mean fileReservedTime?"),
        ("9999", ""),
        ("top", ""),
    ],
)
def test_what_is_not_known_is_refused_with_a_similar_name(call, text, hint):
    refused = call("explain", text)
    refused.assert_refused(1, f"no code, event, setting or remark '{text}' is known")
    assert hint in refused.err


def test_an_unknown_remark_is_printed_without_its_escapes(call):
    assert "\x1b" not in call("explain", "\x1b]0;title\x07 <b>").err


@pytest.mark.parametrize("name", ["../runbooks/slow", "..", "", "/etc/passwd", "slow.txt", "\0"])
def test_no_other_file_is_taken_for_a_runbook(name):
    assert runbook_text(name) is None
