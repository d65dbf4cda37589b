# SPDX-License-Identifier: Apache-2.0
"""Checks against thresholds, in four formats, with the exit statuses of Nagios."""

import json
import re
from typing import Any

import msgspec
import pytest

from cometmq.cli.operation import check, checks
from cometmq.cli.operation.check import PREFIX
from cometmq.cli.operation.checks import Item, Limits, Status, worst
from cometmq.client.admin.figures import BrokerFigures, GroupCopies
from cometmq.insight.model import (
    Broker,
    BrokerState,
    Certificate,
    Disk,
    Group,
    GroupTopic,
    Since,
    Snapshot,
    Topic,
    TopicKind,
    Trouble,
    Unknown,
    Unreachable,
)

NOW_MS = 1_800_000_000_000


def broker(name="b", number=0, disk=0.5, state=None, **figures):
    found = BrokerState(BrokerFigures(**figures), Disk(disk))
    return Broker("c", name, number, f"{name}{number}:1", state or found)


def down(name="b", number=0):
    gone = Unreachable(Trouble.HANGS, "no answer within 3 s", Since(NOW_MS))
    return broker(name, number, state=gone)


def group(name="G", **changes: Any):
    facts: dict[str, Any] = {
        "name": name, "is_system": False, "retries": 16, "is_enabled": True, "members": (),
        "model": None, "consume_type": None, "subscriptions": (), "topics": (), "lag": 0,
        "behind_s": 0.0, "out_per_s": 0.0, "dead_letters": 0, "retry_backlog": 0,
    }  # fmt: skip
    return Group(**{**facts, **changes})


def topic(name="T", **changes: Any):
    facts: dict[str, Any] = {
        "name": name, "kind": TopicKind.NORMAL, "perm": 6, "read_queues": 4, "write_queues": 4,
        "brokers": ("b",), "messages": 0, "end": 0, "in_per_s": 0.0, "last_write_ms": None,
    }  # fmt: skip
    return Topic(**{**facts, **changes})


def snapshot(brokers=(), topics: Any = (), groups: Any = ()):
    unknown = Unknown("not asked")
    return Snapshot("n:1", NOW_MS, 12, brokers, topics, groups, unknown, unknown, unknown, unknown)


def statuses(items):
    return [it.status.name for it in items]


def test_critical_is_worse_than_unknown_and_that_than_a_warning():
    assert worst([Status.WARNING, Status.UNKNOWN]) is Status.UNKNOWN
    assert worst([Status.UNKNOWN, Status.CRITICAL, Status.OK]) is Status.CRITICAL
    assert worst([]) is Status.OK


@pytest.mark.parametrize(
    ("value", "status"), [(0, "OK"), (9, "OK"), (10, "WARNING"), (99, "WARNING"), (100, "CRITICAL")]
)
def test_a_threshold_is_reached_at_its_value(value, status):
    found = checks.groups(snapshot(groups=[group(lag=value)]), (), Limits(10, 100), Limits(), 0)
    assert worst(it.status for it in found).name == status


def test_figures_without_all_brokers_are_unknown_unless_they_are_critical_anyway():
    def lag(count):
        some = snapshot(groups=[group(lag=count, missing_brokers=("b2",))])
        return worst(it.status for it in checks.groups(some, (), Limits(10, 100), Limits(), 0))

    assert lag(5) is Status.UNKNOWN
    assert lag(500) is Status.CRITICAL


def test_a_name_that_nobody_knows_is_critical_and_unknown_while_brokers_are_missing():
    assert statuses(checks.topics(snapshot([broker()]), ["T"], Limits())) == ["CRITICAL"]
    assert statuses(checks.topics(snapshot([down()]), ["T"], Limits())) == ["UNKNOWN"]
    assert statuses(checks.dead_letters(snapshot([broker()]), ["G"], Limits())) == ["CRITICAL"]


