# SPDX-License-Identifier: Apache-2.0
"""The form of a finding."""

from enum import StrEnum

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


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """A problem that a rule has found in one snapshot."""

    rule: str
    severity: Severity
    subject: str
    """The broker, group or topic that has the problem."""
    text: str
    remedy: str
    runbook: str
    """The file in docs/runbooks."""
    command: str
    """The command that shows the problem."""
    page: str
    """The console's page about the problem, relative to its prefix, without names that need
    escaping.
    """
    since: Since | None = None
    """When it began; None if the rule does not know."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of a cluster, and when it began."""

    rule: str
    severity: Severity
    subject: str
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


def since_text(since: Since, now_ms: int) -> str:
    """Return a start and its age: `since 12:00:00Z (4 min)`, or `at least since ...`."""
    bound = "at least since" if since.is_bound else "since"
    return f"{bound} {moment(since.ms)} ({lasting((now_ms - since.ms) / 1_000)})"
