# SPDX-License-Identifier: Apache-2.0
import importlib
import inspect
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple, get_type_hints

import msgspec
import pytest

from cometmq.console.pages import PAGES
from cometmq.insight import judge as judge_rules
from cometmq.insight import rules
from cometmq.insight.asking import Queue
from cometmq.insight.finding import Finding
from cometmq.insight.findings import RULES, Findings, Severity, findings
from cometmq.insight.history import History, Place
from cometmq.insight.judge import Status
from cometmq.insight.model import Certificate, Since, Snapshot, Trouble, known
from cometmq.insight.snapshot import OURS, certificates_at, certificates_of
from cometmq.peers.paths import ROOT
from cometmq.remoting.bodies.overview import GroupHabit, Habit, RefusedRequests
from cometmq.remoting.bodies.topic_config import TopicConfig

from .answers import NOW_MS, master, members, seen, silent, slave, telling

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"


def reader(offset=20, *, online=True, **more):
    return master(
        groups=["G"],
        offsets={"T@G": {0: offset}},
        consumers={"G": members("c")} if online else {},
        **more,
    )


class Case(NamedTuple):
    """The answers of brokers that report a fault, and the text of the finding.

    `answers` is one answer, a list, or a function of the number of the snapshot. `facts` are fields
    of the snapshot that do not come from answers.
    """

    answers: Any
    text: str
    looks: int = 1
    facts: Any = None

    def look(self) -> tuple[Snapshot, History]:
        """Take snapshots a minute apart; return the last one, and the history."""
        history, found = History(), None
        for at in range(self.looks):
            answers = self.answers(at) if callable(self.answers) else self.answers
            placed = answers if isinstance(answers, list) else [answers]
            snapshot = seen(*placed, history=history, now_ms=NOW_MS + 60_000 * at)
            found = msgspec.structs.replace(snapshot, **(self.facts or {}))
        assert found is not None
        return found, history


def growing(at: int) -> dict[str, dict[int, Queue]]:
    return {"T": {0: Queue(10, 50 + 100 * at)}}