@pytest.mark.parametrize(
    ("one", "status", "text"),
    [
        (broker(), "OK", "master answers"),
        (down(), "CRITICAL", "hangs: no answer"),
        (broker(writes_refused="disk-full"), "CRITICAL", "takes no messages: disk-full"),
        (broker(number=1, not_following="ahead"), "CRITICAL", "cannot follow"),
        (broker(slave_missing="not connected"), "CRITICAL", "no second copy"),
        (broker(messages_damaged="3, in 9 bytes"), "CRITICAL", "damaged messages: 3,"),
        (broker(routes_missing="not in n:2"), "WARNING", "not in n:2"),
        (broker(is_elector_missing=True), "WARNING", "no elector"),
    ],
)
def test_each_fault_of_a_broker_has_a_status(one, status, text):
    item = checks.brokers(snapshot([one]), (), Limits())[0]
    assert (item.status.name, text in item.text) == (status, True), item


def test_a_broker_that_is_expected_must_be_registered():
    found = checks.brokers(snapshot([broker("a")]), ["a", "x"], Limits())
    assert [it.status.name for it in found if it.name == "x"] == ["CRITICAL"]
    assert statuses(checks.brokers(snapshot(), (), Limits()))[0] == "CRITICAL"


def test_a_topic_that_is_closed_on_purpose_fails_only_a_check_that_names_it():
    def check(perms, *names):
        found = checks.topics(snapshot([broker()], [topic(perms=perms)]), names, Limits())
        return [(it.status.name, it.text) for it in found]

    assert check({"a": 6, "b": 4}) == [("CRITICAL", "cannot be written at b")]
    shut = "is closed on purpose: no permission, and nothing unread"
    assert check({"a": 0, "b": 0}) == [("OK", shut)]
    assert check({"a": 0, "b": 0}, "T") == [("CRITICAL", "cannot be read or written")]


def test_copies_that_are_missing():
    def copies(limits=Limits(1, 2), **figures):  # noqa: B008  # immutable
        return checks.copies(snapshot([broker(**figures)]), (), limits)[0]

    assert copies(copies=GroupCopies((0, 1, 2), (0, 1, 2), 2)).status is Status.OK
    assert copies(copies=GroupCopies((0, 1, 2), (0, 1), 2)).status is Status.WARNING
    assert copies(copies=GroupCopies((0, 1, 2), (0,), 2)).status is Status.CRITICAL
    two = snapshot([broker(), broker(number=1), down(number=2)])
    assert checks.copies(two, (), Limits(1, 2))[0].text == "1 of 2 slaves follow; missing: 2"
    assert checks.copies(snapshot([down()]), (), Limits())[0].status is Status.CRITICAL


def test_disks_topics_dead_letters_and_members():
    disks = checks.disks(snapshot([broker(disk=0.8), down("x")]), (), Limits(75, 90))
    assert statuses(disks) == ["WARNING", "UNKNOWN"]
    old = topic(last_write_ms=NOW_MS - 700_000)
    assert statuses(checks.topics(snapshot(topics=[old]), (), Limits(None, 600))) == [
        "OK", "CRITICAL",
    ]  # fmt: skip
    assert statuses(checks.topics(snapshot(topics=[topic(perms={"b": 4})]), (), Limits())) == [
        "CRITICAL"
    ]
    dead = snapshot(groups=[group(dead_letters=3)])
    assert statuses(checks.dead_letters(dead, (), Limits(1, 100))) == ["WARNING"]
    for sent, status, text in (
        (1, "WARNING", "2 dead letters not sent again, 1 sent again"),
        (3, "OK", "0 dead letters not sent again, 3 sent again"),
    ):
        found = snapshot(groups=[group(dead_letters=3, dead_sent=sent)])
        (item,) = checks.dead_letters(found, (), Limits(1, 100))
        assert (item.status.name, item.value) == (status, 3 - sent)
        assert text in item.text
    members = checks.groups(snapshot(groups=[group()]), (), Limits(), Limits(), 1)
    assert members[-1].status is Status.CRITICAL
    beyond = group(topics=[GroupTopic("T", 4, 5, 0, 0.0, skips=3)])
    found = checks.groups(snapshot(groups=[beyond]), (), Limits(1, 2), Limits(), 0)
    assert statuses(found) == ["OK", "OK", "CRITICAL"]
    assert found[-1].text == "will skip 3 messages: its offsets are beyond the end"
    lost = msgspec.structs.replace(group(), lag=Unknown("hidden"))
    found = checks.groups(snapshot(groups=[lost]), (), Limits(1, 2), Limits(), 0)
    assert found[0].status is Status.UNKNOWN


