# SPDX-License-Identifier: Apache-2.0
"""Rules about clients: open transactions, refused requests, unread and closed topics."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from cometmq.insight.finding import Finding, Severity, found
from cometmq.insight.history import History
from cometmq.insight.model import Refusal, Since, Snapshot, Topic, TopicKind, Unknown, known
from cometmq.insight.words import command, counted, lasting
from cometmq.remoting.bodies.overview import Habit
from cometmq.remoting.codes import RequestCode, ResponseCode, request_name
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.commands.table import Need
from cometmq.remoting.message.flags import Perm
from cometmq.remoting.names import is_system_group, is_system_topic
from cometmq.remoting.refusals import is_access_refusal, plain_remark
from cometmq.remoting.remarks import consumers_offline

HALF_MAX: Final = 1_000
REFUSED_MS: Final = 300_000
HABIT_MS: Final = 3_600_000
PASSING_MS: Final = 60_000
"""Two intervals of heartbeats. Refusals that go on for longer are not ended by the next
heartbeat.
"""
_RUNBOOKS: Final[Mapping[int, str]] = {
    ResponseCode.SYSTEM_BUSY: "system-busy.md",
    ResponseCode.SERVICE_NOT_AVAILABLE: "writes-refused.md",
}
_REQUEST_REFUSED: Final = "requests-refused.md"
"""The runbook of refusals that the client or its account causes, not the broker's state."""
_COMPANIONS: Final = frozenset({RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT})
"""Requests that a client library sends on its own, in addition to those of its application."""
_ACCOUNT_READS: Final = frozenset(
    {RequestCode.GET_BROKER_CLUSTER_ACL_INFO, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG}
)
_BEFORE_HEARTBEAT: Final = frozenset(
    {ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST}
)
_LACKING: Final = re.compile(r"No default permission for (topic|group):(\S+) \(account (.+)\)")
_UNPROVEN: Final = re.compile(
    r"Check signature failed|No accessKey is configured|No acl config for"
)
"""Refusals for reasons other than a missing right: the account is unknown, or its key is wrong."""
_NO_PRODUCER: Final = "No default permission for producer group:"
_PUBLISHING: Final = frozenset({Need.SEND, Need.REPLY, Need.STORED})
SIGNATURE_PROBE: Final = RequestCode.GET_ALL_DELAY_OFFSET
"""The request with which the console's login asks a broker about a signature. It also sends a wrong
one, to find out whether the broker checks signatures. A real client with a wrong secret is refused
other requests, too.
"""
_ACL_IS_OFF: Final = "access control is off"
_NO_ADMIN: Final = "Need admin permission"
_DISK_FULL: Final = "has a full disk"


def half_messages(snapshot: Snapshot, history: History) -> Iterator[Finding]:
    """Find brokers with many transactions that may be open."""
    for it in known(snapshot.half_messages):
        key = f"half:{it.broker}"
        if it.waiting_max < HALF_MAX:
            history.conditions.pop(key, None)
            continue
        since = history.since(key, snapshot.taken_ms)
        yield found(
            "half-messages",
            it.broker,
            f"up to {counted(it.waiting_max, 'transaction')} are open at {it.broker}",
            "see whether a txn-checker runs, and whether the producers answer: cometmq txn list",
            command=command("txn list", options=("-b", it.broker)),
            since=since,
        )


def refused(snapshot: Snapshot, _history: History) -> Iterator[Finding]:
    """Find requests that brokers refused lately."""
    refusals = known(unexpected_refusals(snapshot))
    for it in refusals:
        ago_ms = snapshot.taken_ms - it.last_ms
        if ago_ms > REFUSED_MS or (_may_pass(it) and not _goes_on(it, ago_ms)):
            continue
        if it.code in _COMPANIONS and any(_is_companion(it, other) for other in refusals):
            continue
        name = request_name(it.code)
        about = f" for {it.subject}" if it.subject else ""
        lacks_topic = it.subject and it.response == ResponseCode.TOPIC_NOT_EXIST
        yield found(
            "push-back",
            _what(it),
            f"{it.broker} refused {counted(it.count, 'time')} {name}{about}, the last one"
            f" {lasting(ago_ms / 1_000)} ago of {it.peer}: {plain_remark(it.remark)}",
            advice_for(it.code, it.response, it.remark),
            runbook=runbook_for(it.response, it.remark),
            command=command("topic create", it.subject) if lacks_topic else "",
            since=Since(it.first_ms),
        )