FAULTS: dict[str, tuple[Any, ...]] = {
    "broker-down": (silent(Trouble.HANGS), "broker broker-a (10.1.0.0:0) hangs: connect"),
    "no-broker": ([], "no broker is registered at 127.0.0.1:9876"),
    "no-master": (("a", 1, slave()), "broker a has no master"),
    "no-elector": (master(runtime={"electorMissing": "true"}), "no elector looks after"),
    "routes-missing": (master(runtime={"routesMissing": "not listed at n1"}), "not listed at n1"),
    "topic-unrouted": (
        master(),
        "name servers do not know the topic Lost",
        1,
        {"unrouted": ["Lost"]},
    ),
    "accounts-broken": (master(runtime={"accountsBroken": "/a.yml"}), "account file /a.yml"),
    "writes-refused": (master(runtime={"writesRefused": "disk-full"}), "no messages: disk-full"),
    "messages-damaged": (
        master(runtime={"messagesDamaged": "3, in 9 bytes"}),
        "damaged messages: 3,",
    ),
    "disk-full": (master(runtime={"commitLogDiskRatio": "0.91"}), "is 91% full"),
    "copies-missing": (
        master(runtime={"groupMembers": "0,1", "groupInSync": "0", "groupMinInSync": "2"}),
        "brokerId 1 not in sync (1 of 2 are, minInSync is 2)",
    ),
    "copy-behind": (("a", 1, slave(replicationRefused="ahead")), "cannot follow its master: ahead"),
    "messages-lost": (reader(4), "6 messages were deleted before G read them"),
    "group-stopped": (reader(online=False), "G has no member, and 30 unread messages"),
    "messages-skipped": (reader(99), "G will skip 40 messages of T"),
    "messages-stranded": (
        reader(50, queues={"T": {0: Queue(0, 50), 3: Queue(0, 7)}}),
        "7 messages wait for G in queues of T that nobody reads",
    ),
    "dead-letters": (
        reader(
            50,
            topics={"%DLQ%G": TopicConfig(topic_name="%DLQ%G")},
            queues={"%DLQ%G": {0: Queue(0, 3)}},
        ),
        "G has 3 dead letters",
    ),
    "half-messages": (
        master(topics={HALF: TopicConfig(topic_name=HALF)}, queues={HALF: {0: Queue(0, 4_000)}}),
        "up to 4,000 transactions are open at broker-a",
    ),
    "releases-differ": (
        [master(runtime={"brokerVersionDesc": it}) for it in ("V1", "V2")],
        "2 versions are running: V1 (1), V2 (1)",
    ),
    "group-stuck": (reader(20), "G has 1 member but commits nothing", 3),
    "lag-grows": (lambda at: reader(20 + at, queues=growing(at)), "the lag of G grows", 13),
    "group-behind": (
        telling(reader(20), oldest_unread_ms={"T@G": NOW_MS - 150_000}),
        "G has 1 member, and 30 unread messages, the oldest 2 min 30 s old",
    ),
    "subscriptions-disagree": (
        telling(reader(50), disagreements={"G": "c reads U, too"}),
        "the members of G disagree: c reads U, too",
    ),
    "push-back": (
        telling(master(), refused=[RefusedRequests(310, 2, "T", "busy", "c:7", 3, NOW_MS, NOW_MS)]),
        "broker-a refused 3 times SEND_MESSAGE_V2 (310) for T",
    ),
    "dead-at-once": (
        telling(master(), habits=[GroupHabit(Habit.DEAD_AT_ONCE, "G", 3, NOW_MS, NOW_MS)]),
        "G makes a message a dead letter at its first failure: 3 messages at broker-a",
    ),
    "checks-unanswered": (
        telling(master(), habits=[GroupHabit(Habit.CHECKS_UNANSWERED, "P", 3, NOW_MS, NOW_MS)]),
        "the connected producers of P do not answer broker-a",
    ),
    "nobody-reads": (lambda at: master(queues=growing(at)), "go to T, and no group reads it", 2),
    "topic-closed": (
        master(topics={"T": TopicConfig(topic_name="T", perm=4)}, queues={}),
        "T cannot be written",
    ),
    "certificate-expires": (
        master(),
        "has expired",
        1,
        {"certificates": [Certificate("broker a:0", "tls.server.certPath", NOW_MS - 1)]},
    ),
}
CASES = {name: Case(*it) for name, it in FAULTS.items()}


@pytest.mark.parametrize("rule", CASES)
def test_each_fault_is_found(rule):
    found = {it.rule: it for it in findings(*CASES[rule].look())}
    assert rule in found
    assert CASES[rule].text in found[rule].text
    assert (ROOT / "docs" / "runbooks" / found[rule].runbook).is_file()
    assert found[rule].command.startswith("cometmq ")
    assert found[rule].remedy
    assert found[rule].since.ms > 0
    assert f"/{found[rule].page}" in {it.path for it in PAGES}


def test_a_healthy_cluster_has_no_finding():
    assert findings(seen(reader(50))) == []
    assert findings(seen(master(topics={}, queues={}))) == []


def test_closed_topics_are_those_that_check_topic_names():
    topics = {name: TopicConfig(topic_name=name, perm=perm) for name, perm in
              {"r": 4, "w": 2, "none": 0, "rw": 6, "%RETRY%G": 4, HALF: 0}.items()}  # fmt: skip
    found = findings(seen(master(topics=topics, queues={})))
    assert {it.subject: it.text for it in found} == {
        "r": "the topic r cannot be written",
        "w": "the topic w cannot be read",
    }
    assert {it.subject: it.severity for it in found} == {
        "r": Severity.INFO,
        "w": Severity.WARNING,
    }
    assert "cometmq topic alter r --perm rw" in {it.subject: it.remedy for it in found}["r"]


