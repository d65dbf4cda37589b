# SPDX-License-Identifier: Apache-2.0
"""Explanations of codes, events and remarks."""

import inspect
from collections.abc import Collection

import pytest

from cometmq.broker import limits as broker_limits
from cometmq.broker import refusals
from cometmq.broker.settings import BrokerSettings
from cometmq.namesrv import limits as namesrv_limits
from cometmq.remoting import remarks
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.refusals import plain_remark
from cometmq.runtime.limits import Limits
from cometmq.runtime.meanings.answers import answer, remark
from cometmq.runtime.meanings.runbooks import runbook_text


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