def habits(snapshot: Snapshot, _history: History) -> Iterator[Finding]:
    """Find what clients' libraries do without their users' knowledge."""
    for broker, it in snapshot.habits:
        if snapshot.taken_ms - it.last_ms > HABIT_MS:
            continue
        if it.habit == Habit.DEAD_AT_ONCE:
            rule, shown = "dead-at-once", ""
            text = f"{it.group} makes a message a dead letter at its first failure:"
            text += f" {counted(it.count, 'message')} at {broker}"
            remedy = (
                "its consumers allow no retry (maxReconsumeTimes 0, which is the default of Spring"
                " Cloud Stream): set it to -1 or 16, then see cometmq dlq"
            )
        else:
            rule, shown = "checks-unanswered", command("txn list", options=("-b", broker))
            text = f"the connected producers of {it.group} do not answer {broker} how their"
            text += " transactions ended"
            remedy = (
                "see whether they have a listener for checks; in a Go program, only the first"
                " transaction producer answers: start one for each program"
            )
        subject = f"{broker} {it.group}"
        yield found(rule, subject, text, remedy, command=shown, since=Since(it.first_ms))


def _may_pass(refusal: Refusal) -> bool:
    """Return whether the next heartbeat of a member ends such refusals, as after a broker's
    restart.
    """
    if refusal.response in _BEFORE_HEARTBEAT:
        return True
    return refusal.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP and refusal.remark.startswith(
        consumers_offline("")
    )


def _goes_on(refusal: Refusal, ago_ms: int) -> bool:
    return ago_ms <= PASSING_MS < refusal.last_ms - refusal.first_ms


def _what(refusal: Refusal) -> str:
    """Return the subject of the finding: broker, codes, topic or group, and the reason of access
    control.
    """
    reason = f" {plain_remark(refusal.remark)}" if is_access_refusal(refusal.remark) else ""
    return f"{refusal.broker} {refusal.code} {refusal.response} {refusal.subject}{reason}"


def _is_companion(refusal: Refusal, other: Refusal) -> bool:
    """Return whether `other` is a refusal of the same client's application, for the same reason.

    The brokers refuse the heartbeats of a producer whose account may send to no topic.
    """
    is_cause = other.code not in _COMPANIONS
    if not is_cause or (other.broker, other.peer) != (refusal.broker, refusal.peer):
        return False
    lacks_all = _NO_PRODUCER in refusal.remark and is_access_refusal(other.remark)
    return lacks_all or other.remark == refusal.remark


class Question(NamedTuple):
    """The arguments of `cometmq account may` for the right that a refused request lacked."""

    account: str
    deed: str
    name: str


def question_of(code: int, remark: str) -> Question | None:
    """Return the arguments for the right that an account lacked.

    Return None for any other refusal, or if the broker does not name the account; RocketMQ's
    brokers do not.
    """
    found = _LACKING.fullmatch(plain_remark(remark)) if is_access_refusal(remark) else None
    if found is None:
        return None
    kind, name, account = found.groups()
    row = COMMANDS.get(code)
    is_sent = row is not None and row.access.need in _PUBLISHING
    deed = "join" if kind == "group" else "send" if is_sent else "read"
    return Question(account, deed, name)


def advice_for(code: int, response: int, remark: str) -> str:
    """Return the remedy for a refusal: that of the remark, because most codes have several causes,
    or else that of the code.
    """
    from cometmq.runtime.meanings import answers  # noqa: PLC0415  # 0.3 MB

    if is_access_refusal(remark) and not _UNPROVEN.search(remark):
        return _grant(question_of(code, remark))
    meaning = answers.remark(plain_remark(remark))
    advice = answers.ADVICE.get(response, "") if meaning is None else meaning.advice
    return plain_text(advice) or "the remark says why; cometmq explain says more about the code"


def plain_text(advice: str) -> str:
    """Return an advice as a part of a sentence, without marks for code."""
    text = advice.replace("`", "").rstrip(".")
    return text if text[:2].isupper() else f"{text[:1].lower()}{text[1:]}"


def runbook_for(response: int, remark: str) -> str:
    """Return the runbook about a refusal."""
    if is_access_refusal(remark):
        return _REQUEST_REFUSED
    return "disk-full.md" if _DISK_FULL in remark else _RUNBOOKS.get(response, _REQUEST_REFUSED)