def with_perm(perm, **more):
    return master(topics={"T": TopicConfig(topic_name="T", perm=perm)}, **more)


@pytest.mark.parametrize(
    ("perms", "text"),
    [
        ((6, 4), "the topic T cannot be written at broker-b"),
        ((4, 6), "the topic T cannot be written at broker-a"),
        ((4, 2), "the topic T cannot be read at broker-b, or written at broker-a"),
        ((4, 0), "the topic T cannot be read at broker-b, or written"),
    ],
)
def test_a_topic_may_be_closed_at_some_of_its_brokers(perms, text):
    snapshot = seen(*(with_perm(it) for it in perms))
    (found,) = findings(snapshot)
    assert (found.text, found.severity) == (text, Severity.WARNING)
    assert found.remedy.startswith("give it the same permission at each of its brokers: ")
    assert snapshot.topic("T").perm == perms[0] & perms[1]


def test_no_remedy_for_a_topic_that_is_read_only_on_purpose_ends_reading():
    (found,) = findings(seen(with_perm(4), with_perm(4)))
    assert found.severity is Severity.INFO
    assert found.remedy == (
        "nothing, if it is read-only on purpose; otherwise: cometmq topic alter T --perm rw"
    )


def test_a_topic_without_permission_is_a_finding_only_if_a_client_misses_it():
    refusal = RefusedRequests(310, 16, "T", "the topic[T] sending message is forbidden", "c:7", 3,
                              NOW_MS, NOW_MS)  # fmt: skip

    def closed(answers):
        return [it.text for it in findings(seen(answers)) if it.rule == "topic-closed"]

    assert closed(with_perm(0)) == []
    text = "the topic T cannot be read or written"
    assert closed(with_perm(0, groups=["G"], offsets={"T@G": {0: 20}})) == [text]
    assert closed(with_perm(0, groups=["G"], offsets={"T@G": {0: 50}})) == []
    assert closed(telling(with_perm(0), refused=[refusal])) == [text]
    past = msgspec.structs.replace(refusal, last_ms=NOW_MS - 400_000)
    assert closed(telling(with_perm(0), refused=[past])) == []


def test_each_way_not_to_answer_has_its_remedy():
    remedies = {it: findings(seen(silent(it)))[0].remedy for it in Trouble}
    assert len(set(remedies.values())) == len(Trouble)
    assert [it for it, remedy in remedies.items() if "account" in remedy] == [Trouble.REFUSES]


def test_the_worst_comes_first():
    found = findings(seen(reader(online=False), silent()))
    assert [it.severity for it in found] == [Severity.CRITICAL, Severity.WARNING]


def test_the_first_look_knows_only_a_bound():
    history = History()
    full = master(runtime={"writesRefused": "disk-full"})
    (first,) = findings(seen(full, history=history), history)
    assert first.since == Since(NOW_MS, is_bound=True)
    assert "at least since 2027-01-15 08:00:00Z" in first.sentence(NOW_MS)
    (again,) = findings(seen(full, history=history, now_ms=NOW_MS + 5_000), history)
    assert again.since == first.since


def test_a_later_look_knows_since_when():
    history = History()
    full = master(runtime={"writesRefused": "disk-full"})
    found = []
    for at, answers in enumerate((master(), full, full, master(), full)):
        now_ms = NOW_MS + 5_000 * at
        found = findings(seen(answers, history=history, now_ms=now_ms), history)
        if at == 2:
            assert found[0].since == Since(NOW_MS + 5_000)
    assert found[0].since == Since(NOW_MS + 20_000)


def test_a_group_is_stuck_when_its_offsets_stay():
    history, found = History(), []
    for at in range(4):
        snapshot = seen(reader(20), history=history, now_ms=NOW_MS + 60_000 * at)
        found = findings(snapshot, history)
        assert ("group-stuck" in {it.rule for it in found}) is (at >= 2)
    assert found[0].since == Since(NOW_MS, is_bound=True)
    moved = seen(reader(21), history=history, now_ms=NOW_MS + 300_000)
    assert findings(moved, history) == []


