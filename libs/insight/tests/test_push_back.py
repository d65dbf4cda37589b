# SPDX-License-Identifier: Apache-2.0
"""Requests that were refused, as findings with advice."""

import msgspec
import pytest

from cometmq.insight.findings import findings
from cometmq.insight.model import Refusal, Since
from cometmq.insight.rules.clients import SIGNATURE_PROBE, advice_for
from cometmq.remoting import remarks
from cometmq.remoting.bodies.overview import GroupHabit, Habit, RefusedRequests
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.names import DLQ_REPLAY_GROUP, HALF_TOPIC
from cometmq.runtime.acl.errors import no_access_key, no_permission, wrong_signature

from .answers import NOW_MS, master, seen, telling


def findings_with(*refusals):
    return findings(msgspec.structs.replace(seen(master()), refusals=refusals))


def test_refusals_become_findings_while_they_are_new():
    def with_refusal(last_ms):
        refusal = Refusal("a", 310, 2, "busy", "10.0.0.1:5", "T", 7, NOW_MS - 60_000, last_ms)
        return findings_with(refusal)

    (found,) = with_refusal(NOW_MS - 1_000)
    assert "a refused 7 times SEND_MESSAGE_V2 (310) for T, the last one 1 s ago of" in found.text
    assert found.runbook == "system-busy.md"
    assert found.command == "cometmq top refused"
    assert found.since == Since(NOW_MS - 60_000)
    assert "send more slowly" in found.remedy
    assert with_refusal(NOW_MS - 3_600_000) == []


@pytest.mark.parametrize(
    ("habit", "part", "runbook"),
    [
        (Habit.DEAD_AT_ONCE, "maxReconsumeTimes 0", "dead-letters.md"),
        (
            Habit.CHECKS_UNANSWERED,
            "only the first transaction producer",
            "half-messages-pile-up.md",
        ),
    ],
)
def test_habits_of_libraries_are_findings_for_an_hour(habit, part, runbook):
    def found(last_ms):
        habits = [GroupHabit(habit, "G", 3, NOW_MS - 9_000_000, last_ms)]
        return findings(seen(telling(master(), habits=habits)))

    (finding,) = found(NOW_MS - 3_000_000)
    assert "G" in finding.text
    assert part in finding.remedy
    assert (finding.runbook, finding.since) == (runbook, Since(NOW_MS - 9_000_000))
    assert found(NOW_MS - 4_000_000) == []


BEFORE_HEARTBEAT = {
    "pull": (RequestCode.PULL_MESSAGE, 24, "the consumer's group info not exist"),
    "older": (RequestCode.PULL_MESSAGE, 25, "the consumer's subscription not latest"),
    "members": (RequestCode.GET_CONSUMER_LIST_BY_GROUP, 1, "no consumer for this group, G"),
}


@pytest.mark.parametrize("kind", BEFORE_HEARTBEAT)
@pytest.mark.parametrize(("began_s", "ended_s", "count"), [(40, 10, 0), (200, 100, 0), (200, 3, 1)])
def test_members_that_wait_for_their_heartbeat_are_no_finding(kind, began_s, ended_s, count):
    """Each restart of a broker lets members pull before their next heartbeat."""
    times = NOW_MS - 1_000 * began_s, NOW_MS - 1_000 * ended_s
    refusal = Refusal("a", *BEFORE_HEARTBEAT[kind], "10.0.0.1:5", "T", 7, *times)
    assert len(findings_with(refusal)) == count


def test_a_refused_account_is_one_finding_in_plain_words():
    """A client without a right is refused its heartbeats, too: the user knows only the send."""
    remark = no_permission("topic:T", is_default=True).remark

    def refusal(code, peer="10.0.0.1:5", remark=remark):
        return Refusal("a", code, 1, remark, peer, "T", 1, NOW_MS - 60_000, NOW_MS)

    (found,) = findings_with(refusal(34), refusal(310), refusal(35))
    assert "SEND_MESSAGE_V2 (310) for T" in found.text
    assert found.text.endswith("10.0.0.1:5: No default permission for topic:T")
    assert "cometmq updateAclConfig" in found.remedy
    assert len(findings_with(refusal(34))) == 1
    assert len(findings_with(refusal(34, "10.0.0.2:5"), refusal(310))) == 2
    group = no_permission("producer group:P", is_default=True).remark
    (found,) = findings_with(refusal(34, remark=group), refusal(310))
    assert "SEND_MESSAGE_V2 (310) for T" in found.text
    assert len(findings_with(refusal(34, remark=group))) == 1


def test_a_checker_that_waits_for_the_first_transaction_is_no_finding():
    missing = ("a", 11, 17, "topic[X] not exist", "10.0.0.1:5")
    for topic, count in ((HALF_TOPIC, 0), ("orders", 1)):
        refusal = Refusal(*missing, topic, 7, NOW_MS - 60_000, NOW_MS)
        assert len(findings_with(refusal)) == count


def test_a_topic_that_is_asked_for_but_missing_is_named_with_the_command_that_creates_it():
    refusal = Refusal("a", 310, 17, "topic[o rders] not exist", "c:5", "o rders", 7, 1, NOW_MS)
    (found,) = findings_with(refusal)
    assert "refused 7 times SEND_MESSAGE_V2 (310) for o rders" in found.text
    assert found.remedy.startswith("cometmq topic create TOPIC")
    assert found.command == "cometmq topic create 'o rders'"
    assert found.since.ms == 1