EVIL = Item("<b>|'x\x1b[31m\n", Status.CRITICAL, "a | b = 'c'\x1b]0;\x07", "lag", 5, Limits(1, 2))


def test_hostile_names_cannot_break_any_format():
    for form, text in ((name, show("group", [EVIL])) for name, show in checks.FORMS.items()):
        assert "\x1b" not in text, form
    line = checks.as_nagios("group", [EVIL])
    assert line.count("\n") == 1
    assert line.count("|") == 1
    assert re.search(r"\| '[^'|=]+'=5;1;2;0\n$", line)
    for sample in checks.as_prometheus("group", [EVIL]).splitlines():
        assert sample.startswith("#") or re.fullmatch(
            r'[a-z_]+\{([a-z]+="[^"\n]*",?)+\} \S+', sample
        )
    assert json.loads(checks.as_json("group", [EVIL]))["items"][0]["name"] == EVIL.name


def test_the_exit_status_and_the_formats_of_a_real_suite(ask, topic):
    assert ask("produce", topic, "1", "2").status == 0
    assert ask("check", "broker").status == 0
    assert ask("check", "topic", topic, "--critical", 600).status == 0
    late = ask("check", "topic", topic, "--critical", 0, "--format", "json")
    assert (late.status, json.loads(late.out)["status"]) == (2, "critical")
    assert ask("check", "disk", "--warn", 0, "--critical", 100).status == 1
    missing = ask("check", "group", "Nobody", "--format", "nagios")
    assert (missing.status, missing.out) == (
        2,
        "COMETMQ GROUP CRITICAL - Nobody: no broker knows this group\n",
    )
    assert ask("group", "create", f"{topic}_group").status == 0
    assert (
        f'cometmq_check_status{{check="dlq",name="{topic}_group"}} 0'
        in ask("check", "dlq", "--format", "prometheus").out
    )
    assert ask("check", "copies").status == 0


@pytest.mark.parametrize(("check", "status"), [("broker", 2), ("group", 3)])
def test_without_a_name_server_brokers_are_critical_and_the_rest_is_unknown(call, check, status):
    done = call("check", check, "-n", "127.0.0.1:1")
    assert done.status == status
    assert "127.0.0.1:1" in done.out


def test_wrong_usage_is_unknown_to_a_monitoring_system(call):
    assert call("check", "disk", "--warn", 90, "--critical", 10).status == 3
    assert call("check", "disk", "--wran", 90).status == 3
    assert call("check", "nothing").status == 3


def test_the_limits_of_certificates_are_lower_bounds():
    limits = Limits(21, 3, is_floor=True)
    assert [limits.status(it) for it in (30, 21, 20.9, 3, 2)] == [
        Status.OK, Status.OK, Status.WARNING, Status.WARNING, Status.CRITICAL,
    ]  # fmt: skip
    seen = msgspec.structs.replace(
        snapshot(), certificates=[Certificate("broker a:0", "f", NOW_MS + 2 * 86_400_000)]
    )
    items = checks.certificates(seen, limits)
    assert "expires in 2 d (critical below 3)" in checks.as_text("certificate", items)
    assert "'broker a:0 f_days_left'=2;21:;3:;0" in checks.as_nagios("certificate", items)


def test_a_round_trip_is_measured_and_leaves_no_topic(ask):
    done = ask("check", "roundtrip", "--count", 5, "--format", "json", "--critical", 60_000)
    (item,) = json.loads(done.out)["items"]
    assert done.status in {0, 1}, done
    assert item["value"] > 0
    assert item["text"].startswith("5 round trips: ")
    assert PREFIX not in ask("topic", "list", "--all").out


def test_a_round_trip_that_fails_is_critical_and_leaves_no_topic(ask, monkeypatch):
    async def read(*_):
        return b"other"

    monkeypatch.setattr(check, "_read", read)
    done = ask("check", "roundtrip")
    assert (done.status, "came back with another body" in done.out) == (2, True)
    assert PREFIX not in ask("topic", "list", "--all").out
    missing = ask("check", "roundtrip", "nobody")
    assert (missing.status, "nobody: is not registered" in missing.out) == (2, True)