def test_a_lag_that_grows_is_found_though_offsets_move():
    history, found = History(), {}
    for at in range(13):
        answers = reader(20 + at, queues={"T": {0: Queue(10, 50 + 100 * at)}})
        snapshot = seen(answers, history=history, now_ms=NOW_MS + 60_000 * at)
        found = {it.rule: it for it in findings(snapshot, history)}
    assert found.keys() == {"lag-grows"}
    assert "30 unread messages have become 1,218" in found["lag-grows"].text


def test_dead_letters_are_a_warning_until_they_were_sent_again():
    """Also at the first look, as in `cometmq doctor`."""

    def look(count, sent):
        offsets = {"%DLQ%G@CID_RMQ_SYS_DLQ_REPLAY": {0: sent}}
        answers = master(
            groups=["G"],
            topics={"%DLQ%G": TopicConfig(topic_name="%DLQ%G")},
            offsets=offsets if sent else {},
            queues={"%DLQ%G": {0: Queue(0, count)}},
        )
        return [(it.severity, it.text) for it in findings(seen(answers))]

    assert look(60, 0) == [(Severity.WARNING, "G has 60 dead letters")]
    assert look(60, 60) == []
    partly = "G has 1 dead letter that was not sent again, and 60 that were"
    assert look(61, 60) == [(Severity.WARNING, partly)]


def test_one_look_and_many_agree_on_order_and_severity():
    """`cometmq doctor` looks once, the console again and again."""
    late = telling(
        reader(
            20,
            topics={
                "T": TopicConfig(topic_name="T", read_queue_nums=1),
                "%DLQ%G": TopicConfig(topic_name="%DLQ%G"),
            },
            queues={"T": {0: Queue(10, 50)}, "%DLQ%G": {0: Queue(0, 3)}},
        ),
        oldest_unread_ms={"T@G": NOW_MS - 400_000},
        refused=[RefusedRequests(310, 2, "T", "busy", "c:7", 3, NOW_MS - 9_000, NOW_MS)],
    )
    listed = {
        looks: [(it.severity, it.page) for it in findings(*Case(late, "", looks).look())]
        for looks in (1, 4)
    }
    assert len(listed[1]) == 3
    assert listed[1] == listed[4]


def test_every_rule_is_applied_once():
    folder = pkgutil.iter_modules(rules.__path__, f"{rules.__name__}.")
    written = {
        it
        for info in folder
        for name, it in inspect.getmembers(importlib.import_module(info.name), inspect.isfunction)
        if it.__module__ == info.name and not name.startswith("_")
        if get_type_hints(it)["return"] == Iterator[Finding]
    }
    assert written == set(RULES)
    assert len(written) == len(RULES)


def test_every_rule_has_a_case_and_its_own_name():
    found: dict[str, set[Any]] = defaultdict(set)
    for case in CASES.values():
        snapshot, history = case.look()
        for rule in RULES:
            found.update({it.rule: found[it.rule] | {rule} for it in rule(snapshot, history)})
    assert {rule for by in found.values() for rule in by} == set(RULES)
    assert [name for name, by in found.items() if len(by) > 1] == []
    assert found.keys() == CASES.keys()


def test_a_stopped_group_says_how_long_its_oldest_message_waits():
    told = reader(online=False)
    ages = msgspec.structs.replace(told.master, oldest_unread_ms={"T@G": NOW_MS - 4_210_000})
    stopped = msgspec.structs.replace(told, master=ages)
    (found,) = [it for it in findings(seen(stopped)) if it.rule == "group-stopped"]
    assert "30 unread messages, the oldest 1 h 10 min old" in found.text
    assert found.since == Since(NOW_MS - 4_210_000, is_bound=True), "not later than its message"