def _grant(question: Question | None) -> str:
    """Return how to give an account a right, and how to see which rule denies it."""
    if question is None:
        return (
            "give the client's account this right (cometmq updateAclConfig, the account file, or"
            " the console's page Accounts); cometmq account may names the rule that decides"
        )
    account, deed, name = question
    option, right = {"join": ("-g", "SUB"), "send": ("-t", "PUB")}.get(deed, ("-t", "SUB"))
    rights = ("-a", account, "-s", "ITS_SECRET", option, f"{name}={right}")
    grant = command("updateAclConfig", options=("-c", "CLUSTER", *rights))
    return (
        f"give the account this right: {grant} (it replaces the account's whole list: give the"
        " other entries, too), the account file, or the console's page Accounts;"
        f" {command('account may', *question)} names the rule that decides"
    )


def unexpected_refusals(snapshot: Snapshot) -> Sequence[Refusal] | Unknown:
    """Return the refusals to show to users, in every view and format."""
    if isinstance(snapshot.refusals, Unknown):
        return snapshot.refusals
    return [it for it in snapshot.refusals if not _is_expected(it)]


def _is_expected(refusal: Refusal) -> bool:
    """Return whether a refusal needs no attention: a probe of a CometMQ program, a request of a
    CometMQ server for something that does not exist yet, or a wrong value for a setting.

    A txn-checker asks for half messages before the first one is stored. The console asks for the
    accounts of brokers without access control and, at a login, as a user who may not see them. The
    tool that sent a wrong value has shown the error to its user. Programs look for other programs
    that replay dead letters, which are producers of a system group; usually there are none.
    """
    if refusal.code == RequestCode.GET_PRODUCER_CONNECTION_LIST:
        return is_system_group(refusal.subject)
    if refusal.code == RequestCode.UPDATE_BROKER_CONFIG and not is_access_refusal(refusal.remark):
        return True
    if refusal.code == SIGNATURE_PROBE and _UNPROVEN.search(refusal.remark):
        return True
    is_missing = refusal.response == ResponseCode.TOPIC_NOT_EXIST
    if is_missing and is_system_topic(refusal.subject):
        return True
    is_unfounded = _ACL_IS_OFF in refusal.remark or _NO_ADMIN in refusal.remark
    return refusal.code in _ACCOUNT_READS and is_unfounded


def unread_topics(snapshot: Snapshot, _history: History) -> Iterator[Finding]:
    """Find topics that get messages but have no consumers."""
    for topic in known(snapshot.topics):
        rate = topic.in_per_s
        is_read = topic.groups or topic.kind is not TopicKind.NORMAL
        if is_read or isinstance(rate, Unknown) or not rate:
            continue
        yield found(
            "nobody-reads",
            topic.name,
            f"{rate:,.1f} messages per second go to {topic.name}, and no group reads it",
            "start a consumer, or stop sending",
            command=command("topic describe", topic.name),
        )


def closed_topics(snapshot: Snapshot, _history: History) -> Iterator[Finding]:
    """Find topics that producers may not write, or consumers may not read.

    A topic that all its brokers let clients only read is worth an information: this is how an
    operator keeps the messages of a topic that is no longer used.
    """
    for topic in known(snapshot.topics):
        if topic.lacks and topic.kind is TopicKind.NORMAL and not is_shut(snapshot, topic):
            rights = {perm & (Perm.READ | Perm.WRITE) for perm in topic.perms.values()}
            is_read_only = rights == {Perm.READ}
            advice = "change its permission"
            if is_read_only:
                advice = "nothing, if it is read-only on purpose; otherwise"
            elif len(rights) > 1:
                advice = "give it the same permission at each of its brokers"
            change = command("topic alter", topic.name, options=("--perm", "rw"))
            yield found(
                "topic-closed",
                topic.name,
                f"the topic {topic.name} cannot be {topic.lacks}",
                f"{advice}: {change}",
                severity=Severity.INFO if is_read_only else None,
                command=command("topic describe", topic.name),
            )


def is_shut(snapshot: Snapshot, topic: Topic) -> bool:
    """Return whether a topic is closed on purpose: it has no permission at any broker, and no
    client is seen to miss it.

    No program of RocketMQ removes both permissions by itself, so an operator has set `none`, and
    all consoles and commands see it in the topic. A topic that lacks one permission may be a
    mistake: its producers find no queue in the route, so their failures never reach a broker.
    """
    if any(topic.perms.values()) or isinstance(snapshot.groups, Unknown):
        return False
    progress = (it for group in snapshot.groups for it in group.topics)
    if any(it.topic == topic.name and it.lag != 0 for it in progress):
        return False
    return not any(
        it.subject == topic.name and snapshot.taken_ms - it.last_ms <= REFUSED_MS
        for it in known(snapshot.refusals)
    )
