# SPDX-License-Identifier: Apache-2.0
"""Rules about what producers meet: open transactions, refusals, topics that nobody reads."""

from collections.abc import Iterator
from typing import Final

from cometmq.insight.finding import Condition, Severity
from cometmq.insight.history import History
from cometmq.insight.model import Refusal, Snapshot, TopicKind, Unknown, known
from cometmq.insight.words import counted
from cometmq.remoting.codes import ResponseCode, request_name
from cometmq.remoting.names import is_system_topic

HALF_MAX: Final = 1_000
HALF_S: Final = 300
REFUSED_MS: Final = 300_000
_RUNBOOKS: Final = {
    ResponseCode.SYSTEM_BUSY: "system-busy.md",
    ResponseCode.SERVICE_NOT_AVAILABLE: "writes-refused.md",
}


def half_messages(snapshot: Snapshot, history: History) -> Iterator[Condition]:
    """Find brokers on which transactions pile up."""
    for it in known(snapshot.half_messages):
        key = f"half:{it.broker}"
        if it.waiting_max < HALF_MAX:
            history.conditions.pop(key, None)
            continue
        since = history.since(key, snapshot.taken_ms)
        yield Condition(
            rule="half-messages",
            severity=Severity.WARNING,
            subject=it.broker,
            text=f"up to {counted(it.waiting_max, 'transaction')} are open at {it.broker}",
            remedy=(
                "see whether a txn-checker runs, and whether the producers answer: cometmq txn list"
            ),
            runbook="half-messages-pile-up.md",
            command=f"cometmq txn list -b {it.broker}",
            page="transactions",
            since=since,
        )


def refused(snapshot: Snapshot, _history: History) -> Iterator[Condition]:
    """Find requests that brokers refused lately."""
    for it in known(snapshot.refusals):
        if snapshot.taken_ms - it.last_ms > REFUSED_MS or _is_expected(it):
            continue
        name = request_name(it.code)
        about = f" for {it.subject}" if it.subject else ""
        yield Condition(
            rule="push-back",
            severity=Severity.WARNING,
            subject=f"{it.broker} {it.code} {it.response} {it.subject}",
            text=(
                f"{it.broker} refused {counted(it.count, 'time')} {name}{about}, the last one of"
                f" {it.peer}: {it.remark}"
            ),
            remedy="the page says what each reason means, and what helps",
            runbook=_RUNBOOKS.get(ResponseCode(it.response), "writes-refused.md")
            if it.response in ResponseCode._value2member_map_
            else "writes-refused.md",
            command="cometmq cluster",
            page="push-back",
        )


def _is_expected(refusal: Refusal) -> bool:
    """Return whether a server has asked for a topic that exists only once it is used, as a
    txn-checker does until the first transaction.
    """
    is_missing = refusal.response == ResponseCode.TOPIC_NOT_EXIST
    return is_missing and is_system_topic(refusal.subject)


def unread_topics(snapshot: Snapshot, _history: History) -> Iterator[Condition]:
    """Find topics into which messages go although nobody reads them."""
    for topic in known(snapshot.topics):
        rate = topic.in_per_s
        is_read = topic.groups or topic.kind is not TopicKind.NORMAL
        if is_read or isinstance(rate, Unknown) or not rate:
            continue
        yield Condition(
            rule="nobody-reads",
            severity=Severity.INFO,
            subject=topic.name,
            text=f"{rate:,.1f} messages per second go to {topic.name}, and no group reads it",
            remedy="start a consumer, or stop sending",
            runbook="lag-grows.md",
            command=f"cometmq topic describe {topic.name}",
            page="topics",
        )
