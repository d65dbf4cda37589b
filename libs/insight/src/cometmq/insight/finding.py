# SPDX-License-Identifier: Apache-2.0
"""The form of a finding, and what all findings of a rule have in common."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from cometmq.insight.model import Since
from cometmq.insight.words import lasting, moment


class Severity(StrEnum):
    """How bad a finding is, worst first."""

    CRITICAL = "critical"
    """Messages are refused or lost, or will be."""
    WARNING = "warning"
    """An operator must act, but not at once."""
    INFO = "info"

    @property
    def rank(self) -> int:
        """The position in the order of severity; 0 is worst."""
        return list(Severity).index(self)


class Kind(NamedTuple):
    """What the findings of a rule have in common, unless one says otherwise."""

    severity: Severity
    runbook: str
    """The file in docs/runbooks."""
    page: str = "brokers"
    """The console's page about the problem, relative to its prefix."""
    command: str = "cometmq cluster"
    """The command that shows the problem."""


_BAD, _WARN, _INFO = Severity
KINDS: Final[Mapping[str, Kind]] = {
    "no-broker": Kind(_BAD, "program-down.md"),
    "broker-down": Kind(_BAD, "program-down.md"),
    "no-master": Kind(_BAD, "group-degraded.md"),
    "no-elector": Kind(_WARN, "group-degraded.md"),
    "routes-missing": Kind(_BAD, "namesrv-unreachable.md"),
    "topic-unrouted": Kind(_BAD, "namesrv-unreachable.md", "topics"),
    "accounts-broken": Kind(_BAD, "accounts-broken.md"),
    "releases-differ": Kind(_INFO, "releases-differ.md"),
    "writes-refused": Kind(_BAD, "writes-refused.md"),
    "messages-damaged": Kind(_BAD, "store-damaged.md"),
    "disk-full": Kind(_WARN, "disk-full.md"),
    "copies-missing": Kind(_WARN, "group-degraded.md"),
    "copy-behind": Kind(_WARN, "slave-does-not-follow.md"),
    "certificate-expires": Kind(
        _WARN, "certificate-expires.md", command="cometmq check certificate"
    ),
    "messages-lost": Kind(_BAD, "lag-grows.md", "groups"),
    "group-stopped": Kind(_WARN, "lag-grows.md", "groups"),
    "group-stuck": Kind(_WARN, "lag-grows.md", "groups"),
    "lag-grows": Kind(_WARN, "lag-grows.md", "groups"),
    "group-behind": Kind(_WARN, "lag-grows.md", "groups"),
    "messages-skipped": Kind(_BAD, "lag-grows.md", "groups"),
    "messages-stranded": Kind(_WARN, "lag-grows.md", "groups"),
    "dead-letters": Kind(_WARN, "dead-letters.md", "dead-letters"),
    "subscriptions-disagree": Kind(_BAD, "lag-grows.md", "groups"),
    "half-messages": Kind(_WARN, "half-messages-pile-up.md", "transactions"),
    "push-back": Kind(_WARN, "requests-refused.md", "push-back", "cometmq top refused"),
    "dead-at-once": Kind(_WARN, "dead-letters.md", "dead-letters", "cometmq dlq list"),
    "checks-unanswered": Kind(_WARN, "half-messages-pile-up.md", "transactions"),
    "nobody-reads": Kind(_INFO, "lag-grows.md", "topics"),
    "topic-closed": Kind(_WARN, "requests-refused.md", "topics"),
}
NOW: Final = Since(0)
"""The beginning of a problem if its rule does not know it: the first snapshot with the problem."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of a cluster, and when it began."""

    rule: str
    severity: Severity
    subject: str
    """The broker, group or topic that has the problem."""
    since: Since
    text: str
    remedy: str
    runbook: str
    command: str
    page: str

    @property
    def key(self) -> str:
        """The rule and the subject, which identify the finding as long as it lasts."""
        return f"{self.rule}:{self.subject}"

    def sentence(self, now_ms: int) -> str:
        """Return what is wrong, since when, and what to do."""
        return f"{self.text}, {since_text(self.since, now_ms)}; {self.remedy}"


def found(
    rule: str, subject: str, text: str, remedy: str, *, since: Since | None = None, **more: Any
) -> Finding:
    """Return a finding of a rule; `more` are fields that differ from those of its kind, or None."""
    own = {name: it for name, it in more.items() if it}
    fields: dict[str, Any] = {**KINDS[rule]._asdict(), **own}
    return Finding(
        rule=rule, subject=subject, text=text, remedy=remedy, since=since or NOW, **fields
    )


def since_text(since: Since, now_ms: int) -> str:
    """Return a start and its age: `since 12:00:00Z (4 min)`, or `at least since ...`."""
    bound = "at least since" if since.is_bound else "since"
    return f"{bound} {moment(since.ms)} ({lasting((now_ms - since.ms) / 1_000)})"