def test_a_group_stopped_when_its_offsets_stayed():
    """Not when its oldest unread message was stored: it was slow before it stopped."""
    history, found = History(), []
    for at, (offset, online) in enumerate(((20, True), (21, True), (21, False), (21, False))):
        told = telling(reader(offset, online=online), oldest_unread_ms={"T@G": NOW_MS - 4_210_000})
        snapshot = seen(told, history=history, now_ms=NOW_MS + 60_000 * at)
        found = [it for it in findings(snapshot, history) if it.rule == "group-stopped"]
    assert [it.since for it in found] == [Since(NOW_MS + 60_000)]


@pytest.mark.parametrize("online", [True, False])
def test_a_bound_is_not_later_than_the_age_in_the_same_line(online):
    history, found = History(), []
    told = telling(reader(20, online=online), oldest_unread_ms={"T@G": NOW_MS - 33_000})
    for at in range(4):
        snapshot = seen(told, history=history, now_ms=NOW_MS + 60_000 * at)
        found = findings(snapshot, history)
    assert [it.since for it in found] == [Since(NOW_MS - 33_000, is_bound=True)]


def test_a_group_that_has_read_nothing_yet_is_told_so():
    for online, text in (
        (
            True,
            "G has 1 member but has read nothing yet, with 50 unread messages, the oldest 4 min",
        ),
        (False, "G has no member, has read nothing yet, and has 50 unread messages, the oldest"),
    ):
        late = telling(
            reader(0, online=online, queues={"T": {0: Queue(0, 50)}}),
            oldest_unread_ms={"T@G": NOW_MS - 60_000},
        )
        (found,) = findings(*Case(late, "", 4 if online else 1).look())
        assert found.text.startswith(text)
        assert found.since == Since(NOW_MS - 60_000)


def test_a_stopped_group_says_when_it_will_lose_messages_if_that_is_soon():
    for hours, text in (("3", ", the first of which is deleted in 2 h 58 min"), ("72", " old")):
        told = reader(online=False, settings={"fileReservedTime": hours})
        late = telling(told, oldest_unread_ms={"T@G": NOW_MS - 120_000})
        (found,) = [it for it in findings(seen(late)) if it.rule == "group-stopped"]
        assert found.text.endswith(text)


def test_a_group_that_is_known_to_be_stuck_is_reported_once():
    late = telling(reader(20), oldest_unread_ms={"T@G": NOW_MS - 150_000})
    for looks, rule in ((1, "group-behind"), (3, "group-stuck")):
        found = findings(*Case(late, "", looks).look())
        (own,) = [it for it in found if it.subject == "G"]
        assert own.rule == rule
        assert "unread messages, the oldest " in own.text
        if rule == "group-behind":
            assert own.since == Since(NOW_MS - 150_000, is_bound=True)


def test_a_group_that_reads_slowly_is_told_how_long_it_needs():
    late = telling(reader(20), oldest_unread_ms={"T@G": NOW_MS - 150_000})
    unread = seen(late)
    (group,) = known(unread.groups)
    slow = msgspec.structs.replace(group, out_per_s=0.25)
    (found,) = findings(msgspec.structs.replace(unread, groups=[slow]))
    assert found.rule == "group-behind"
    assert "the oldest 2 min 30 s old; it reads 0.2/s, 2 min for these" in found.text
    assert found.remedy.startswith("if that is too slow, add members")


# -- certificates -------------------------------------------------------------------------------

DAY_MS = 86_400_000


def with_certificates(*days):
    found = [Certificate("broker a:0", "tls.server.certPath", NOW_MS + it * DAY_MS) for it in days]
    return msgspec.structs.replace(seen(master()), certificates=found)


@pytest.mark.parametrize(
    ("days", "severity", "text"),
    [
        (-1, Severity.CRITICAL, "has expired (2027-"),
        (2, Severity.CRITICAL, "expires in 2 d ("),
        (20, Severity.WARNING, "expires in 20 d ("),
    ],
)
def test_a_certificate_that_expires_is_found(days, severity, text):
    (found,) = [it for it in findings(with_certificates(days)) if it.rule == "certificate-expires"]
    assert (found.severity, found.subject) == (severity, "broker a:0 tls.server.certPath")
    assert f"the certificate in tls.server.certPath of broker a:0 {text}" in found.text
    assert (ROOT / "docs" / "runbooks" / found.runbook).is_file()