def test_a_look_at_accounts_without_access_control_is_no_finding():
    remark = "access control is off: the broker has aclEnable=false"
    for code, count in ((54, 0), (52, 0), (50, 1)):
        refusal = Refusal("a", code, 1, remark, "10.0.0.1:5", "", 7, NOW_MS - 60_000, NOW_MS)
        assert len(findings_with(refusal)) == count


def test_a_mistyped_setting_is_no_finding_but_a_denied_change_is():
    denied = no_permission("topic:T", is_default=True).remark
    for remark, count in (("fileReservedTime=x: must be an integer", 0), (denied, 1)):
        refusal = Refusal("a", 25, 1, remark, "10.0.0.1:5", "", 7, NOW_MS - 60_000, NOW_MS)
        assert len(findings_with(refusal)) == count


def test_each_account_that_is_refused_is_a_finding():
    refused = no_permission("topic:T", is_default=True).remark
    refusals = [
        RefusedRequests(310, 1, "T", f"{refused} (account {it})", "c:7", 1, NOW_MS, NOW_MS)
        for it in ("guest", "shop")
    ]
    found = findings(seen(telling(master(), refused=refusals)))
    assert len([it for it in found if it.rule == "push-back"]) == 2


@pytest.mark.parametrize(
    ("code", "resource", "question", "right"),
    [
        (310, "topic:T", "send T", "-t T=PUB"),
        (37, "topic:T", "send T", "-t T=PUB"),
        (11, "topic:T", "read T", "-t T=SUB"),
        (34, "group:G", "join G", "-g G=SUB"),
        (999, "topic:T", "read T", "-t T=SUB"),
    ],
)
def test_a_refused_right_comes_with_the_commands_that_give_it_and_name_its_rule(
    code, resource, question, right
):
    remark = f"{no_permission(resource, is_default=True).remark} (account guest)"
    advice = advice_for(code, 1, remark)
    assert f"cometmq account may guest {question} names the rule" in advice
    assert f"cometmq updateAclConfig -c CLUSTER -a guest -s ITS_SECRET {right} (" in advice


def test_a_refusal_of_a_broker_that_names_no_account_asks_in_general():
    remark = no_permission("topic:T", is_default=True).remark
    assert "; cometmq account may names the rule" in advice_for(310, 1, remark)


@pytest.mark.parametrize(
    ("refusal", "advice"),
    [(wrong_signature("guest"), "correct the secret key"), (no_access_key(), "give an account: ")],
)
def test_a_right_is_no_remedy_for_a_wrong_key_or_no_account(refusal, advice):
    found = advice_for(310, 1, refusal.remark)
    assert found.startswith(advice)
    assert "right" not in found


def test_the_wrong_signature_by_which_a_login_probes_is_no_finding():
    remark = wrong_signature("guest").remark
    probe, other = (
        RefusedRequests(code, 1, "", remark, "c:7", 1, NOW_MS, NOW_MS)
        for code in (SIGNATURE_PROBE, RequestCode.GET_BROKER_RUNTIME_INFO)
    )
    for refusals, count in (([probe], 0), ([probe, other], 1)):
        found = findings(seen(telling(master(), refused=refusals)))
        assert len([it for it in found if it.rule == "push-back"]) == count


def test_a_look_for_running_replays_is_no_finding():
    code, remark = RequestCode.GET_PRODUCER_CONNECTION_LIST, "the producer group[g] not exist"
    for group, count in ((f"{DLQ_REPLAY_GROUP}-billing", 0), ("billing", 1)):
        refused = RefusedRequests(code, 1, group, remark, "c:7", 1, NOW_MS, NOW_MS)
        found = findings(seen(telling(master(), refused=[refused])))
        assert len([it for it in found if it.rule == "push-back"]) == count


NO_RIGHT = no_permission("topic:T", is_default=True).remark


@pytest.mark.parametrize(
    ("response", "remark", "page"),
    [
        (1, NO_RIGHT, "requests-refused.md"),
        (1, wrong_signature("guest").remark, "requests-refused.md"),
        (13, "the message is illegal, maybe msg body or properties length not matched", ""),
        (16, "the topic[T] sending message is forbidden", ""),
        (999, "?", ""),
        (2, "[OVERLOAD]system busy", "system-busy.md"),
        (14, "service not available now. It may be", "writes-refused.md"),
        (14, "service not available now: broker b has a full disk (97 % used)", "disk-full.md"),
    ],
)
def test_the_runbook_of_a_refusal_is_about_its_cause(response, remark, page):
    (found,) = findings_with(Refusal("a", 310, response, remark, "c:5", "T", 1, 1, NOW_MS))
    assert found.runbook == (page or "requests-refused.md")


@pytest.mark.parametrize(
    ("response", "remark", "words"),
    [
        (14, "service not available now: broker b has a full disk (97 % used); it", "free space"),
        (14, "service not available now. It may be", "missing copies"),
        (13, remarks.message_illegal(7), "maxMessageSize"),
        (13, "timer message illegal, the delay time should not be bigger", "timerMaxDelaySec"),
        (13, "?", "read the remark"),
        (2, "limit reached: filters: there are 5 of at most 5", "names the limit"),
        (2, "?", "send again after a pause"),
        (16, "subscription group no permission, G", "--enabled"),
        (999, "?", "the remark says why"),
    ],
)
def test_the_advice_about_a_refusal_is_about_its_cause(response, remark, words):
    assert words in advice_for(310, response, remark)