def test_a_certificate_of_next_month_is_no_finding():
    assert "certificate-expires" not in {it.rule for it in findings(with_certificates(30))}


class ShownCertificates:
    """Stands for an admin client with TLS connections."""

    class namesrv:  # noqa: N801  # as the attribute is called
        addresses = ("n:1", "n:2")

    def expiries_s(self):
        return {"tls.client.certPath": 1.5}

    def peer_expiry_s(self, address):
        return {"n:1": 2, "10.1.0.0:0": 3, "10.1.0.0:1": 4}.get(address)


def test_certificates_come_from_brokers_and_from_connections():
    told = master(runtime={"certificates": "tls.server.certPath=5,tls.client.certPath=x,=7,a=-1"})
    places = [(Place("c", name, 0, f"10.1.0.0:{at}"), it)
              for at, (name, it) in enumerate({"a": told, "java": master()}.items())]  # fmt: skip
    shown: Any = ShownCertificates()
    found = certificates_of(shown, places, certificates_at(OURS, {"tls.server.certPath": 6}))
    assert [(it.where, it.what, it.expires_ms) for it in found] == [
        ("this program", "tls.client.certPath", 1_500),
        ("this program", "tls.server.certPath", 6_000),
        ("name server n:1", "", 2_000),
        ("broker a:0", "tls.server.certPath", 5),
        ("broker java:0", "", 4_000),
    ]


def test_a_snapshot_is_judged_once(monkeypatch):
    judged = []
    monkeypatch.setattr(
        "cometmq.insight.findings.RULES", (lambda snapshot, _: judged.append(snapshot) or (),)
    )
    kept, first, second = Findings(History()), seen(master()), seen(master())
    for one in (first, first, second, second):
        kept.of(one)
    assert judged == [first, second]


# -- the judge ----------------------------------------------------------------------------------


def test_rules_speak_of_known_facts_and_every_status_has_one():
    words = {word.lstrip("!") for _, rule in judge_rules.RULES for word in rule.split()}
    assert words == judge_rules.FACTS.keys()
    assert {status for status, _ in judge_rules.RULES} | {Status.OK} == set(Status)
    assert set(judge_rules.STATES) == set(Status)
    assert {it.severity for it in Status} == set(judge_rules.SEVERITIES)


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ("", Status.OK),
        ("online dead_letters", Status.DEAD_LETTERS),
        ("online late always_late dead_letters", Status.SLOW),
        ("online late always_late drains", Status.CATCHING_UP),
        ("online late always_late stands", Status.STALLED),
        ("late always_late stands", Status.STOPPED),
        ("late always_late stands skips", Status.SKIPS),
        ("late always_late stands skips at_risk", Status.AT_RISK),
        ("late always_late stands skips loses", Status.LOST),
        ("loses broadcasts", Status.BROADCAST),
    ],
)
def test_a_group_has_the_worst_status_that_is_true_of_it(facts, status):
    told = {*facts.split(), "known", "counted"}
    assert judge_rules.judge(told) is status
    is_damaged = status in {Status.LOST, Status.AT_RISK, Status.SKIPS, Status.BROADCAST}
    unknown = status if is_damaged else Status.UNKNOWN
    assert judge_rules.judge(told - {"known"}) is unknown


def test_alerts_have_the_limits_of_the_judge():
    rules = (ROOT / "deploy/monitoring/alerts.yaml").read_text()
    (old,) = re.findall(r"cometmq_group_lag_seconds\S+\) > (\d+)\n +for: (\d+)m", rules)
    assert (int(old[0]), int(old[1]) * 60) == (judge_rules.LATE_S, judge_rules.WINDOW_S)
